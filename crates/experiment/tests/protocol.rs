//! The protocol with systems that are small scripts: going on after a kill, systems that hang,
//! refuse or die, and a server that is a thread of the test.

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use dctms_experiment::child::{Asked, Failure, System, SystemCommand};
use dctms_experiment::record::{Call, text_hash};
use dctms_experiment::results::read_results;

use support::{ANSWER, Folder, calls, ended, experiment, wait};

#[test]
fn an_experiment_that_was_killed_goes_on_where_it_was() {
    let folder = Folder::new("resume");
    let script = folder.script("fake", &format!("sleep 0.02\n{ANSWER}"));
    let out = folder.0.join("out");
    let (a, b) = (format!("a={script}"), format!("b={script}"));
    let words = ["--rounds", "6", "--adapter", &a, "--adapter", &b];
    let mut child = experiment(&out, &words).spawn().unwrap();
    wait("nine calls", || calls(&out).len() >= 9);
    child.kill().unwrap();
    child.wait().unwrap();
    let before = calls(&out);
    assert!(before.len() < 60, "it was killed too late to show anything");
    // The kill came in the middle of a line.
    let text = std::fs::read_to_string(out.join("calls.csv")).unwrap();
    std::fs::write(out.join("calls.csv"), &text[..text.len() - 4]).unwrap();
    let kept = before.len() - 1;

    let status = experiment(&out, &words).status().unwrap();
    assert!(status.success());
    let after = calls(&out);
    assert_eq!(after[..kept], before[..kept], "what was done stays as it was");
    let mut keys: Vec<_> = after.iter().map(Call::key).collect();
    assert_eq!(keys.len(), 6 * 5 * 2);
    // In each round every prompt is asked of one system after the other.
    let order: Vec<(&str, &str, usize)> = keys.iter().map(|key| (key.2, key.1, key.3)).collect();
    assert_eq!(order[..3], [("P1", "a", 0), ("P1", "b", 0), ("P2", "b", 0)]);
    // Each begins as often as the other, wherever the kill came.
    for turn in order.chunks(2) {
        let place: usize = turn[0].0[1..].parse::<usize>().unwrap() - 1;
        let begins = ["a", "b"][(turn[0].2 + place) % 2];
        let is_cut = turn[0].0 == order[kept - 1].0 && turn[0].2 == order[kept - 1].2;
        assert!(turn[0].1 == begins || is_cut, "{turn:?}");
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 60, "no call is made twice");
    assert!(after.iter().all(|call| call.text_hash == text_hash("yes")));
    assert!(after.iter().all(|call| call.latency_ms > 19.0 && call.peak_bytes > 0));
    // Calls of other settings are no calls of this experiment.
    let all = std::fs::read_to_string(out.join("calls.csv")).unwrap();
    assert!(all.lines().all(|line| line.split(',').count() == 15));
    assert_eq!((after[0].session, after[59].session), (1, 2), "of which run each call is");
    let other = [&words[..], &["--max-output", "3"]].concat();
    let (code, _, said) = ended(&mut experiment(&out, &other));
    assert!(code == Some(64) && said.contains("output tokens at most was"), "{code:?} {said}");
    assert_eq!(calls(&out).len(), 60);
    // A system that comes later would be called alone, and not in turn with the others.
    let more = [&words[..], &["--adapter", "c=sh"]].concat();
    let (code, _, said) = ended(&mut experiment(&out, &more));
    assert!(code == Some(64) && said.contains("without system c"), "{code:?} {said}");
    assert!(after.iter().all(|call| call.first_token_ms == 0.001 && call.output_tokens == 2));
    for file in ["report.html", "summary.csv", "summary.json", "plots/latency-none.png"] {
        assert!(out.join(file).is_file(), "{file}");
    }
}

