//! The settings that calls are comparable under, as they stand beside results and in reports.

use serde_json::Value;

use crate::identity::{ModelIdentity, build_of};
use crate::options::Experiment;
use crate::outcome::{Class, Fault};
use crate::protocol::PRODUCT;
use crate::record::Call;
use crate::report::About;
use crate::results::{Results, replace};
use crate::systems::{file_name, shown_words};

/// The file in a results' folder.
const SETTINGS: &str = "settings.tsv";
/// What may change between one run and the next that goes on: more of it may be asked for.
const GROWS: [&str; 3] = ["rounds", "rounds under pressure", "conditions"];
/// What may change and is told with each value that it had, since the command has the last alone.
const TOLD: [&str; 2] = ["call limit, s", "cell limit, s"];
/// Between two values of what is told.
const THEN: &str = ", then ";
/// Which build of the product, and of the systems that it is compared with, made the calls.
const BUILD_PRODUCT: &str = "build of dctms";
const BUILD_BASELINE: &str = "build of dctms-baseline";

/// Refuses to go on with results of other settings, or of other builds. Rounds and conditions may
/// be added; a system may not, where there are calls: its rounds would be made alone, and are not to
/// be compared with the others'. Gives the settings as the report tells them.
///
/// # Errors
/// Class `Usage` for other settings; a file that cannot be read or written.
pub fn require_same(
    experiment: &Experiment,
    calls: &[Call],
) -> Result<Vec<(String, String)>, Fault> {
    let path = experiment.plan.out.join(SETTINGS);
    let fault = |error: std::io::Error| Fault::from(format!("{}: {error}", path.display()));
    let own = experiment.settings.iter().filter(|(name, _)| !GROWS.contains(&name.as_str()));
    let mut lines: Vec<(String, String)> = own.cloned().collect();
    lines.insert(0, ("model".to_string(), shown_model(experiment)));
    lines.extend(builds(experiment)?);
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(fault(error)),
    };
    let before = parse(&before);
    if !calls.is_empty() {
        require_known(experiment, &lines, &before)?;
    }
    for (name, old) in before {
        match lines.iter_mut().find(|(own, _)| *own == name) {
            Some((_, value)) if TOLD.contains(&name.as_str()) => {
                let last = old.rsplit(THEN).next().unwrap_or_default();
                *value = if last == value.as_str() { old } else { format!("{old}{THEN}{value}") };
            }
            Some((_, value)) if *value != old => {
                let what = format!(
                    "{} has results of other settings: {name} was {old}, and is {value} now; give \
                     another --out",
                    experiment.plan.out.display(),
                );
                return Err(Fault::new(Class::Usage, what));
            }
            Some(_) => {}
            None => lines.push((name, old)),
        }
    }
    let text: String = lines.iter().map(|(name, value)| format!("{name}\t{value}\n")).collect();
    replace(&path, text.as_bytes()).map_err(fault)?;
    lines.retain(|(name, _)| name != "model");
    let grown = experiment.settings.iter().filter(|(name, _)| GROWS.contains(&name.as_str()));
    lines.extend(grown.cloned());
    Ok(lines)
}

/// Refuses to add to calls what they have no setting of: a system that would be called alone; and
/// calls to a folder of before builds and the order of turns were settings, where it is not known
/// what its own calls are of.
fn require_known(
    experiment: &Experiment,
    lines: &[(String, String)],
    before: &[(String, String)],
) -> Result<(), Fault> {
    let out = experiment.plan.out.display();
    let has = |name: &str| before.iter().any(|line| line.0 == name);
    let is_new = |name: &str| lines.iter().any(|line| line.0 == name) && !has(name);
    let refused = |what: String| Err(Fault::new(Class::Usage, what + "; give another --out"));
    if let Some((name, _)) =
        lines.iter().find(|(name, _)| name.starts_with("system ") && !has(name))
    {
        return refused(format!(
            "{out} has calls without {name}: it would now be called alone, and not in turn with \
             the others"
        ));
    }
    // A build that was not needed before is one that no call there is of.
    let compared = has("system dynamic") || has("system prototype");
    let product = compared || has(&format!("system {PRODUCT}"));
    for (name, needed) in
        [(BUILD_PRODUCT, product), (BUILD_BASELINE, compared), ("turn order", true)]
    {
        if needed && is_new(name) {
            return refused(format!(
                "{out} has calls of before the {name} was written down: which theirs is, is not \
                 known"
            ));
        }
    }
    Ok(())
}

