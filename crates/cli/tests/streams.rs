//! Standard streams and signals: what goes where, and how a run ends when nobody reads, nobody
//! writes, or somebody asks it to stop. And the soak test: nothing grows.
//!
//! `DCTMS_SOAK_TURNS` sets the generations of the soak test (1,000 for the record).

mod support;

use std::time::{Duration, Instant};

use support::child::{Child, Output};
use support::{Folder, dctms, fixture, tiny};

/// A run that would go on for minutes.
fn endless(folder: &Folder) -> Child {
    let model = folder.file("long.gguf", tiny::llama(1 << 16).bytes());
    dctms("run").arg(model).args("-p hello --ignore-eos -n 60000 --lanes 2")
}

/// How soon a run must end, on a busy machine.
const SOON: Duration = Duration::from_secs(5);

#[track_caller]
fn ended(output: &Output, since: Instant) {
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    assert!(!output.stderr.contains("panicked"), "{output:?}");
}

#[test]
fn standard_output_has_the_text_alone() {
    let words = "-n 12 --ignore-eos";
    let child = || dctms("run").arg(fixture("llama-f16.gguf")).args("-p hello").args(words);
    let report = child().json();
    let text = report.value["text"].as_str().expect("a text");
    let plain = child().run();
    assert_eq!(plain.code(), 0, "{plain:?}");
    assert_eq!(plain.stdout, format!("{text}\n"));
    assert!(plain.stderr.contains("M_max"), "{plain:?}");
    assert!(!plain.stderr.contains('\r'), "a progress bar on a pipe: {plain:?}");
    for key in [
        "text",
        "prompt_tokens",
        "decode_tokens",
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "ttft_ms",
        "step_ms",
        "peak_bytes",
        "m_max_bytes",
        "heap_peak_bytes",
        "minor_faults",
        "major_faults",
        "allocations",
        "logits_sha256",
    ] {
        assert!(!report.value[key].is_null(), "{key}: {}", report.value);
    }
    for key in ["p50", "p99", "max"] {
        assert!(report.value["step_ms"][key].is_number(), "{key}: {}", report.value);
    }
    // Stop texts are not shown; random numbers follow the seed.
    let random = |seed: &str| {
        let words = format!("-n 40 --ignore-eos --temp 1.5 --seed {seed}");
        let output =
            dctms("run").arg(fixture("llama-f16.gguf")).args("-p hello").args(&words).run();
        assert_eq!(output.code(), 0, "{output:?}");
        output.stdout
    };
    assert_eq!(random("7"), random("7"));
    assert_ne!(random("7"), random("8"));
    assert_eq!(random("18446744073709551615"), random("18446744073709551615"));
}

#[test]
fn a_reader_that_goes_away_ends_the_run() {
    let folder = Folder::new();
    let mut running = endless(&folder).start();
    running.wait_for_bytes(16);
    running.close_output();
    let since = Instant::now();
    let output = running.end();
    ended(&output, since);
    assert_eq!(output.code(), 0, "{output:?}");
}

#[test]
fn streams_that_are_closed_from_the_start() {
    let model = fixture("llama-f16.gguf");
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"] {
        for words in ["-p hello -n 4", "-p hello -n 4 --json", "-p hello --fly", ""] {
            let script = format!("\"$1\" run \"$2\" {words} {closed}");
            let output = std::process::Command::new("sh")
                .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_dctms")])
                .arg(&model)
                .stdin(std::process::Stdio::null())
                .output()
                .expect("a shell");
            let code = output.status.code().unwrap_or(-1);
            assert!([0, 1, 64].contains(&code), "{script}: {output:?}");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!errors.contains("panicked"), "{script}: {errors}");
        }
    }
}

#[test]
fn ctrl_c_ends_the_run_within_a_step() {
    let folder = Folder::new();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut running = endless(&folder).start();
        running.wait_for_bytes(16);
        let since = Instant::now();
        running.signal(signal);
        let output = running.end();
        ended(&output, since);
        assert_eq!(output.code(), 0, "{output:?}");
    }
    // The report of what there is.
    let running = endless(&folder).arg("--json").start();
    running.wait_until_it_catches(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    running.signal(libc::SIGINT);
    let output = running.end();
    let report: serde_json::Value = serde_json::from_str(&output.stdout).expect("a report");
    assert_eq!(report["finish"], "cancelled", "{output:?}");
}

