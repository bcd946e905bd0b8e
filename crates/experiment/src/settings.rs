//! The settings that calls are comparable under, as they stand beside results and in reports.

use std::path::Path;

use serde_json::Value;

use crate::options::{Experiment, shown_words};
use crate::outcome::{Class, Fault};
use crate::report::About;
use crate::results::{Results, replace};

/// The file in a results' folder.
const SETTINGS: &str = "settings.tsv";
/// What may change between one run and the next that goes on: more of it may be asked for.
const GROWS: [&str; 3] = ["rounds", "rounds under pressure", "conditions"];

/// Refuses to go on with results of other settings; systems, rounds and conditions may be added.
///
/// # Errors
/// Class `Usage` for other settings; a file that cannot be read or written.
pub fn require_same(experiment: &Experiment) -> Result<(), Fault> {
    let path = experiment.plan.out.join(SETTINGS);
    let fault = |error: std::io::Error| Fault::from(format!("{}: {error}", path.display()));
    let bytes = std::fs::metadata(&experiment.model).map_or(0, |facts| facts.len());
    let model = format!("{}, {bytes} bytes", experiment.model.display());
    let own = experiment.settings.iter().filter(|(name, _)| !GROWS.contains(&name.as_str()));
    let mut lines: Vec<(String, String)> = own.cloned().collect();
    lines.insert(0, ("model".to_string(), model));
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(fault(error)),
    };
    for (name, old) in parse(&before) {
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
    file_name(&experiment.model)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The command that repeats an experiment: without what decides only when it stops and where
/// scratch files are.
#[must_use]
pub fn shown_command(words: &[String]) -> String {
    let (mut kept, mut index) = (Vec::new(), 0);
    while index < words.len() {
        match words[index].as_str() {
            "--deadline" | "--work" | "--dctms" | "--baseline" => index += 1,
            "--retry" | "--report-only" => {}
            word if ["--deadline=", "--work=", "--dctms=", "--baseline="]
                .iter()
                .any(|start| word.starts_with(start)) => {}
            _ => kept.push(words[index].clone()),
        }
        index += 1;
    }
    shown_words(&kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_what_repeats_it() {
        let words = "/x/dctms-experiment --model a/b.gguf --deadline 470 --work /w --out results/s \
                     --retry --rounds 3 --deadline=9";
        let words: Vec<String> = words.split_whitespace().map(str::to_string).collect();
        assert_eq!(shown_command(&words), "dctms-experiment --model b.gguf --out s --rounds 3");
    }
}