/// The model's file as settings name it.
fn shown_model(experiment: &Experiment) -> String {
    let ModelIdentity { name, bytes, hash } = ModelIdentity::of(&experiment.model);
    format!("{name}, {bytes} bytes, hash {hash}")
}

/// The builds of the programs that systems or neighbours are.
fn builds(experiment: &Experiment) -> Result<Vec<(String, String)>, Fault> {
    let plan = &experiment.plan;
    let compares = !experiment.compiled.is_empty();
    let has_product = plan.systems.iter().any(|system| system.name == PRODUCT);
    let disturbs = plan.conditions.iter().any(|it| it.neighbour(&plan.neighbours).is_some());
    let wanted = [
        (BUILD_PRODUCT, &experiment.dctms, has_product || compares),
        (BUILD_BASELINE, &plan.neighbours.program, compares || disturbs),
    ];
    let wanted = wanted.into_iter().filter(|(_, _, is_needed)| *is_needed);
    let build = |(name, program, _): (&str, &std::path::PathBuf, bool)| match build_of(program) {
        Ok(build) => Ok((name.to_string(), build)),
        Err(error) => Err(Fault::from(format!("{}: {error}", program.display()))),
    };
    wanted.map(build).collect()
}

/// What of a command's limits the command does not say: the values that they had before its last.
#[must_use]
pub fn shown_limits(settings: &[(String, String)]) -> Option<String> {
    let told = settings.iter().filter(|(name, _)| TOLD.contains(&name.as_str()));
    let changed: Vec<String> = told
        .filter(|(_, value)| value.contains(THEN))
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    (!changed.is_empty()).then(|| changed.join("; "))
}

fn parse(text: &str) -> Vec<(String, String)> {
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// What a report that is made anew says of the run that it is about: what that run left. Words
/// count where it left nothing.
#[must_use]
pub fn of_earlier_run(experiment: &Experiment, words: &[String]) -> About {
    let out = &experiment.plan.out;
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    let summary: Value = serde_json::from_str(&read("summary.json")).unwrap_or(Value::Null);
    let pairs = |value: &Value| -> Vec<(String, String)> {
        let object = value.as_object().into_iter().flatten();
        object
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_string())))
            .collect()
    };
    let text = |name: &str| summary[name].as_str().map(str::to_string);
    let mut settings = parse(&read(SETTINGS));
    settings.retain(|(name, _)| name != "model");
    let more = pairs(&summary["settings"]);
    let more = more.into_iter().filter(|(name, _)| GROWS.contains(&name.as_str()));
    settings.extend(more);
    About {
        model: text("model").unwrap_or_else(|| model_name(experiment)),
        machine: pairs(&summary["machine"]),
        command: text("command").unwrap_or_else(|| shown_command(words)),
        settings: if settings.is_empty() { experiment.settings.clone() } else { settings },
    }
}

/// Every system that results name.
#[must_use]
pub fn systems_of(results: &Results) -> Vec<String> {
    let calls = results.calls.iter().map(|call| call.system.clone());
    let mut systems: Vec<String> =
        calls.chain(results.cells.iter().map(|cell| cell.system.clone())).collect();
    systems.sort();
    systems.dedup();
    systems
}

/// The file name of the model.
#[must_use]
pub fn model_name(experiment: &Experiment) -> String {
    experiment.model.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The command that repeats an experiment: without what decides only when it stops, what is tried
/// again, and where programs and scratch files are.
#[must_use]
pub fn shown_command(words: &[String]) -> String {
    let mut kept = ["dctms", "experiment"].map(str::to_string).to_vec();
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (word.as_str(), None),
        };
        match name {
            "--deadline" | "--work" | "--dctms" | "--baseline" => {
                if value.is_none() {
                    words.next();
                }
            }
            "--retry" | "--report-only" => {}
            "--adapter" => {
                let value = value.or_else(|| words.next().cloned()).unwrap_or_default();
                kept.extend([name.to_string(), shown_adapter(&value)]);
            }
            _ => kept.push(word.clone()),
        }
    }
    shown_words(&kept)
}