#[test]
fn a_conversation_ends_with_its_input() {
    let chat = || dctms("run").arg(fixture("llama-f16.gguf")).args("-n 8 --max-input 120");
    for input in ["", "\n\n", "   \n"] {
        let output = chat().input(input).run();
        assert_eq!((output.code(), output.stdout.as_str()), (0, ""), "{output:?}");
    }
    // The last line need not end.
    let output = chat().input("hello").run();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(output.stdout.ends_with('\n'), "{output:?}");
    // A line that is no text is refused, and the conversation goes on.
    let output = chat().input(b"caf\xe9\nhello\n").run();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(output.stderr.contains("not UTF-8") && output.stdout.len() > 1, "{output:?}");
    // A turn that is too long is refused, and the conversation goes on.
    let long = "word ".repeat(200);
    let output = chat().input(format!("{long}\nhello\n")).run();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(output.stderr.contains("positions") || output.stderr.contains("plan holds"));
    // So is a line that never ends.
    let output = chat().input("x".repeat(8 << 20)).run();
    assert_eq!((output.code(), output.stdout.as_str()), (0, ""), "{output:?}");
    assert!(output.stderr.contains("8388608 bytes, at most"), "{output:?}");
    // Ctrl-C while it waits ends it, though its input stays open.
    let mut running = chat().start_with_input();
    running.write("hello\n");
    running.wait_for_lines(1);
    std::thread::sleep(Duration::from_millis(100));
    let since = Instant::now();
    running.signal(libc::SIGINT);
    let output = running.end_with_input_open();
    ended(&output, since);
    assert_eq!(output.code(), 0, "{output:?}");
}

/// While nothing is generated there is nothing to finish: a signal ends the process, even where it
/// waits for a file.
#[test]
fn ctrl_c_ends_a_run_that_waits_for_its_prompt() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new();
    let path = folder.path().join("pipe");
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("a path");
    support::child::make_pipe(&name);
    let child = dctms("run").arg(fixture("llama-f16.gguf")).arg("-f").arg(&path).args("-n 2");
    let running = child.start();
    std::thread::sleep(Duration::from_millis(200));
    let since = Instant::now();
    running.signal(libc::SIGINT);
    let output = running.end();
    ended(&output, since);
    assert_eq!((output.status.code(), output.stdout.as_str()), (None, ""), "{output:?}");
}

/// The last M_max that a conversation announced, rounded up as it may have been rounded down.
fn said_m_max_mib(output: &Output) -> f64 {
    let line = output.stderr.lines().rfind(|line| line.contains("M_max")).expect("announced");
    let mut words = line.split(' ').skip_while(|word| *word != "M_max").skip(1);
    let first: f64 = words.next().and_then(|word| word.parse().ok()).expect("a number");
    match (words.next(), words.next().and_then(|word| word.parse::<f64>().ok())) {
        (Some("→"), Some(second)) => first.max(second) + 0.05,
        _ => first + 0.05,
    }
}

/// A conversation that outgrows its plan gets a new one, inside the new plan's envelope.
#[test]
fn a_conversation_grows_inside_its_envelope() {
    let folder = Folder::new();
    let model = folder.file("m.gguf", tiny::llama(1 << 12).bytes());
    let words = "-n 16 --ignore-eos --max-input 64 --lanes 2 --replan";
    let mut running = dctms("run").arg(&model).args(words).start_with_input();
    for turn in 1..=12 {
        running.write("tell me more of it, please\n");
        running.wait_for_lines(turn);
    }
    let peak_mib = running.status_kib("VmHWM") as f64 / 1024.0;
    let output = running.end();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(output.stderr.contains("new plan: "), "{output:?}");
    let m_max_mib = said_m_max_mib(&output);
    assert!(peak_mib <= m_max_mib, "peak {peak_mib:.2} MiB of {m_max_mib:.2}: {output:?}");
    // The same conversation in a plan that was large enough from the start.
    let words = "-n 16 --ignore-eos --max-input 2048 --lanes 2";
    let whole = dctms("run").arg(&model).args(words);
    let whole = whole.input("tell me more of it, please\n".repeat(12)).run();
    assert_eq!(whole.stdout, output.stdout);
}

/// Many generations in one process: what is resident and anonymous does not grow.
#[test]
fn nothing_grows_over_many_generations() {
    let turns = std::env::var("DCTMS_SOAK_TURNS").ok().and_then(|text| text.parse().ok());
    let turns: usize = turns.unwrap_or(60);
    let folder = Folder::new();
    let model = folder.file("m.gguf", tiny::llama(1 << 16).bytes());
    let words = "-n 4 --ignore-eos --max-input 60000 --lanes 2";
    let mut running = dctms("run").arg(model).args(words).start_with_input();
    let mut sizes = Vec::new();
    for turn in 1..=turns {
        running.write("hello\n");
        running.wait_for_lines(turn);
        sizes.push(running.status_kib("RssAnon") + running.status_kib("VmSwap"));
    }
    let peak_mib = running.status_kib("VmHWM") as f64 / 1024.0;
    let output = running.end();
    assert_eq!(output.code(), 0, "{output:?}");
    let m_max_mib = said_m_max_mib(&output);
    assert!(peak_mib <= m_max_mib, "peak {peak_mib:.2} MiB of {m_max_mib:.2}");
    // The first turns may touch what later ones use again.
    let settled = &sizes[turns / 4..];
    assert_eq!(settled.first(), settled.last(), "{sizes:?}");
}