#[test]
fn systems_that_hang_refuse_or_die_are_results() {
    let folder = Folder::new("failures");
    let fine = format!("fine={}", folder.script("fine", ANSWER));
    let hangs = folder.script("hangs", &format!("[ $n -gt 3 ] && sleep 60\n{ANSWER}"));
    let hangs = format!("hangs={hangs}");
    let dies = folder.script("dies", "echo 'does not fit: 7 bytes short' >&2\nexit 3");
    let dies = format!("dies={dies}");
    let refuses = format!("refuses={}", folder.script("refuses", "echo '{\"error\": \"no\"}'"));
    let out = folder.0.join("out");
    let adapters = [&fine, &hangs, &dies, &refuses];
    let adapters = adapters.iter().flat_map(|adapter| ["--adapter", adapter]);
    let words: Vec<&str> =
        ["--rounds", "2", "--call-limit", "1"].into_iter().chain(adapters).collect();
    let (code, said, why) = ended(&mut experiment(&out, &words));
    assert_eq!(code, Some(1), "two systems have no call at all");
    assert!(said.contains("12 calls, see why") && !said.contains("complete"), "{said}");
    for part in ["dies (ended: ", "7 bytes short", "refuses (refused: no)"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(!why.contains("hangs (") && !why.contains("fine ("), "{why}");
    let results = read_results(&out).unwrap();
    let status = |name: &str| {
        let cell = results.cells.iter().find(|cell| cell.system == name);
        cell.map(|cell| (cell.status.as_str(), cell.detail.as_str()))
    };
    let count = |name: &str| results.calls.iter().filter(|call| call.system == name).count();
    assert_eq!((status("fine"), count("fine")), (None, 10));
    // The first request warms up and is not counted.
    assert_eq!((status("hangs").unwrap().0, count("hangs")), ("thrashed", 2));
    let (word, why) = status("dies").unwrap();
    assert!(word == "ended" && why.contains("7 bytes short"), "{word}: {why}");
    assert_eq!(status("refuses"), Some(("refused", "no")));
    // What is over is not tried again, and is as wrong as before; other systems are another matter.
    let (code, said, _) = ended(&mut experiment(&out, &words));
    assert!(code == Some(1) && said.contains("12 calls"), "{said}");
    let (code, said, _) = ended(&mut experiment(&out, &words[..6]));
    assert!(code == Some(0) && said.contains("12 calls, complete"), "{said}");
    // Unless it is asked for: this one now has requests enough to hang later.
    let again = [&words[..8], &["--retry"]].concat();
    assert_eq!(ended(&mut experiment(&out, &again)).0, Some(0));
    assert_eq!(calls(&out).iter().filter(|call| call.system == "hangs").count(), 4);
    let (code, said, _) = ended(&mut experiment(&out, &["--adapter", &fine, "--report-only"]));
    assert!(code == Some(0) && said.contains("14 calls, complete"), "{code:?} {said}");
}

#[test]
fn a_prompt_that_a_system_does_not_take_is_left_out_and_others_go_on() {
    let folder = Folder::new("prompt");
    let prompts = folder.0.join("prompts.json");
    let prompt =
        |id: &str, text: &str| format!(r#"{{"id": "{id}", "category": "c", "prompt": "{text}"}}"#);
    let list = [prompt("P1", "far too long"), prompt("P2", "short")];
    std::fs::write(&prompts, format!("[{}]", list.join(", "))).unwrap();
    let picky = r#"case $line in *far*) echo '{"error": "over a bound"}';; *) "#;
    let picky = folder.script("picky", &format!("{picky}{ANSWER};; esac"));
    let (picky, fine) = (format!("picky={picky}"), folder.script("fine", ANSWER));
    let fine = format!("fine={fine}");
    let out = folder.0.join("out");
    let prompts = prompts.to_str().unwrap();
    let words = ["--adapter", &picky, "--adapter", &fine, "--rounds", "3", "--prompts", prompts];
    let (code, said, why) = ended(&mut experiment(&out, &words));
    assert!(code == Some(0) && said.contains("9 calls, complete"), "{said} {why}");
    assert!(why.contains("none picky P1: refused: over a bound"), "{why}");
    let results = read_results(&out).unwrap();
    assert_eq!(results.cells.len(), 1, "it is asked once");
    assert_eq!(results.cells[0].prompt.as_deref(), Some("P1"));
    let table = std::fs::read_to_string(out.join("summary.csv")).unwrap();
    assert!(table.contains("none,picky,3,") && table.contains(",without P1\n"), "{table}");
    // It is not tried again unless that is asked for.
    let (code, said, why) = ended(&mut experiment(&out, &words));
    assert!(code == Some(0) && said.contains("9 calls, complete"), "{said} {why}");
}

#[test]
fn a_program_that_is_not_there_is_told_before_anything_is_begun() {
    let folder = Folder::new("absent");
    let out = folder.0.join("out");
    let burner = ["--conditions", "burner", "--adapter", "a=sh", "--baseline", "/no/such/program"];
    for words in [
        &["--adapter", "absent=/no/such/program"][..],
        &["--llama-server", "/no/such/program"],
        &["--systems", "dynamic", "--baseline", "/no/such/program"],
        &burner,
    ] {
        let (code, _, why) = ended(&mut experiment(&out, words));
        assert!(code == Some(64) && why.contains("/no/such/program: no such"), "{code:?} {why}");
        assert!(!out.exists());
    }
}

#[test]
fn a_server_is_asked_for_a_chat_completion() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let mut asked = Vec::new();
        // A server may leave connections open: its answers end where they say.
        let mut open = Vec::new();
        for stream in listener.incoming().take(3) {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !complete(&request) {
                let count = stream.read(&mut buffer).unwrap();
                request.extend_from_slice(&buffer[..count]);
            }
            let request = String::from_utf8(request).unwrap();
            let body = match request.starts_with("GET /health") {
                true => "{}".to_string(),
                false => concat!(
                    r#"{"choices": [{"message": {"content": "blue"}}], "#,
                    r#""usage": {"prompt_tokens": 9, "completion_tokens": 1}, "#,
                    r#""timings": {"prompt_ms": 2.5}}"#
                )
                .to_string(),
            };
            let refused = request.contains("too much");
            let status = if refused { "400 Bad Request" } else { "200 OK" };
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                .unwrap();
            asked.push(request);
            open.push(stream);
        }
        (asked, open)
    });
    let folder = Folder::new("server");
    let words = ["sleep", "60"].map(str::to_string).to_vec();
    let command = SystemCommand { name: "server".to_string(), words, asked: Asked::Http { port } };
    let limit = Duration::from_secs(5);
    assert!(matches!(command.asked.require_free(), Err(Failure::Refused(_))), "we listen there");
    let mut system = System::start(&command, None, &folder.0.join("log"), limit).unwrap();
    let reply = system.ask("Why is \"sky\" blue?", 7, limit).unwrap();
    assert_eq!((reply.text.as_str(), reply.prompt_tokens, reply.output_tokens), ("blue", 9, 1));
    let refused = system.ask("too much", 7, limit);
    assert!(matches!(refused, Err(Failure::Declined(why)) if why.starts_with("400")));
    let (asked, _open) = server.join().unwrap();
    assert!(asked[1].starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
    assert!(asked[1].contains(r#""content":"Why is \"sky\" blue?""#), "{}", asked[1]);
    assert!(asked[1].contains(r#""max_tokens":7"#) && asked[1].contains(r#""temperature":0"#));
}

/// Whether a request is there with its whole body.
fn complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}
