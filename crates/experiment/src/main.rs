//! `dctms-experiment`: what `dctms experiment` starts.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use dctms_experiment::envelope;
use dctms_experiment::machine::describe;
use dctms_experiment::options::{Experiment, Task, USAGE, parse, shown_words};
use dctms_experiment::progress::{Progress, Voice};
use dctms_experiment::protocol::{Results, read_results, run};
use dctms_experiment::report::{About, write};

/// Exit code for wrong words, as the product's.
const USAGE_CODE: u8 = 64;

fn main() -> ExitCode {
    let task = match parse(&mut lexopt::Parser::from_env()) {
        Ok(task) => task,
        Err(what) => {
            eprintln!("dctms-experiment: {what}\nTry --help.");
            return ExitCode::from(USAGE_CODE);
        }
    };
    let done = match task {
        Task::Help => {
            print!("{USAGE}");
            Ok(())
        }
        Task::Experiment(experiment) => run_experiment(&experiment),
        Task::Envelope { dctms, models, out } => {
            let mut progress = Progress::new(Voice::Loud);
            envelope::run(&dctms, &models, &out, &mut progress).and_then(|rows| {
                let verdict = envelope::verdict(&rows);
                println!(
                    "{} combinations, {} violations, median tightness {:.4}",
                    verdict.count, verdict.violations, verdict.median
                );
                envelope::report(&rows, &out, &describe())
            })
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("dctms-experiment: {what}");
            ExitCode::FAILURE
        }
    }
}

fn run_experiment(experiment: &Experiment) -> Result<(), String> {
    let begun = Instant::now();
    let mut plan = experiment.plan.clone();
    let machine = describe();
    let mut progress = Progress::new(Voice::Loud);
    let results = match experiment.report_only {
        true => read_results(&plan.out).map_err(|error| error.to_string())?,
        false => {
            std::fs::create_dir_all(&plan.out)
                .map_err(|error| format!("{}: {error}", plan.out.display()))?;
            same_settings(experiment)?;
            compile_all(experiment, &progress)?;
            // What was made before counts, too.
            plan.deadline = plan.deadline.map(|it| it.saturating_sub(begun.elapsed()));
            run(&plan, &mut progress)?
        }
    };
    let name = experiment.model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let about = About {
        model: name,
        machine,
        command: shown_words(&std::env::args().collect::<Vec<_>>()),
        settings: experiment.settings.clone(),
    };
    write(&plan.out, &about, &results)?;
    say(&results, &plan.out);
    Ok(())
}

/// The settings that calls are comparable under, as they stand beside the results.
const SETTINGS: &str = "settings.tsv";

/// Refuses to go on with results of other settings; systems, rounds and conditions may be added.
fn same_settings(experiment: &Experiment) -> Result<(), String> {
    let path = experiment.plan.out.join(SETTINGS);
    let fault = |error: std::io::Error| format!("{}: {error}", path.display());
    let bytes = std::fs::metadata(&experiment.model).map_or(0, |facts| facts.len());
    let model = format!("{}, {bytes} bytes", experiment.model.display());
    let grows = ["rounds", "rounds under pressure", "conditions"];
    let own = experiment.settings.iter().filter(|(name, _)| !grows.contains(&name.as_str()));
    let mut lines: Vec<(String, String)> = own.cloned().collect();
    lines.insert(0, ("model".to_string(), model));
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(fault(error)),
    };
    for (name, old) in before.lines().filter_map(|line| line.split_once('\t')) {
        match lines.iter().position(|(own, _)| own == name) {
            Some(index) if lines[index].1 != old => {
                return Err(format!(
                    "{} has results of other settings: {name} was {old}, and is {} now; give \
                     another --out",
                    experiment.plan.out.display(),
                    lines[index].1
                ));
            }
            Some(_) => {}
            None => lines.push((name.to_string(), old.to_string())),
        }
    }
    let text: String = lines.iter().map(|(name, value)| format!("{name}\t{value}\n")).collect();
    std::fs::write(&path, text).map_err(fault)
}

/// Makes the compiled forms of a model that are not there: one by the product, the others copies.
fn compile_all(experiment: &Experiment, progress: &Progress) -> Result<(), String> {
    let Experiment { dctms, model, compiled, .. } = experiment;
    let fault = |what: String| format!("compiling {}: {what}", model.display());
    let changed = |path: &Path| std::fs::metadata(path).and_then(|facts| facts.modified()).ok();
    let is_made = |path: &Path| path.is_file() && changed(path) > changed(model);
    for (index, to) in compiled.iter().enumerate().filter(|(_, to)| !is_made(to)) {
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).map_err(|error| fault(error.to_string()))?;
        }
        progress.note(&format!("compiling {} to {}", model.display(), to.display()));
        if index > 0 {
            std::fs::copy(&compiled[0], to).map_err(|error| fault(error.to_string()))?;
            continue;
        }
        let mut command = Command::new(dctms);
        command.arg("compile").arg(model).arg("-o").arg(to);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let status = command.status().map_err(|error| fault(error.to_string()))?;
        if !status.success() {
            return Err(fault(status.to_string()));
        }
    }
    Ok(())
}

fn say(results: &Results, out: &Path) {
    let state =
        if results.complete { "complete" } else { "not complete; the same command goes on" };
    if results.calls.is_empty() {
        eprintln!("dctms-experiment: no system gave an answer: see why in the report");
    }
    println!("{} calls, {state}: {}", results.calls.len(), out.join("report.html").display());
}
