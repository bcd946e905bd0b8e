//! Wrong words on the command line: each is refused with exit code 64, nothing on standard
//! output, and a message that names the word and what is accepted.

mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use support::child::{Child, Output};
use support::{FILE, Folder, USAGE, dctms, fixture, tiny};

/// A run of a tiny model on a few ids, with further words.
fn run(folder: &Folder, words: &str) -> Child {
    let ids = folder.ids("ids", 5, tiny::VOCABULARY);
    dctms("run").arg(fixture("llama-f16.gguf")).arg("--prompt-ids").arg(ids).args(words)
}

#[test]
fn commands() {
    dctms("").refused(USAGE, &["dctms run", "Exit codes"]);
    dctms("fly").refused(USAGE, &["unknown command fly", "dctms help"]);
    dctms("--fly").refused(USAGE, &["unknown option --fly"]);
    dctms("-x run").refused(USAGE, &["unknown option -x"]);
    for words in ["help", "--help", "-h"] {
        let output = dctms(words).run();
        assert_eq!((output.code(), output.stderr.as_str()), (0, ""));
        for line in ["dctms run", "0 done", "2 a defect", "3 does not fit", "4 over", "64 usage"] {
            assert!(output.stdout.contains(line), "{line}");
        }
    }
    for command in ["run", "plan", "eval", "bench", "verify", "inspect", "pack", "synth", "compile"]
    {
        for words in
            [format!("{command} --help"), format!("{command} -h x"), format!("help {command}")]
        {
            let output = dctms(&words).run();
            assert_eq!((output.code(), output.stderr.as_str()), (0, ""), "{words}");
            assert!(output.stdout.starts_with(&format!("dctms {command}")), "{output:?}");
        }
    }
    // The value of an option is not an option.
    dctms("run -p --help /no/such").refused(FILE, &["No such file"]);
    dctms("help fly").refused(USAGE, &["unknown command fly"]);
    for words in ["version", "--version", "-V"] {
        let output = dctms(words).run();
        assert_eq!(output.code(), 0);
        assert_eq!(output.stdout, format!("dctms {}\n", env!("CARGO_PKG_VERSION")));
    }
    dctms("").arg(OsStr::from_bytes(b"\xff\xfe")).refused(USAGE, &["unknown command"]);
}

#[test]
fn options_of_run() {
    let folder = Folder::new();
    let wrong = |words: &str, texts: &[&str]| {
        run(&folder, words).refused(USAGE, texts);
    };
    wrong("--fly", &["unknown option --fly"]);
    wrong("-x", &["unknown option -x"]);
    wrong("-n", &["missing argument", "-n"]);
    wrong("--temp", &["missing argument", "--temp"]);
    wrong("more", &["unexpected argument more"]);
    wrong("--json=3", &["unexpected argument", "--json"]);
    wrong("-n x", &["-n x: a whole number"]);
    wrong("-n -1", &["-n -1: a whole number"]);
    wrong("-n 99999999999999999999", &["99999999999999999999: a whole number"]);
    wrong("-p hello", &["only one of"]);
    for value in ["NaN", "inf", "-inf", "-1", "x", "1e40", "101"] {
        wrong(&format!("--temp={value}"), &[&format!("--temp {value}: a number from 0 to 100")]);
    }
    for option in ["--top-p", "--min-p"] {
        wrong(&format!("{option}=1.5"), &[option, "from 0 to 1"]);
        wrong(&format!("{option}=NaN"), &[option, "from 0 to 1"]);
    }
    wrong("--repeat-penalty 0", &["--repeat-penalty 0", "0.01 to 100"]);
    wrong("--top-k -3", &["--top-k -3", "whole number"]);
    wrong("--seed 1.5", &["--seed 1.5", "whole number"]);
    for value in ["0", "65", "4294967297"] {
        wrong(&format!("--lanes {value}"), &[&format!("--lanes {value}: 1 to 64")]);
        wrong(&format!("--sequences {value}"), &[&format!("--sequences {value}: 1 to 64")]);
    }
    wrong("--prefill-chunk 0", &["--prefill-chunk 0: 1 to 65536"]);
    wrong("--isa neon", &["--isa neon: scalar, avx2, avx512 or amx"]);
    wrong("--kv-type q4", &["--kv-type q4: f16, f32 or q8_0"]);
    wrong("--activations q4", &["--activations q4: q8 or f32"]);
    for value in ["", "M", "1.5G", "-1", "12X", "18446744073709551615K"] {
        let refused = run(&folder, "--memory-limit").arg(value);
        refused.refused(USAGE, &["--memory-limit", "bytes are expected"]);
    }
    for option in ["--json", "--raw"] {
        let child = dctms("run").arg(fixture("llama-f16.gguf")).arg(option);
        child.refused(USAGE, &[option, "a prompt is needed"]);
    }
    for words in ["--raw -p x", "--prompt-ids x"] {
        let child = dctms("run --system be-brief").arg(fixture("llama-f16.gguf")).args(words);
        child.refused(USAGE, &["--system: there is no chat template"]);
    }
    run(&folder, "--stop").arg("").refused(USAGE, &["--stop: 0 bytes, expected 1 to 256"]);
    let long = "x".repeat(257);
    run(&folder, "--stop").arg(long).refused(USAGE, &["--stop: 257 bytes, expected 1 to 256"]);
}

