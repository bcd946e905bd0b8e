//! Conversations: they can be planned for, keep to their envelope whatever is said, and fail by
//! name.

mod support;

use serde_json::Value;
use support::child::{Child, Output};
use support::{DOES_NOT_FIT, FILE, Folder, USAGE, dctms, fixture, real_model, tiny};

const KEY: &str = "tokenizer.chat_template";

fn chat(folder: &Folder, template: &str, context: u32) -> Child {
    let model = tiny::llama(context).set_text(KEY, template);
    dctms("run").arg(folder.file("m.gguf", model.bytes())).args("--ignore-eos --lanes 2")
}

/// The plan that is printed.
#[track_caller]
fn planned(child: Child) -> Value {
    let output = child.arg("--json").run();
    assert_eq!(output.code(), 0, "{output:?}");
    serde_json::from_str(&output.stdout).expect("a plan")
}

fn total_bytes(plan: &Value) -> u64 {
    plan["envelope"]["total"].as_u64().expect("a total")
}

/// What `plan` says of M_max, and what a run says, both in MiB to one decimal.
#[track_caller]
fn announced(output: &Output) -> &str {
    let line = output.stderr.lines().find(|line| line.contains("M_max")).expect("announced");
    line.split(' ').nth(2).expect("a number")
}

#[test]
fn a_conversation_can_be_planned_for() {
    let folder = Folder::new();
    let model = folder.file("long.gguf", tiny::llama(1 << 16).bytes());
    for words in ["--max-input 2048", "--max-input 60000 --lanes 1", "--max-input 100 --replan"] {
        let plan = planned(dctms("plan --chat").arg(&model).args(words));
        let total = total_bytes(&plan);
        let output = dctms("run").arg(&model).args(words).input("").run();
        assert_eq!(output.code(), 0, "{output:?}");
        let mebibytes = format!("{:.1}", total as f64 / f64::from(1 << 20));
        assert_eq!(announced(&output), mebibytes, "{words}");
        // What `--fit` finds for so much is no less.
        let limits = words.replace("--max-input 2048", "").replace("--max-input 60000", "");
        if !words.contains("100") {
            let child = dctms(&format!("plan --chat --fit {total}")).arg(&model).args(&limits);
            let bound = |plan: &Value| plan["bounds"]["max_input_tokens"].as_u64().expect("one");
            assert!(bound(&planned(child)) >= bound(&plan), "{words}");
        }
    }
    dctms("plan --replan").arg(&model).refused(USAGE, &["--replan", "--chat"]);
}

#[test]
fn one_that_does_not_fit_is_refused_with_what_would() {
    // Of a tiny model, planning itself takes more than any context.
    let Some(model) = real_model(support::SMOLLM2) else { return };
    let words = "--max-input 2048 --max-output 16 --memory-limit 120M";
    let refused = dctms("run").arg(&model).args(words).input("hello\n");
    let output = refused.refused(DOES_NOT_FIT, &["bytes short", "fits:", "--max-input "]);
    let line = output.stderr.lines().find(|line| line.starts_with("  --max-input")).expect("one");
    let advice: Vec<&str> = line.split_whitespace().take(4).collect();
    let words = format!("{} --memory-limit 120M -n 2", advice.join(" "));
    let output = dctms("run").arg(&model).args(&words).input("hello\n").run();
    assert_eq!(output.code(), 0, "{output:?}");
    // A bound that nobody asked for shrinks, and it is said.
    let output = dctms("run --memory-limit 120M -n 2").arg(&model).input("").run();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(output.stderr.contains("input capped at"), "{output:?}");
}

#[test]
fn an_output_that_cannot_be_written_fails_it() {
    let script = "echo hello | \"$1\" run \"$2\" -n 4 --ignore-eos >/dev/full";
    let output = std::process::Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_dctms")])
        .arg(fixture("llama-f16.gguf"))
        .output()
        .expect("a shell");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no space left"), "{output:?}");
}

/// Templates that show little of what was said: the caches never fill, but the texts do. They are
/// refused by name, before the heap's limit is reached.
#[test]
fn texts_that_the_context_never_sees_are_bounded() {
    let folder = Folder::new();
    let last = "{{ messages[-1].content[:4] }}";
    let none = "x{% for message in messages %}{% endfor %}";
    let long = format!("{}\n", "many words ".repeat(30));
    for (template, line) in [(last, "a\n"), (last, long.as_str()), (none, "a\n")] {
        for words in ["--max-input 200 -n 2", "--max-input 100 -n 2 --replan"] {
            let input = line.repeat(600);
            let output = chat(&folder, template, 1024).args(words).input(input).run();
            assert_eq!(output.code(), 0, "{words}: {output:?}");
            assert!(output.stderr.contains("the plan holds"), "{words}: {output:?}");
            assert!(!output.stderr.contains("heap"), "{words}: {output:?}");
        }
    }
}

