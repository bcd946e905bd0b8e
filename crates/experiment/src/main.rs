//! `dctms-experiment`: what `dctms experiment` starts.

use std::process::ExitCode;
use std::time::Instant;

use dctms_experiment::child::require_program;
use dctms_experiment::compiled::{Compilation, compile_all};
use dctms_experiment::envelope;
use dctms_experiment::lock::{lock_folder, lock_machine};
use dctms_experiment::machine::describe;
use dctms_experiment::options::{Experiment, Task, USAGE, parse};
use dctms_experiment::outcome::{Class, Fault, Stop, judge};
use dctms_experiment::progress::{Progress, Voice};
use dctms_experiment::protocol::{Plan, run};
use dctms_experiment::report::{About, write};
use dctms_experiment::results::{Results, read_results};
use dctms_experiment::settings;
use dctms_system::interrupt::{catch_stop_requests, stop_requested};

fn main() -> ExitCode {
    let done = match parse(&mut lexopt::Parser::from_env()) {
        Err(what) => Err(Fault::new(Class::Usage, format!("{what}\nTry --help."))),
        Ok(Task::Help) => {
            print!("{USAGE}");
            Ok(())
        }
        Ok(Task::Experiment(experiment)) => run_experiment(&experiment),
        Ok(Task::Envelope { dctms, models, out }) => run_envelope(&dctms, &models, &out),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("dctms-experiment: {fault}");
            ExitCode::from(fault.class.exit_code())
        }
    }
}

/// The words of the command, its program's name first; what is not UTF-8 is shown as far as it is.
fn words() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn run_envelope(
    dctms: &std::path::Path,
    models: &[std::path::PathBuf],
    out: &std::path::Path,
) -> Result<(), Fault> {
    catch_stop_requests().map_err(|error| Fault::from(error.to_string()))?;
    let fault = |error: std::io::Error| Fault::from(format!("{}: {error}", out.display()));
    std::fs::create_dir_all(out).map_err(fault)?;
    let _machine = lock_machine()?;
    let _folder = lock_folder(out)?;
    let mut progress = Progress::new(Voice::Loud);
    let rows = envelope::run(dctms, models, out, &mut progress)?;
    let verdict = envelope::verdict(&rows);
    println!(
        "{} combinations, {} violations, median tightness {:.4}",
        verdict.count, verdict.violations, verdict.median
    );
    let command = settings::shown_command(&words());
    envelope::report(&rows, out, &describe(), &command)?;
    match (verdict.count, verdict.violations) {
        (0, _) => Err(Fault::new(Class::OverBound, "no combination is within a model's context")),
        (_, 0) => Ok(()),
        (_, count) => Err(Fault::from(format!("{count} runs passed their M_max"))),
    }
}

fn run_experiment(experiment: &Experiment) -> Result<(), Fault> {
    let begun = Instant::now();
    let mut plan = experiment.plan.clone();
    let out = &plan.out;
    let fault = |error: std::io::Error| Fault::from(format!("{}: {error}", out.display()));
    if experiment.report_only {
        if !out.join("calls.csv").is_file() {
            let what = format!("--report-only: {} has no calls.csv", out.display());
            return Err(Fault::new(Class::Usage, what));
        }
        let results = read_results(out).map_err(fault)?;
        let about = settings::of_earlier_run(experiment, &words());
        return finish(&about, &results, out, &settings::systems_of(&results));
    }
    require_programs(&plan)?;
    catch_stop_requests().map_err(|error| Fault::from(error.to_string()))?;
    std::fs::create_dir_all(out).map_err(fault)?;
    let _machine = lock_machine()?;
    let _folder = lock_folder(out)?;
    let settings = settings::require_same(experiment, &read_results(out).map_err(fault)?.calls)?;
    let mut progress = Progress::new(Voice::Loud);
    let Experiment { dctms, model, compiled, .. } = experiment;
    compile_all(&Compilation { dctms, model, to: compiled, limit: plan.deadline }, &progress)?;
    let machine = describe();
    // What was made before counts, too.
    plan.deadline = plan.deadline.map(|it| it.saturating_sub(begun.elapsed()));
    let results = run(&plan, &mut progress)?;
    let about = About {
        model: settings::model_name(experiment),
        machine,
        command: settings::shown_command(&words()),
        settings,
    };
    let systems: Vec<String> = plan.systems.iter().map(|system| system.name.clone()).collect();
    finish(&about, &results, &plan.out, &systems)
}

/// Makes sure that the programs of systems and neighbours are there before anything is begun.
fn require_programs(plan: &Plan) -> Result<(), Fault> {
    let systems = plan.systems.iter().map(|system| system.words.clone());
    let neighbours = plan.conditions.iter().filter_map(|it| it.neighbour(&plan.neighbours));
    for words in systems.chain(neighbours) {
        require_program(&words[0]).map_err(|what| Fault::new(Class::Usage, what))?;
    }
    Ok(())
}

/// Writes the report, and says how it ended.
fn finish(
    about: &About,
    results: &Results,
    out: &std::path::Path,
    systems: &[String],
) -> Result<(), Fault> {
    write(out, about, results)?;
    let systems: Vec<&str> = systems.iter().map(String::as_str).collect();
    let stop = if stop_requested() { Stop::Requested } else { Stop::None };
    let judged = judge(results, &systems, stop);
    let state = match (&judged, results.complete) {
        (Err(_), _) => "see why in the report",
        (Ok(()), true) => "complete",
        (Ok(()), false) => "not complete; the same command goes on",
    };
    println!("{} calls, {state}: {}", results.calls.len(), out.join("report.html").display());
    judged
}
