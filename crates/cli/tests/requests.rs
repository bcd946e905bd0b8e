//! Requests one after another in one process: each alone, each answered, whatever came before.

mod support;

use serde_json::Value;
use support::child::Child;
use support::{Folder, USAGE, dctms, real_model, tiny};

fn serve(folder: &Folder) -> Child {
    let model = folder.file("m.gguf", tiny::llama(1024).bytes());
    dctms("run").arg(model).args("--lanes 2 --ignore-eos --max-input 200 --max-output 8")
}

#[track_caller]
fn answers(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn each_request_is_answered_alone_and_a_refusal_is_an_answer() {
    let folder = Folder::new();
    let long = "many words ".repeat(40);
    let lines = [
        r#"{"prompt":"hello","id":"a"}"#.to_string(),
        r#"{"prompt":"hello","id":"\ud83d\ude00"}"#.to_string(),
        String::new(),
        r#"{"prompt":"hello","max_tokens":3,"id":7}"#.to_string(),
        r#"{"promt":"hello","id":"misspelt"}"#.to_string(),
        format!("{{\"prompt\":{long:?},\"id\":\"long\"}}"),
        format!("{{\"id\":\"longest\",\"prompt\":{:?}}}", long.repeat(80)),
        r#"{"prompt":"hello","max_tokens":9}"#.to_string(),
        r#"{"prompt":"hello","images":["a.png"]}"#.to_string(),
        r#""hello""#.to_string(),
        r#"{"messages":[{"role":"user","content":"hello"}]}"#.to_string(),
        "\u{1}".to_string(),
        r#"{"prompt":"hello","id":"z"}"#.to_string(),
    ];
    let requests = folder.file("r.jsonl", lines.join("\n"));
    let output = serve(&folder).args("--logits-sha --requests").arg(&requests).run();
    assert_eq!(output.code(), 0, "{output:?}");
    let answers = answers(&output.stdout);
    assert_eq!(answers.len(), 12, "{output:?}");
    let by_line = |line: u64| {
        let found = answers.iter().find(|answer| answer["line"] == line);
        found.unwrap_or_else(|| panic!("no answer to line {line}"))
    };
    let first = by_line(1);
    assert_eq!(first["id"], "a");
    assert_eq!(first["finish"], "length");
    assert_eq!(first["tokens"].as_array().map(Vec::len), Some(8));
    assert_eq!(first["allocations"], 0);
    assert!(first["prefill_ms"].as_f64() > Some(0.0) && first["decode_ms"].as_f64() > Some(0.0));
    for line in [2, 11, 13] {
        for key in ["text", "tokens", "logits_sha256", "prompt_tokens"] {
            assert_eq!(by_line(line)[key], first[key], "line {line}, {key}");
        }
    }
    assert_eq!(by_line(4)["tokens"].as_array().expect("a list")[..], {
        first["tokens"].as_array().expect("a list")[..3].to_vec()
    });
    assert_eq!(by_line(4)["id"], 7);
    for (line, class, part) in [
        (5, "usage", "\"promt\" is no key"),
        (6, "over_bound", "the plan holds 200 (--max-input)"),
        (7, "over_bound", "at most"),
        (8, "over_bound", "1 to 8 (--max-output)"),
        (9, "usage", "cannot see"),
        (10, "usage", "'{' is expected"),
        (12, "usage", "'{' is expected"),
    ] {
        let error = &by_line(line)["error"];
        assert_eq!(error["class"], class, "line {line}: {error}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(part)), "{error}");
    }
    for (line, id) in [(2, "\u{1f600}"), (5, "misspelt"), (6, "long"), (7, "longest")] {
        assert_eq!(by_line(line)["id"], id, "line {line}");
    }
}

/// A refusal never carries a name that nobody sent: a number that goes on is no whole number.
#[test]
fn half_a_value_is_no_id() {
    let folder = Folder::new();
    let lines = [r#"1.5"#, r#"12e3"#, r#"7x"#, r#""a"b"#];
    let lines = lines.map(|id| format!("{{\"prompt\":\"hello\",\"id\":{id}}}\n"));
    let file = folder.file("requests.jsonl", lines.concat());
    let output = serve(&folder).args("--requests").arg(file).run();
    let answers = answers(&output.stdout);
    assert_eq!(answers.len(), lines.len());
    for answer in answers {
        assert_eq!(answer["error"]["class"], "usage", "{answer}");
        assert!(answer["id"].is_null(), "{answer}");
    }
}

/// What comes alone is what comes from standard input, and what `-p` gives.
#[test]
fn standard_input_is_answered_as_it_comes() {
    let folder = Folder::new();
    let alone = serve(&folder).args("-p hello").json();
    let mut running = serve(&folder).args("--requests - --logits-sha").start_with_input();
    for count in 1..=3 {
        running.write("{\"prompt\":\"hello\"}\n");
        running.wait_for_lines(count);
    }
    running.close_input();
    let output = running.end();
    assert_eq!(output.code(), 0, "{output:?}");
    for answer in answers(&output.stdout) {
        for key in ["text", "tokens", "logits_sha256"] {
            assert_eq!(answer[key], alone.value[key], "{key}");
        }
    }
}

/// A lossless WebP of 256x256 pixels and 160 KB that asks for 65,536 groups of tables.
fn greedy_webp() -> Vec<u8> {
    let (mut bytes, mut count) = (vec![0x2f_u8], 0);
    let mut put = |value: u32, bits: u32| {
        for bit in 0..bits {
            if count % 8 == 0 {
                bytes.push(0);
            }
            *bytes.last_mut().expect("one") |= ((value >> bit & 1) as u8) << (count % 8);
            count += 1;
        }
    };
    // Width and height less one, no alpha, version 0; no transform, no cache of colours; groups of
    // tables, one for 512 pixels a side.
    [(255, 14), (255, 14), (0, 1), (0, 3), (0, 1), (0, 1), (1, 1), (7, 3)]
        .into_iter()
        .for_each(|(v, n)| put(v, n));
    // The one pixel that says which group: green and red are 255, without bits.
    put(0, 1);
    for symbol in [255, 255] {
        [(1, 1), (0, 1), (1, 1), (symbol, 8)].into_iter().for_each(|(v, n)| put(v, n));
    }
    for _ in 0..3 + 5 * 65_536 {
        [(1, 1), (0, 1), (0, 1), (0, 1)].into_iter().for_each(|(v, n)| put(v, n));
    }
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    let len = bytes.len() as u32;
    let (riff, chunk) = ((len + 12).to_le_bytes(), len.to_le_bytes());
    [&b"RIFF"[..], &riff, b"WEBP", b"VP8L", &chunk, &bytes].concat()
}

/// A picture that asks for more memory than any may have is refused like another; one that is
/// larger than what is looked at is made smaller; and nothing of it is left.
#[test]
fn pictures_are_seen_or_refused_one_by_one() {
    let folder = Folder::new();
    let greedy = folder.file("greedy.webp", greedy_webp());
    let picture = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        path.join("../../demo/vision/pictures").join(name)
    };
    let [good, other] = ["te_canon_056.png", "te_canon_026.png"].map(picture);
    let missing = folder.path().join("none.png");
    let pictures = [&good, &greedy, &good, &missing, &other, &greedy, &greedy, &good];
    let lines: Vec<String> = pictures
        .iter()
        .map(|path| format!("{{\"prompt\":\"what?\",\"images\":[{path:?}]}}"))
        .collect();
    for mode in ["serial", "phase-resident"] {
        let output = dctms("run")
            .arg(support::fixture("vision-lfm2-text-f16.gguf"))
            .arg("--mmproj")
            .arg(support::fixture("vision-lfm2-mmproj-f16.gguf"))
            .args("--lanes 2 --ignore-eos --max-input 400 --max-output 4 --max-image-size 160")
            .args("--max-source-size 256 --logits-sha --requests - --mode")
            .arg(mode)
            .input(lines.join("\n"))
            .run();
        assert_eq!(output.code(), 0, "{output:?}");
        let answers = answers(&output.stdout);
        assert_eq!(answers.len(), pictures.len(), "{output:?}");
        for (answer, path) in answers.iter().zip(pictures) {
            if path == &greedy || path == &missing {
                assert_eq!(answer["error"]["class"], "file", "{answer}");
                let message = answer["error"]["message"].as_str().expect("a message");
                let said = if path == &greedy { "planned for any picture" } else { "cannot read" };
                assert!(message.contains(said), "{message}");
                continue;
            }
            assert_eq!(answer["images"][0]["width"], 160, "{answer}");
            let same = if path == &good { 0 } else { 4 };
            assert_eq!(answer["logits_sha256"], answers[same]["logits_sha256"], "{answer}");
            assert!(answer["peak_bytes"].as_u64() <= answer["m_max_bytes"].as_u64(), "{answer}");
        }
        assert_ne!(answers[0]["logits_sha256"], answers[4]["logits_sha256"]);
    }
}

#[test]
fn what_does_not_go_with_requests_is_refused() {
    let folder = Folder::new();
    for (words, part) in [
        ("--requests - -p hello", "only one of"),
        ("--requests - --replan", "--replan"),
        ("--requests - --image a.png", "requests name their pictures"),
        ("--requests - --sequences 2", "--sequences"),
        ("-p hello --logits-sha", "--logits-sha is of --requests"),
        ("--requests /nowhere.jsonl", "--requests /nowhere.jsonl: No such file"),
        ("--requests /", "--requests /: is a folder: a file of lines is expected"),
    ] {
        serve(&folder).args(words).refused(USAGE, &[part]);
    }
}

/// Requests at every length of text, in one process: the peak stays below M_max, and nothing
/// anonymous grows.
#[test]
fn requests_stay_within_their_envelope() {
    let folder = Folder::new();
    let model = folder.file("m.gguf", tiny::llama(1 << 14).bytes());
    let words = "--lanes 2 --ignore-eos --max-input 8000 --max-output 4 --requests -";
    let mut running = dctms("run").arg(model).args(words).start_with_input();
    let mut sizes = Vec::new();
    for (count, bytes) in [1, 7000, 20_000, 64_000, 190_000, 3, 7000, 250_000].iter().enumerate() {
        let (word, text) = ("é\\\"n ", "x".repeat(bytes % 7));
        running.write(&format!("{{\"prompt\":\"{}{text}\"}}\n", word.repeat(bytes / 8)));
        running.wait_for_lines(count + 1);
        sizes.push(running.status_kib("RssAnon") + running.status_kib("VmSwap"));
    }
    let output = running.end();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(sizes.iter().all(|size| *size == sizes[0]), "{sizes:?}");
    let answers = answers(&output.stdout);
    let refused = answers.iter().filter(|answer| answer.get("error").is_some()).count();
    assert!(refused > 0 && refused < answers.len(), "{output:?}");
    let answered = answers.iter().find(|answer| answer.get("error").is_none()).expect("one");
    let bytes = |key: &str| answered[key].as_u64().expect("a number");
    assert!(bytes("peak_bytes") <= bytes("m_max_bytes"), "{answered}");
}

#[test]
fn an_interrupted_request_says_so() {
    let Some(model) = real_model(support::SMOLLM2) else { return };
    let words = "--max-input 2000 --max-output 200 --ignore-eos --requests -";
    let mut running = dctms("run").arg(model).args(words).start_with_input();
    running.write("{\"prompt\":\"hi\",\"max_tokens\":1}\n");
    running.wait_for_lines(1);
    running.write(&format!("{{\"prompt\":\"{}\"}}\n", "word ".repeat(1500)));
    std::thread::sleep(std::time::Duration::from_millis(300));
    running.signal(2);
    let output = running.end();
    assert_eq!(output.code(), 130, "{output:?}");
    let answers = answers(&output.stdout);
    assert_eq!(answers[1]["finish"], "cancelled", "{output:?}");
}

/// Input without an end is still left when a signal says so.
#[test]
fn a_line_without_an_end_can_be_stopped() {
    let folder = Folder::new();
    let running = serve(&folder).args("--requests /dev/zero").start();
    running.wait_until_it_catches(15);
    std::thread::sleep(std::time::Duration::from_millis(300));
    running.signal(15);
    let output = running.end();
    assert_eq!(output.code(), 130, "{output:?}");
}

/// A pipe with a name may be written to later: until then the process waits, and can be stopped.
#[test]
fn a_pipe_that_nobody_writes_to_can_be_stopped() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new();
    let path = folder.path().join("pipe");
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("a path");
    support::child::make_pipe(&name);
    let start = || {
        let running = serve(&folder).arg("--requests").arg(&path).start();
        running.wait_until_it_catches(2);
        std::thread::sleep(std::time::Duration::from_millis(200));
        running
    };
    for signal in [2, 15] {
        let running = start();
        running.signal(signal);
        let output = running.end();
        assert_eq!((output.code(), output.stdout.as_str()), (130, ""), "{output:?}");
    }
    // Who comes late is answered; then there is a result, and a signal is an end like another.
    for stopped in [true, false] {
        let mut running = start();
        let mut writer = std::fs::File::options().write(true).open(&path).expect("a reader");
        std::io::Write::write_all(&mut writer, b"{\"prompt\":\"hi\",\"id\":7}\n").expect("written");
        running.wait_for_lines(1);
        if stopped {
            std::thread::sleep(std::time::Duration::from_millis(200));
            running.signal(15);
        } else {
            drop(writer);
        }
        let output = running.end();
        assert_eq!(output.code(), 0, "{output:?}");
        assert_eq!(answers(&output.stdout)[0]["id"], 7, "{output:?}");
    }
}