/// The template engine's bound on work is met by long conversations of short turns: the turn is
/// refused, not the file.
#[test]
fn a_template_that_works_too_much_refuses_the_turn() {
    let folder = Folder::new();
    let busy = "{% for m in messages %}{% for n in messages %}{% set x = n.content ~ m.role %}\
                {% endfor %}{{ m.content }}{% endfor %}";
    let input = "hello\n".repeat(200);
    let output = chat(&folder, busy, 1 << 14).args("--max-input 16000 -n 2").input(input).run();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(output.stderr.contains("units of work"), "{output:?}");
}

/// A conversation at the very bounds of its plan: every position is used, and the peak stays
/// below M_max.
#[test]
fn a_conversation_fills_its_context() {
    let folder = Folder::new();
    let model = folder.file("m.gguf", tiny::llama(1 << 14).bytes());
    let words = "--max-input 8000 -n 16 --ignore-eos --lanes 2";
    let mut running = dctms("run").arg(&model).args(words).start_with_input();
    running.write(&"tell me all that there is to tell of it, and a little more\n".repeat(400));
    running.close_input();
    running.wait_for_lines(2);
    let output = running.end();
    assert_eq!(output.code(), 0, "{output:?}");
    let refused = ["positions are left", "the plan holds"];
    assert!(refused.iter().any(|text| output.stderr.contains(text)), "{output:?}");
    let m_max_mib: f64 = announced(&output).parse().expect("a number");
    let peak_mib = output.peak_bytes as f64 / f64::from(1 << 20);
    let own_mib = support::child::own_peak_bytes() as f64 / f64::from(1 << 20);
    assert!(peak_mib <= (m_max_mib + 0.05).max(own_mib), "{peak_mib} of {m_max_mib}: {output:?}");
}

/// Generations of a real model in one process: nothing anonymous grows by a page.
/// `DCTMS_SOAK_TURNS` sets how many (1,000 for the record).
#[test]
fn a_real_conversation_stays_flat() {
    let Some(model) = real_model(support::SMOLLM2) else { return };
    let turns = std::env::var("DCTMS_SOAK_TURNS").ok().and_then(|text| text.parse().ok());
    let turns: usize = turns.unwrap_or(12);
    let words = "--max-input 7000 --max-output 4 -n 4 --ignore-eos";
    let mut running = dctms("run").arg(model).args(words).start_with_input();
    let mut sizes = Vec::new();
    for turn in 1..=turns {
        running.write(&format!("hi {turn}\n"));
        running.wait_for_lines(turn);
        sizes.push(running.status_kib("RssAnon") + running.status_kib("VmSwap"));
    }
    let output = running.end();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(sizes.iter().all(|size| *size == sizes[0]), "{sizes:?}");
}

/// Values that a template nests while it runs can be deeper than any stack: the defect is named,
/// for a prompt and in a conversation.
#[test]
fn a_template_that_nests_beyond_the_stack_is_a_defect_of_its_file() {
    let folder = Folder::new();
    let nest = "{% set ns = namespace(x=[]) %}{% for i in range(9000) %}{% set ns.x = [ns.x] %}\
                {% endfor %}";
    let straight = "{%set a=[]%}".to_string() + &"{%set a=[a]%}".repeat(4500);
    for (template, end) in [(nest, "{{ ns.x }}"), (nest, ""), (&straight, "{{ a }}")] {
        let template = format!("{template}{end}{{{{ messages[0].content }}}}");
        for child in [
            chat(&folder, &template, 512).args("-n 2 -p hello"),
            chat(&folder, &template, 512).args("-n 2").input("hello\n"),
        ] {
            let output = child.run();
            assert!(!output.stderr.contains("panicked"), "{output:?}");
            match output.code() {
                0 => {}
                code => {
                    assert_eq!(code, FILE, "{output:?}");
                    assert!(output.stderr.contains("chat template"), "{output:?}");
                }
            }
        }
    }
    let template = format!("{nest}{{{{ ns.x }}}}");
    let output = chat(&folder, &template, 512).args("-n 2 -p hello").run();
    assert!(output.stderr.contains("deeper than the stack"), "{output:?}");
}

/// After `/reset` the first question gets its first answer again, in a context that is as free.
#[test]
fn a_conversation_begins_anew() {
    let folder = Folder::new();
    let words = "--max-input 120 -n 4";
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}";
    let input = "hello you\nmore\n/reset\n".repeat(20);
    let output = chat(&folder, template, 1024).args(words).input(input).run();
    assert_eq!(output.code(), 0, "{output:?}");
    assert_eq!(output.stderr.matches("begins anew").count(), 20, "{output:?}");
    assert!(!output.stderr.contains("positions are left"), "{output:?}");
    let alone = chat(&folder, template, 1024).args(words).input("hello you\nmore\n").run();
    assert_eq!(output.stdout, alone.stdout.repeat(20), "{output:?}");
}