#[test]
fn bounds_of_zero() {
    let folder = Folder::new();
    for option in ["--max-input", "--max-output", "-n"] {
        let said = format!("dctms: {option} 0: 1 to");
        run(&folder, &format!("{option} 0")).refused(USAGE, &[&said]);
    }
}

#[test]
fn words_that_are_no_text() {
    let folder = Folder::new();
    let bytes = OsStr::from_bytes(b"caf\xe9");
    for option in ["-p", "--system", "--stop", "--temp", "-n"] {
        let words = dctms("run").arg(fixture("llama-f16.gguf")).arg(option).arg(bytes);
        words.refused(USAGE, &[option, "UTF-8"]);
    }
    // A path need not be text.
    dctms("run").arg(bytes).args("-p x").refused(FILE, &["No such file"]);
    let path = folder.path().join(bytes);
    std::fs::copy(fixture("llama-f16.gguf"), &path).expect("a copy");
    let output = dctms("run").arg(path).args("-p hello -n 2").run();
    assert_eq!(output.code(), 0, "{output:?}");
}

#[test]
fn prompt_files() {
    let folder = Folder::new();
    let given = |option: &str, path: &std::path::Path| {
        dctms("run").arg(fixture("llama-f16.gguf")).arg(option).arg(path).args("-n 2")
    };
    for option in ["-f", "--prompt-ids", "--prompts"] {
        let missing = folder.path().join("missing");
        given(option, &missing).refused(USAGE, &["missing: No such file"]);
        given(option, folder.path()).refused(USAGE, &["directory"]);
        let binary = folder.file("binary", b"\xff\xfe\x00");
        given(option, &binary).refused(USAGE, &["binary: ", "UTF-8"]);
        let long = folder.file("long", vec![b' '; (1 << 20) + 1]);
        given(option, &long).refused(USAGE, &["1048577 bytes, at most 1048576"]);
        // A file that never ends, and says that it is empty.
        given(option, std::path::Path::new("/dev/zero")).refused(USAGE, &["/dev/zero"]);
    }
    for (text, expected) in [
        ("", "no token ids"),
        (" \n,", "no token ids"),
        ("1 2 270", "270 is no token id below 270"),
        ("1 -2", "-2 is no token id"),
        ("1 2.5", "2.5 is no token id"),
        ("one", "one is no token id"),
        ("99999999999999999999", "is no token id"),
    ] {
        let path = folder.file("ids", text);
        given("--prompt-ids", &path).refused(USAGE, &["--prompt-ids", expected]);
    }
    let many: String = (0..65).map(|_| "\"x\"\n").collect();
    let deep = "[".repeat(10_000);
    for (text, expected) in [
        ("", "0 prompts, expected 1 to 64"),
        (many.as_str(), "65 prompts, expected 1 to 64"),
        ("\"a\"\n{\"prompt\": 3}", "line 2: no string and no \"prompt\""),
        ("\"a\"\n\n{\"prompt\": ", "line 3: "),
        ("nonsense", "line 1: "),
        (deep.as_str(), "line 1: recursion"),
    ] {
        let path = folder.file("lines", text);
        given("--prompts", &path).refused(USAGE, &["--prompts", expected]);
    }
    let empty = folder.file("empty", "");
    given("-f", &empty).args("--raw").refused(USAGE, &["the prompt is empty"]);
}

