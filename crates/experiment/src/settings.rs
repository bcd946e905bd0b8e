//! The settings that calls are comparable under, as they stand beside results and in reports.

use serde_json::Value;

use crate::options::{Experiment, file_name, shown_words};
use crate::outcome::{Class, Fault};
use crate::record::Call;
use crate::report::About;
use crate::results::{Results, replace};

/// The file in a results' folder.
const SETTINGS: &str = "settings.tsv";
/// What may change between one run and the next that goes on: more of it may be asked for.
const GROWS: [&str; 3] = ["rounds", "rounds under pressure", "conditions"];

/// Refuses to go on with results of other settings. Rounds and conditions may be added; a system
/// may not, where there are calls: its rounds would be made alone, and are not to be compared with
/// the others'.
///
/// # Errors
/// Class `Usage` for other settings; a file that cannot be read or written.
pub fn require_same(experiment: &Experiment, calls: &[Call]) -> Result<(), Fault> {
    let path = experiment.plan.out.join(SETTINGS);
    let fault = |error: std::io::Error| Fault::from(format!("{}: {error}", path.display()));
    let bytes = std::fs::metadata(&experiment.model).map_or(0, |facts| facts.len());
    let model = format!("{}, {bytes} bytes", model_name(experiment));
    let own = experiment.settings.iter().filter(|(name, _)| !GROWS.contains(&name.as_str()));
    let mut lines: Vec<(String, String)> = own.cloned().collect();
    lines.insert(0, ("model".to_string(), model));
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(fault(error)),
    };
    let before = parse(&before);
    let is_new = |line: &&(String, String)| {
        line.0.starts_with("system ") && before.iter().all(|(name, _)| *name != line.0)
    };
    if let Some((name, _)) = lines.iter().find(is_new).filter(|_| !calls.is_empty()) {
        let what = format!(
            "{} has calls without {name}: it would now be called alone, and not in turn with the \
             others; give another --out",
            experiment.plan.out.display()
        );
        return Err(Fault::new(Class::Usage, what));
    }
    for (name, old) in before {
        match lines.iter().position(|(own, _)| *own == name) {
            Some(index) if lines[index].1 != old => {
                let what = format!(
                    "{} has results of other settings: {name} was {old}, and is {} now; give \
                     another --out",
                    experiment.plan.out.display(),
                    lines[index].1
                );
                return Err(Fault::new(Class::Usage, what));
            }
            Some(_) => {}
            None => lines.push((name, old)),
        }
    }
    let text: String = lines.iter().map(|(name, value)| format!("{name}\t{value}\n")).collect();
    replace(&path, text.as_bytes()).map_err(fault)
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
