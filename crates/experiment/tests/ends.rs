//! Every way in which an experiment ends before it is done: signals in each phase, systems that are
//! silent or are killed, a neighbour that dies, a disk that is full. Nothing is left behind, and the
//! same command goes on.

mod support;

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use dctms_experiment::results::read_results;

use support::{ANSWER, Folder, calls, ended, experiment, wait};

/// Sends a signal with the tool that everybody has.
fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Whether a process is there and no zombie.
fn lives(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

/// Exit code of a child, which has to end soon.
fn code(child: &mut Child) -> Option<i32> {
    let mut status = None;
    wait("the experiment's end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

#[test]
fn systems_that_say_or_read_nothing_are_cut_off() {
    let folder = Folder::new("silent");
    let silent = format!("silent={}", folder.script("silent", ":"));
    // More than a pipe holds.
    let prompt = "x".repeat(300_000);
    let prompts = folder.0.join("prompts.json");
    let text = format!(r#"[{{"id": "P1", "category": "long", "prompt": "{prompt}"}}]"#);
    std::fs::write(&prompts, text).unwrap();
    let deaf = format!("deaf={}", folder.program("deaf", "exec sleep 60"));
    let floods = format!("floods={}", folder.program("floods", "exec tr '\\0' x < /dev/zero"));
    let out = folder.0.join("out");
    let words = [
        ["--adapter", &silent],
        ["--adapter", &deaf],
        ["--adapter", &floods],
        ["--prompts", prompts.to_str().unwrap()],
        ["--call-limit", "1"],
        ["--rounds", "2"],
    ]
    .concat();
    let start = Instant::now();
    let (code, said, why) = ended(&mut experiment(&out, &words));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(code, Some(1), "{said}");
    assert!(calls(&out).is_empty(), "{said}");
    assert!(why.contains("silent (thrashed: no answer in time)"), "{why}");
    assert!(why.contains("deaf (thrashed") && why.contains("floods ("), "{why}");
}

#[test]
fn an_answer_that_nobody_asked_for_is_not_taken_for_the_next() {
    let folder = Folder::new("twice");
    let answer = r#"printf '{"text": "yes"}\n{"text": "yes"}\n'"#;
    let twice = format!("twice={}", folder.script("twice", answer));
    let out = folder.0.join("out");
    ended(&mut experiment(&out, &["--adapter", &twice, "--rounds", "9"]));
    // Where the second comes late, it is found out at one of the next calls.
    let results = read_results(&out).unwrap();
    let twice = results.cells.iter().find(|cell| cell.system == "twice").unwrap();
    assert_eq!(twice.detail, "it answered before it was asked");
}

#[test]
fn a_signal_stops_it_in_every_phase_and_nothing_is_left() {
    let folder = Folder::new("signals");
    // A system that has a child of its own, and says its number.
    let pids = folder.0.join("pids");
    let family = format!("sleep 600 &\necho $! >> {0}; echo $$ >> {0}", pids.display());
    let slow = format!("{family}\nwhile read -r line; do sleep 0.2; {ANSWER}; done");
    let slow = format!("slow={}", folder.program("slow", &slow));
    let silent = format!("silent={}", folder.program("silent", &format!("{family}\nwait")));
    let burner = folder.program("burner", &format!("{family}\ncat > /dev/null"));
    let numbers = || -> Vec<String> {
        let text = std::fs::read_to_string(&pids).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    };
    let words = ["--rounds", "40", "--baseline", &burner, "--adapter", &slow];
    for (phase, name, more) in [
        ("starting", "INT", ["--adapter", &silent]),
        ("asking", "INT", ["--conditions", "none"]),
        ("disturbing", "TERM", ["--conditions", "burner"]),
    ] {
        let _ = std::fs::remove_file(&pids);
        let out = folder.0.join(phase);
        let words = [&words[..], &more].concat();
        let mut child = experiment(&out, &words).spawn().unwrap();
        let is_there = || match phase {
            "starting" => numbers().len() == 4,
            _ => !calls(&out).is_empty(),
        };
        wait(phase, is_there);
        let before = calls(&out).len();
        let start = Instant::now();
        signal(name, child.id());
        assert_eq!(code(&mut child), Some(130), "{phase}");
        assert!(start.elapsed() < Duration::from_secs(10), "{phase}: {:?}", start.elapsed());
        for pid in numbers() {
            wait("every process is gone", || !lives(&pid));
        }
        let results = read_results(&out).unwrap();
        assert!(results.calls.len() >= before && results.cells.is_empty(), "{phase}");
        assert!(!results.complete);
    }
    // It goes on.
    let out = folder.0.join("asking");
    let before = calls(&out);
    let more = [&words[..], &["--conditions", "none", "--rounds", "1"]].concat();
    assert_eq!(ended(&mut experiment(&out, &more)).0, Some(0));
    assert!(calls(&out).len() >= 5 && calls(&out)[..before.len()] == before);
    // One that was complete and is extended is not, until it is again.
    assert!(read_results(&out).unwrap().complete);
    let made = calls(&out).len();
    let more = [&words[..], &["--conditions", "none"]].concat();
    let mut child = experiment(&out, &more).spawn().unwrap();
    wait("a call more", || calls(&out).len() > made);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!read_results(&out).unwrap().complete);
}

#[test]
fn a_kill_leaves_no_system_behind_and_one_experiment_has_the_folder() {
    let folder = Folder::new("kill");
    let pids = folder.0.join("pids");
    // It reads one request only, so that its input's end would not end it.
    let stays = format!("read -r line\necho $$ > {}\n{ANSWER}\nexec sleep 600", pids.display());
    let stays = format!("stays={}", folder.program("stays", &stays));
    let out = folder.0.join("out");
    let mut child = experiment(&out, &["--adapter", &stays]).spawn().unwrap();
    let number = || std::fs::read_to_string(&pids).unwrap_or_default().trim().to_string();
    wait("the system is there", || !number().is_empty());
    // Whatever measures is refused on the same machine, in whichever folder.
    let other = folder.0.join("other");
    let envelope = ["--envelope", "--dctms", "/bin/true"];
    for (out, words) in [(&out, &["--adapter", &stays][..]), (&other, &["--adapter", &stays])]
        .into_iter()
        .chain([(&other, &envelope[..])])
    {
        let (code, _, why) = ended(&mut experiment(out, words));
        assert!(code == Some(64) && why.contains("is running on this machine"), "{why}");
    }
    // On another one, as far as it can be seen, the folder is still taken.
    let mut elsewhere = experiment(&out, &["--adapter", &stays]);
    let (code, _, why) = ended(elsewhere.env("TMPDIR", &other));
    assert!(code == Some(64) && why.contains("another experiment writes there"), "{why}");
    // A report measures nothing.
    let (code, _, why) = ended(&mut experiment(&out, &["--adapter", &stays, "--report-only"]));
    assert!(code == Some(1) && why.contains("there is no call"), "{why}");
    assert!(lives(&number()));
    child.kill().unwrap();
    child.wait().unwrap();
    wait("the system is gone", || !lives(&number()));
}

#[test]
fn a_killed_system_is_a_result_and_the_others_go_on() {
    let folder = Folder::new("killed");
    let fine = format!("fine={}", folder.script("fine", ANSWER));
    let dies = folder.script("dies", &format!("[ $n -gt 3 ] && kill -9 $$\n{ANSWER}"));
    let dies = format!("dies={dies}");
    let out = folder.0.join("out");
    let words = ["--adapter", &dies, "--adapter", &fine, "--rounds", "2"];
    assert_eq!(ended(&mut experiment(&out, &words)).0, Some(0));
    let results = read_results(&out).unwrap();
    assert_eq!(results.cells.len(), 1);
    assert!(results.cells[0].detail.contains("signal: 9"), "{:?}", results.cells);
    let count = |name: &str| results.calls.iter().filter(|call| call.system == name).count();
    assert_eq!((count("dies"), count("fine")), (2, 10));
}

#[test]
fn without_its_neighbour_no_call_counts() {
    let folder = Folder::new("neighbour");
    let fine = format!("fine={}", folder.script("fine", &format!("sleep 0.1\n{ANSWER}")));
    let out = folder.0.join("out");
    // The same program both times: calls are of one build. It stays when it is told to.
    let told = folder.0.join("told");
    let stays = format!("[ -f {} ] && exec cat > /dev/null", told.display());
    let dies = format!("{stays}\nsleep 0.4; echo 'no such file' >&2; exit 5");
    let dies = folder.program("dies", &dies);
    let words = ["--adapter", &fine, "--rounds", "2", "--conditions", "burner", "--baseline"];
    let (code, said, why) = ended(&mut experiment(&out, &[&words[..], &[&dies]].concat()));
    let made = calls(&out).len();
    assert!(made < 10, "{said}");
    assert!(why.contains("the neighbour ended: exit status: 5: no such file"), "{why}");
    assert_eq!(code, Some(if made == 0 { 1 } else { 0 }));
    // What could not be tried is tried again without being asked.
    std::fs::write(&told, "").unwrap();
    let (code, said, _) = ended(&mut experiment(&out, &[&words[..], &[&dies]].concat()));
    assert!(code == Some(0) && said.contains("10 calls, complete"), "{said}");
}

#[test]
fn a_quick_look_sees_every_condition() {
    let folder = Folder::new("shares");
    let slow = format!("slow={}", folder.script("slow", &format!("sleep 0.15\n{ANSWER}")));
    let stays = folder.program("stays", "cat > /dev/null");
    let out = folder.0.join("out");
    let words = ["--quick", "--adapter", &slow, "--baseline", &stays, "--deadline", "3"];
    let words = [&words[..], &["--conditions", "none,burner", "--rounds", "20"]].concat();
    let start = Instant::now();
    let (code, said, _) = ended(&mut experiment(&out, &words));
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(code == Some(0) && said.contains("not complete"), "{said}");
    for condition in ["none", "burner"] {
        let count = calls(&out).iter().filter(|call| call.condition == condition).count();
        assert!(count > 1, "{condition}: {count}");
    }
}

#[test]
fn folders_that_cannot_be_written_and_models_that_cannot_be_compiled_are_errors() {
    let folder = Folder::new("refusals");
    let fine = format!("fine={}", folder.script("fine", ANSWER));
    let file = folder.0.join("file");
    std::fs::write(&file, "").unwrap();
    for out in [file.clone(), file.join("below"), Path::new("/proc/nothing").to_path_buf()] {
        let (code, _, why) = ended(&mut experiment(&out, &["--adapter", &fine]));
        assert!(code == Some(1) && why.contains(out.to_str().unwrap()), "{code:?} {why}");
    }
    let (code, _, why) = ended(&mut experiment(&folder.0, &["--adapter", "dctms=x"]));
    assert!(code == Some(64) && why.contains("comes with"), "{why}");
    let absent = folder.0.join("absent");
    let (code, _, why) = ended(&mut experiment(&absent, &["--report-only", "--adapter", "a=b"]));
    assert!(code == Some(64) && why.contains("no calls.csv") && !absent.exists(), "{why}");
    let product = folder.program("product", "echo 'tensor blk.0 is cut off' >&2; exit 2");
    let out = folder.0.join("out");
    let words = ["--systems", "dynamic", "--dctms", &product, "--baseline", &product];
    let (code, _, why) = ended(&mut experiment(&out, &words));
    assert!(code == Some(2) && why.contains("tensor blk.0 is cut off"), "{code:?} {why}");
}

#[test]
fn a_full_disk_is_told_and_gone_on_from() {
    let folder = Folder::new("full");
    let disk = folder.0.join("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(&disk)
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        eprintln!("skipped: a_full_disk_is_told_and_gone_on_from: no root to mount a small disk");
        return;
    }
    let fine = format!("fine={}", folder.script("fine", ANSWER));
    let words = ["--adapter", &fine, "--rounds", "200"];
    let out = disk.join("out");
    let (code, _, why) = ended(&mut experiment(&out, &words));
    let grown = Command::new("mount")
        .args(["-o", "remount,size=64m"])
        .arg(&disk)
        .status()
        .is_ok_and(|status| status.success());
    let before = calls(&out);
    let again = ended(&mut experiment(&out, &words));
    let after = calls(&out);
    let _ = Command::new("umount").arg(&disk).status();
    assert!(code == Some(1) && why.contains("No space left"), "{code:?} {why}");
    assert!(grown && !before.is_empty() && before.len() < 1000, "{}", before.len());
    assert_eq!(again.0, Some(0), "{}", again.2);
    assert_eq!((after.len(), &after[..before.len()]), (1000, &before[..]));
}