#[test]
fn options_of_eval() {
    let wrong = |words: &str, texts: &[&str]| {
        dctms("eval").arg(fixture("llama-f16.gguf")).args(words).refused(USAGE, texts);
    };
    let text = format!("--perplexity {}", fixture("alice.txt").display());
    wrong("", &["--perplexity FILE"]);
    wrong("--perplexity", &["missing argument"]);
    wrong("--perplexity /no/such", &["/no/such: No such file"]);
    wrong("--perplexity /", &["/: "]);
    wrong("--perplexity /dev/zero", &["/dev/zero: more than"]);
    wrong("--perplexity /dev/null", &["0 tokens"]);
    wrong(&format!("{text} --ctx-size 2"), &["--ctx-size 2: 3 to"]);
    wrong(&format!("{text} --prefill-chunk 100000"), &["--prefill-chunk 100000"]);
    wrong(&format!("{text} --fly"), &["unknown option --fly"]);
}

#[test]
fn machine_profiles() {
    let folder = Folder::new();
    for (text, expected) in [
        ("", "EOF"),
        ("[]", "not a JSON object"),
        ("{}", "lanes is missing"),
        ("{\"lanes\": 0}", "lanes is 0, expected a whole number from 1 to 64"),
        ("{\"lanes\": 1, \"isa\": \"neon\"}", "expected scalar, avx2, avx512 or amx"),
        ("{\"lanes\": 1, \"isa\": \"avx2\"}", "memory_bytes is missing"),
        (
            "{\"lanes\": 1, \"isa\": \"avx2\", \"memory_bytes\": 1, \"cut_ps\": 1e300}",
            "cut_ps is 1e+300, expected a number from 0 to 1e15",
        ),
        (
            "{\"lanes\": 1, \"isa\": \"avx2\", \"memory_bytes\": 1, \"lanes\": 2}",
            "lanes stands there twice",
        ),
    ] {
        let path = folder.file("machine.json", text);
        run(&folder, "--machine").arg(path).refused(USAGE, &["machine.json: ", expected]);
    }
    run(&folder, "--machine").arg(folder.path()).refused(USAGE, &["machine profile"]);
    run(&folder, "--machine /dev/zero").refused(USAGE, &["machine profile /dev/zero"]);
}

#[test]
fn no_model() {
    let folder = Folder::new();
    let home = |words: &str| dctms(words).folder(folder.path()).env("HOME", folder.path());
    home("run -p x").refused(USAGE, &["no model given", "fetch_models.py"]);
    home("run -p x").without_env("HOME").refused(USAGE, &["no model given"]);
    home("run -p x").arg("").refused(FILE, &["No such file"]);
}

#[test]
fn arguments_and_environment_that_the_stack_does_not_hold() {
    let folder = Folder::new();
    let much = "x".repeat(100 << 10);
    let refused = |child: Child| {
        child.refused(USAGE, &["arguments and environment take 10", "at most 32768", "-f FILE"]);
    };
    refused(run(&folder, "-n 2").env("DCTMS_TEST", &much));
    refused(dctms("run -p").arg(&much).arg(fixture("llama-f16.gguf")));
    // Below the limit all is well.
    let output = run(&folder, "-n 2").env("DCTMS_TEST", "x".repeat(16 << 10)).run();
    assert_eq!(output.code(), 0, "{output:?}");
}

#[test]
fn preferences_that_contradict_each_other() {
    let words = "--memory-first --latency-first";
    dctms("plan").arg(fixture("llama-f16.gguf")).args(words).refused(USAGE, &["contradict"]);
}

#[test]
fn a_second_unit_without_an_encoder_has_nothing_to_do() {
    let words = "--second-unit 4:0.5";
    let text = || dctms("plan").arg(fixture("llama-f16.gguf"));
    text().args(words).refused(USAGE, &["--second-unit", "--mmproj"]);
    let eyes = |child: Child| child.arg("--mmproj").arg(fixture("vision-lfm2-mmproj-f16.gguf"));
    let two = dctms("plan").arg(fixture("vision-lfm2-text-f16.gguf"));
    let two = eyes(two.arg(fixture("vision-lfm2-text-f16.gguf")));
    two.args(words).refused(USAGE, &["--second-unit", "one model"]);
    for (words, what) in [
        ("1e-300:0.5", "PEAK is \"1e-300\", expected a number from 0.01 to 1000"),
        ("1001", "PEAK is \"1001\""),
        ("NaN:0.5", "PEAK is \"NaN\""),
        ("4:1e-300", "SHARE is \"1e-300\", expected a number from 0.01 to 0.99"),
        ("4:1", "SHARE is \"1\""),
        ("4:", "SHARE is \"\""),
    ] {
        let one = eyes(dctms("plan").arg(fixture("vision-lfm2-text-f16.gguf")));
        one.arg("--second-unit").arg(words).refused(USAGE, &["--second-unit", words, what]);
    }
}

