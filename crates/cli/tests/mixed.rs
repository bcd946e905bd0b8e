//! Mixed requests with and without pictures, in every mode: each answer is that of a fresh process
//! in mode serial, every plan that encodes tiles is taken, and memory stays where it is.
//!
//! A bounded part of what `scripts/mixed_requests.py` does at length.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};
use support::child::{Child, own_peak_bytes};
use support::{Folder, SplitMix64, dctms, fixture, pictures};

/// A tiny model, and what decides which plan a tile takes.
struct Tiny {
    name: &'static str,
    /// Pixels of a side of what becomes one token, and patches of that.
    token: (usize, u64),
    /// Longest edge of a picture, pixels.
    bound: usize,
    /// Patches of the smaller members of the family.
    members: &'static [u64],
}

const MODELS: [Tiny; 3] = [
    Tiny { name: "vision-idefics3", token: (32, 16), bound: 150, members: &[] },
    Tiny { name: "vision-lfm2", token: (28, 4), bound: 448, members: &[256] },
    Tiny { name: "vision-qwen25vl", token: (8, 4), bound: 256, members: &[256, 1024] },
];
const MODES: [&str; 3] = ["serial", "overlapped", "phase-resident"];
const SETTINGS: [&str; 2] = [
    "--oversize refuse",
    "--oversize resize --temp 0.9 --top-p 0.95 --seed 5 --repeat-penalty 1.1",
];

/// Writes a picture of so many pixels.
type Format = fn(usize, usize) -> Vec<u8>;

fn process(model: &Tiny, setting: &str, mode: &str) -> Child {
    let Tiny { name, bound, .. } = model;
    dctms("run")
        .arg(fixture(&format!("{name}-text-f16.gguf")))
        .arg("--mmproj")
        .arg(fixture(&format!("{name}-mmproj-f16.gguf")))
        .args(&format!("--max-images 2 --max-image-size {bound} --max-input 2400 --max-output 24"))
        .args("--prefill-chunk 64 --lanes 2 --ignore-eos --logits-sha --requests -")
        .args(&format!("{setting} --mode {mode}"))
}

/// Pictures of many sizes, and the lines that ask about them. First come those that take each plan
/// whatever the lanes' pace: behind a refusal nothing is written that a tile could be beside.
fn requests(folder: &Folder, model: &Tiny) -> Vec<String> {
    let (bound, edge) = (model.bound, model.token.0);
    let mut sizes = vec![(1, 1), (bound, bound), (bound, 1), (1, bound), (bound, bound / 3)];
    for member in model.members {
        // A square of exactly as many patches; a token wider, a token narrower.
        let side = (member / model.token.1).isqrt() as usize;
        sizes.extend([0, 1, -1].map(|more| (side.saturating_add_signed(more) * edge, side * edge)));
    }
    sizes.retain(|(width, height)| (*width).max(*height) <= bound);
    let write = |index: usize, (width, height): (usize, usize)| -> PathBuf {
        let formats: [(&str, Format); 4] = [
            ("png", pictures::png),
            ("jpg", pictures::jpeg),
            ("webp", pictures::webp),
            ("gif", pictures::gif),
        ];
        let (ending, format) = formats[index % 4];
        folder.file(&format!("{index}.{ending}"), format(width, height))
    };
    let seen: Vec<PathBuf> =
        sizes.iter().enumerate().map(|(index, size)| write(index, *size)).collect();
    let larger = write(20, (bound + 1, bound));
    let largest = write(21, (2 * bound + 1, 3));
    let cut = folder.file("cut.png", &pictures::png(60, 60)[..900]);
    let long = "words before it ".repeat(12);
    let ask = |images: &[&PathBuf]| json!({"prompt": "what?", "images": images});
    let talk = |first: &PathBuf, second: &PathBuf| {
        let parts = json!([{"text": long}, {"image": first}, {"text": "or"}, {"image": second}]);
        json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 7})
    };
    let misspelt = json!({"promt": "a", "id": "misspelt"});
    let mut first = vec![talk(&seen[1], &seen[1])];
    first.extend(seen.iter().flat_map(|path| [misspelt.clone(), ask(&[path])]));
    let mut rest: Vec<Value> = seen.iter().map(|path| ask(&[path])).collect();
    rest.extend(seen.windows(2).step_by(3).map(|pair| talk(&pair[0], &pair[1])));
    rest.extend([ask(&[&larger]), ask(&[&largest]), ask(&[&seen[0], &cut]), ask(&[&cut; 3])]);
    rest.extend([json!({"prompt": long}), json!({"prompt": "a", "max_tokens": 24})]);
    rest.extend([json!({"prompt": long.repeat(20)}), misspelt]);
    let mut random = SplitMix64(model.bound as u64);
    for index in (1..rest.len()).rev() {
        rest.swap(index, (random.next() % (index as u64 + 1)) as usize);
    }
    first.iter().chain(&rest).map(Value::to_string).collect()
}