/// `NAME=COMMAND` with the file names of the command's words.
fn shown_adapter(text: &str) -> String {
    let (name, command) = text.split_once('=').unwrap_or((text, ""));
    let words: Vec<&str> = command.split_whitespace().map(file_name).collect();
    format!("{name}={}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Task, parse as parse_words};
    use std::path::Path;

    /// An experiment of words, with programs that are files of a folder.
    fn of(folder: &Path, words: &str) -> Experiment {
        let folder = folder.display();
        let words = format!(
            "--model {folder}/m --out {folder} --dctms {folder}/dctms --baseline {folder}/base {words}"
        );
        let words = words.split_whitespace();
        match parse_words(&mut lexopt::Parser::from_args(words)) {
            Ok(Task::Experiment(experiment)) => *experiment,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn calls_are_of_one_model_and_one_build() {
        let folder = std::env::temp_dir().join(format!("settings-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        for name in ["m", "dctms", "base"] {
            write(name, "one");
        }
        let calls = [Call::default()];
        let none = "--conditions none";
        let refused = |words: &str| {
            let fault = require_same(&of(&folder, words), &calls).unwrap_err();
            assert_eq!(fault.class, Class::Usage, "{fault}");
            fault.what
        };
        require_same(&of(&folder, none), &[]).unwrap();
        require_same(&of(&folder, none), &calls).unwrap();
        // Another file of the same name and length is another one.
        for (name, said) in [
            ("m", "model was m, 3 bytes"),
            ("dctms", "build of dctms was"),
            ("base", "-baseline was"),
        ] {
            write(name, "two");
            let what = refused(none);
            assert!(what.contains(said) && what.contains("give another --out"), "{what}");
            write(name, "one");
        }
        // Limits may change: each is told.
        let limit = |words: &str| {
            let settings = require_same(&of(&folder, words), &calls).unwrap();
            let report = of_earlier_run(&of(&folder, words), &[]);
            assert!(report.settings.contains(&("cell limit, s".to_string(), {
                let it = settings.iter().find(|it| it.0 == "cell limit, s").unwrap();
                it.1.clone()
            })));
            shown_limits(&settings).unwrap_or_default()
        };
        assert_eq!(limit(none), "");
        assert_eq!(limit("--conditions none --cell-limit 600"), "cell limit, s: 3600, then 600");
        assert_eq!(limit("--conditions none --cell-limit 600"), "cell limit, s: 3600, then 600");
        let last = limit("--conditions none --cell-limit 120");
        assert_eq!(last, "cell limit, s: 3600, then 600, then 120");
        // A folder of before there were builds, or an order, is not gone on with.
        let text = std::fs::read_to_string(folder.join(SETTINGS)).unwrap();
        for (name, said) in
            [("build of dctms\t", "the build of dctms was"), ("turn", "the turn order")]
        {
            let kept = text.lines().filter(|line| !line.starts_with(name));
            write(SETTINGS, &kept.map(|line| format!("{line}\n")).collect::<String>());
            let what = refused(none);
            assert!(what.contains(said) && what.contains("is not known"), "{what}");
        }
        // A system of others needs no build; a neighbour that comes later brings its own.
        std::fs::remove_file(folder.join(SETTINGS)).unwrap();
        let adapter = "--systems , --adapter a=sh --conditions";
        require_same(&of(&folder, &format!("{adapter} none")), &[]).unwrap();
        require_same(&of(&folder, &format!("{adapter} burner")), &calls).unwrap();
        write("base", "two");
        assert!(refused(&format!("{adapter} none,burner")).contains("-baseline was"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_command_is_what_repeats_it() {
        let words = [
            "/x/dctms-experiment",
            "--model",
            "a/b.gguf",
            "--deadline",
            "470",
            "--work",
            "/w",
            "--out",
            "results/s",
            "--retry",
            "--report-only",
            "--rounds",
            "3",
            "--deadline=9",
            "--baseline=/b",
            "--adapter",
            "mlx=/py/bin/py scripts/m.py M.gguf W/m",
            "--adapter=b=/x/y z",
            "--prompts=/a/it's.json",
        ];
        let shown = "dctms experiment --model b.gguf --out s --rounds 3 --adapter \
                     'mlx=py m.py M.gguf m' --adapter 'b=y z' '--prompts=it'\\''s.json'";
        assert_eq!(shown_command(&words.map(str::to_string)), shown);
    }
}