#[test]
fn a_source_that_is_not_made_smaller_has_no_size() {
    let plan = |words: &str| {
        let plan = dctms("plan --max-input 64").arg(fixture("vision-lfm2-text-f16.gguf"));
        plan.args("--max-image-size 128").args(words)
    };
    let eyes =
        |words: &str| plan(words).arg("--mmproj").arg(fixture("vision-lfm2-mmproj-f16.gguf"));
    for words in
        ["--oversize refuse --max-source-size 256", "--max-source-size 256 --oversize refuse"]
    {
        eyes(words).refused(USAGE, &["--max-source-size 256x256", "--oversize refuse"]);
    }
    plan("--max-source-size 256").refused(USAGE, &["--max-source-size 256x256", "--mmproj"]);
    // It says by itself that larger ones are made smaller, as the help does.
    let tables =
        ["--max-source-size 256", "--oversize resize"].map(|words| eyes(words).run().stdout);
    let line = tables[0].lines().find(|line| line.contains("max source size"));
    assert!(line.is_some_and(|line| line.contains(" 256x256 ")), "{}", tables[0]);
    assert_eq!(tables[0], tables[1]);
}

#[test]
fn a_plan_says_when_its_prompts_hold_no_largest_picture() {
    let plan = |words: &str| {
        let plan = dctms("plan").arg(fixture("vision-lfm2-text-f16.gguf")).args(words);
        plan.arg("--mmproj").arg(fixture("vision-lfm2-mmproj-f16.gguf")).run()
    };
    let said = |output: &Output| {
        let line = output.stderr.lines().find(|line| line.contains("a prompt of this plan"));
        line.map(str::to_string)
    };
    let few = plan("--max-input 64");
    assert_eq!(few.code(), 0, "{few:?}");
    let line = said(&few).expect("it is said");
    assert!(line.contains("the largest picture of 1024x1024 pixels takes"), "{line}");
    assert!(few.stdout.contains("more than a prompt may have"), "{few:?}");
    let (_, proposal) = line.rsplit_once(": ").expect("a proposal");
    let words = proposal.strip_suffix(" holds it").expect("what would do");
    let enough = plan(words);
    assert_eq!((enough.code(), said(&enough)), (0, None), "{enough:?}");
    assert!(!enough.stdout.contains("more than a prompt may have"), "{enough:?}");
    let line = said(&plan("--max-images 64")).expect("it is said");
    assert!(line.contains("64 pictures of the largest size, 1024x1024, take"), "{line}");
    let (_, proposal) = line.rsplit_once(": ").expect("a proposal");
    let (words, _) = proposal.split_once(" is the most").expect("what would do");
    let fewer = plan(words);
    assert_eq!((fewer.code(), said(&fewer)), (0, None), "{words}: {fewer:?}");
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let folder = Folder::new();
    let model = fixture("llama-f16.gguf");
    let words = "--html same -o same";
    let plan = dctms("plan").arg(&model).args(words).folder(folder.path());
    plan.refused(USAGE, &["--html and --output name the same file"]);
    dctms("bench --tiles 2").arg(&model).refused(USAGE, &["--tiles", "--mmproj"]);
    let compile = dctms("compile -o x.dctms").folder(folder.path()).arg(&model);
    let eyes = compile.arg("--mmproj").arg(fixture("vision-lfm2-mmproj-f16.gguf"));
    eyes.refused(USAGE, &["compile looks at no pictures"]);
}

#[test]
fn files_that_never_end_or_cannot_be_are_named() {
    let bench = dctms("bench --prompt-tokens 8 --gen-tokens 4 --repetitions 1");
    let bench = bench.arg(fixture("llama-f16.gguf"));
    bench.args("--compare /dev/zero").refused(USAGE, &["--compare /dev/zero: more than 65536"]);
    // Nothing is measured first.
    for place in ["/", "/no/such/profile.json"] {
        let refused = dctms("doctor --lanes 1 --machine-out").arg(place);
        let refused = refused.refused(1, &[&format!("writing {place}: ")]);
        assert!(!refused.stderr.contains("measuring"), "{refused:?}");
    }
    let plan = dctms("plan").arg(fixture("vision-lfm2-text-f16.gguf"));
    let refused = plan.args("--mmproj /").refused(FILE, &["dctms: /: not a regular file"]);
    assert_eq!(refused.stderr.matches("/:").count(), 1, "{refused:?}");
}