/// The answers; the next request always waits in the pipe. Anonymous memory never moves.
fn answers(child: Child, lines: &[String], what: &str) -> Vec<Value> {
    let mut running = child.start_with_input();
    let mut anonymous = BTreeSet::new();
    for (index, line) in lines.iter().enumerate() {
        running.write(&format!("{line}\n"));
        running.wait_for_lines(index.saturating_sub(1));
        if index > 1 {
            anonymous.insert(running.status_kib("RssAnon") + running.status_kib("VmSwap"));
        }
    }
    running.wait_for_lines(lines.len());
    let peak = running.status_kib("VmHWM") * 1024;
    let output = running.end();
    assert_eq!(output.code(), 0, "{what}: {output:?}");
    let answers: Vec<Value> =
        output.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let m_max = answers.iter().find_map(|answer| answer["m_max_bytes"].as_u64());
    let m_max = m_max.expect("an answer").max(own_peak_bytes());
    assert!(peak <= m_max, "{what}: peak {peak} of {m_max}");
    assert!(anonymous.len() <= 1, "{what}: {anonymous:?} KiB");
    answers
}

/// Holds the plans of a picture's tiles against the sizes of these; gives their names.
fn plans(model: &Tiny, picture: &Value) -> Vec<String> {
    let counts = picture["plans"].as_object().expect("plans");
    let tiles = picture["tiles"].as_u64().expect("a number");
    assert_eq!(counts.values().filter_map(Value::as_u64).sum::<u64>(), tiles, "{picture}");
    let patches = picture["tokens"].as_u64().expect("a number") / tiles * model.token.1;
    let fits = model.members.iter().find(|member| patches <= **member);
    let own = fits.map_or("vision".to_string(), |member| format!("vision@{member}"));
    let known = [&own, "vision.beside", "vision+prefill"];
    let names: Vec<String> = counts.keys().cloned().collect();
    assert!(names.iter().all(|name| known.contains(&name.as_str())), "{picture}, {own}");
    names
}

/// Asks in every mode, and a fresh process for each line.
fn answered_alike(model: &Tiny) {
    const SAME: [&str; 6] = ["text", "tokens", "finish", "logits_sha256", "prompt_tokens", "error"];
    let folder = Folder::new();
    let lines = requests(&folder, model);
    let mut ran: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for setting in SETTINGS {
        let mut fresh: BTreeMap<&str, Value> = BTreeMap::new();
        for line in &lines {
            let alone = || answer_alone(process(model, setting, "serial"), line);
            fresh.entry(line).or_insert_with(alone);
        }
        for mode in MODES {
            let what = format!("{} {mode} {setting}", model.name);
            let answers = answers(process(model, setting, mode), &lines, &what);
            assert_eq!(answers.len(), lines.len(), "{what}");
            for (answer, line) in answers.iter().zip(&lines) {
                for key in SAME {
                    assert_eq!(answer[key], fresh[line.as_str()][key], "{what}: {key} of {line}");
                }
                if answer["error"].is_null() {
                    assert_eq!(answer["allocations"], 0, "{what}: {answer}");
                }
                let pictures = answer["images"].as_array().into_iter().flatten();
                let names = pictures.flat_map(|picture| plans(model, picture));
                ran.entry(mode).or_default().extend(names);
            }
        }
        // Larger ones are seen where they are made smaller, but for one that is larger still.
        let refused = fresh.values().filter(|answer| answer["error"].is_object()).count();
        let wanted = if setting.contains("refuse") { 6 } else { 5 };
        assert!(refused >= wanted && refused < fresh.len() / 2, "{setting}: {refused} refused");
    }
    for (mode, ran) in ran {
        let mut wanted = BTreeSet::from(["vision".to_string()]);
        wanted.extend(model.members.iter().map(|member| format!("vision@{member}")));
        if mode == "overlapped" {
            wanted.extend(["vision.beside", "vision+prefill"].map(str::to_string));
        }
        assert_eq!(ran, wanted, "{} {mode}: plans that ran", model.name);
    }
}

#[test]
fn tiles_of_one_size_are_answered_alike() {
    answered_alike(&MODELS[0]);
}

#[test]
fn tiles_of_any_size_are_answered_alike() {
    answered_alike(&MODELS[1]);
}

#[test]
fn whole_pictures_are_answered_alike() {
    answered_alike(&MODELS[2]);
}

/// The answer of a process that is asked once.
fn answer_alone(child: Child, line: &str) -> Value {
    let output = child.input(line).run();
    assert_eq!(output.code(), 0, "{output:?}");
    serde_json::from_str(&output.stdout).expect("a line of JSON")
}

/// The formats are what they say, at odd sizes too: each is seen alone.
#[test]
fn every_format_is_seen() {
    let folder = Folder::new();
    let model = &MODELS[1];
    let formats = [pictures::png, pictures::jpeg, pictures::webp, pictures::gif];
    for (index, format) in formats.into_iter().enumerate() {
        for (width, height) in [(1, 1), (3, 9), (257, 64)] {
            let path = folder.file(&format!("{index}"), format(width, height));
            let line = json!({"prompt": "?", "images": [path]}).to_string();
            let answer = answer_alone(process(model, "", "serial"), &line);
            assert_eq!(answer["images"][0]["width"], width, "{index}: {answer}");
            assert_eq!(answer["images"][0]["height"], height, "{index}: {answer}");
        }
    }
}
