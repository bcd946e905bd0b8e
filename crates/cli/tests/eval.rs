//! `dctms eval` as a child process: one value on standard output whatever the plan, the envelope
//! kept with the text counted in it, and refusals.

mod support;

use support::child::Child;
use support::{DOES_NOT_FIT, FILE, Folder, USAGE, dctms, fixture};

/// An evaluation of a tiny model on the first so many bytes of the fixtures' text.
fn eval(folder: &Folder, text_bytes: usize, words: &str) -> Child {
    let text = std::fs::read(fixture("alice.txt")).expect("the text");
    let text = folder.file("text", &text[..text_bytes]);
    let model = fixture("gemma3-f16.gguf");
    dctms("eval").arg(model).arg("--perplexity").arg(text).args("--ctx-size 64").args(words)
}

#[test]
fn the_same_value_for_every_plan_and_nothing_else_on_standard_output() {
    let folder = Folder::new();
    let expected = eval(&folder, 4000, "").run();
    assert_eq!(expected.code(), 0, "{expected:?}");
    let value =
        expected.stdout.strip_prefix("perplexity ").and_then(|rest| rest.strip_suffix('\n'));
    assert!(value.is_some_and(|value| value.parse::<f64>().is_ok()), "{expected:?}");
    assert!(expected.stderr.contains("±"), "{expected:?}");
    for words in ["--lanes 1 --prefill-chunk 1", "--lanes 3 --prefill-chunk 48", "--isa scalar"] {
        assert_eq!(eval(&folder, 4000, words).run().stdout, expected.stdout, "{words}");
    }
}

#[test]
fn the_envelope_holds_a_long_text() {
    let folder = Folder::new();
    let output = eval(&folder, 60_000, "--json").json();
    let peak = output.integer("peak_bytes");
    let m_max = output.integer("m_max_bytes");
    assert!(peak <= m_max, "{peak} of {m_max}");
    assert!(output.integer("heap_peak_bytes") <= output.integer("heap_bytes"));
    assert_eq!(output.integer("allocations"), 0);
    assert_eq!(output.integer("chunks"), output.integer("tokens") / 64);
    assert_eq!(output.integer("predictions"), 31 * output.integer("chunks"));
}

#[test]
fn refusals() {
    let folder = Folder::new();
    eval(&folder, 10, "").refused(USAGE, &["less than a chunk of 64"]);
    eval(&folder, 4000, "--ctx-size 2").refused(USAGE, &["--ctx-size 2"]);
    eval(&folder, 4000, "--prefill-chunk 2000").refused(USAGE, &["--prefill-chunk 2000"]);
    eval(&folder, 4000, "--fly").refused(USAGE, &["unknown option --fly"]);
    eval(&folder, 4000, "--memory-limit 1M").refused(DOES_NOT_FIT, &["does not fit"]);
    let model = fixture("llama-f16.gguf");
    dctms("eval").arg(&model).refused(USAGE, &["--perplexity FILE"]);
    dctms("eval --perplexity /no/such/text").arg(&model).refused(USAGE, &["/no/such/text"]);
    let text = fixture("alice.txt");
    dctms("eval").arg(&text).arg("--perplexity").arg(&text).refused(FILE, &["GGUF"]);
}

/// What came of a part of the text is no figure of the text.
#[test]
fn ctrl_c_gives_no_figure() {
    let folder = Folder::new();
    for words in ["", "--json"] {
        let text = std::fs::read_to_string(fixture("alice.txt")).expect("the text");
        let text = folder.file("text", text.repeat(20));
        let child = dctms("eval").arg(fixture("gemma3-f16.gguf")).arg("--perplexity").arg(text);
        let running = child.args("--ctx-size 64").args(words).start();
        running.wait_until_it_catches(libc::SIGINT);
        std::thread::sleep(std::time::Duration::from_millis(100));
        running.signal(libc::SIGINT);
        let output = running.end();
        assert_eq!(output.code(), 130, "{output:?}");
        assert!(output.stderr.contains("interrupted after"), "{output:?}");
        assert!(!output.stdout.contains("perplexity "), "{output:?}");
        if !words.is_empty() {
            let report: serde_json::Value = serde_json::from_str(&output.stdout).expect("JSON");
            assert_eq!(report["complete"], false, "{report}");
        }
    }
}
