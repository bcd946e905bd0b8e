//! The checker against the one in Python that knows the plan format alone: right plans pass both,
//! and of mutants neither accepts what the other refuses, save where the checker says more.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use dctms_ir::join::Steps;
use dctms_ir::{Plan, json};
use dctms_testkit::generate::{Extent, Level};
use dctms_testkit::mutate::{Kind, mutate};
use dctms_testkit::{Random, arrange, generate};
use dctms_verifier::verify;

/// How the rule of what lives through a phase is read.
#[derive(Clone, Copy)]
enum Reading {
    ByWays,
    ToTheLetter,
}

/// Asks the Python checker about several plans at once: one list of violations a plan. `None`
/// when this machine has no Python.
fn ask(name: &str, reading: Reading, plans: &[Plan]) -> Option<Vec<String>> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let files = plans.iter().enumerate().map(|(index, plan)| {
        let file = folder.join(format!("{index}.json"));
        std::fs::write(&file, json::write(plan)).expect("a file");
        file
    });
    let files: Vec<PathBuf> = files.collect();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let program = "
import sys, json
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import check_plan
for name in sys.argv[3:]:
    with open(name, encoding='utf-8', newline='') as file:
        text = file.read()
    plan = json.loads(text)
    found = check_plan.Checker(plan, sys.argv[2] == 'letter').run()
    if not check_plan.check_digest(text, plan):
        found.append('digest')
    print(' | '.join(found))
";
    let reading = match reading {
        Reading::ByWays => "ways",
        Reading::ToTheLetter => "letter",
    };
    let mut command = Command::new("python3");
    command.arg("-c").arg(program).arg(scripts).arg(reading).args(&files);
    let output = command.output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let answers: Vec<String> = text.lines().map(str::to_string).collect();
    assert_eq!(answers.len(), plans.len());
    Some(answers)
}

fn random_plan(random: &mut Random) -> Plan {
    let extent = Extent { level: Level::Legal, phases: random.between(1, 3) as usize, ops: 5 };
    let lanes = random.between(1, 4) as usize;
    let program = match random.below(6) {
        0 => generate::joined(random, 2, Extent { ops: 3, ..extent }, Steps::Exclusive),
        1 => generate::joined(random, 2, Extent { ops: 3, ..extent }, Steps::Overlapping),
        _ => generate::program(random, extent),
    };
    arrange::plan(random, program, lanes)
}

#[test]
fn a_stranger_accepts_what_is_right() {
    let mut random = Random::new(11);
    let plans: Vec<Plan> = (0..40).map(|_| random_plan(&mut random)).collect();
    let Some(answers) = ask("right", Reading::ByWays, &plans) else { return };
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(answer, "", "plan {index}");
    }
}

#[test]
fn a_stranger_accepts_real_plans_to_the_letter() {
    let shapes = [support::LLAMA, support::QWEN2, support::QWEN3, support::GEMMA3];
    let plans = shapes.map(|shape| support::plan(support::Shape { layers: 7, ..shape }, 2, 2));
    let Some(answers) = ask("real", Reading::ToTheLetter, &plans) else { return };
    for (shape, answer) in shapes.iter().zip(&answers) {
        assert_eq!(answer, "", "{}", shape.architecture);
    }
}

#[test]
fn a_stranger_accepts_models_together_to_the_letter() {
    let programs = [support::LLAMA, support::GEMMA3]
        .map(|shape| support::program(support::Shape { layers: 7, ..shape }, 1));
    let plans =
        [Steps::Exclusive, Steps::Overlapping].map(|steps| support::together(&programs, 2, steps));
    let Some(answers) = ask("together", Reading::ToTheLetter, &plans) else { return };
    assert_eq!(answers, ["", ""]);
}

#[test]
fn a_stranger_refuses_what_the_checker_refuses() {
    let mut random = Random::new(12);
    let kinds = [
        Kind::Offset,
        Kind::SwapOffsets,
        Kind::Bytes,
        Kind::DropWait,
        Kind::DropSignal,
        Kind::SwapTasks,
        Kind::MoveTask,
        Kind::Shards,
        Kind::Overlap,
        Kind::Figures,
    ];
    let mut plans = Vec::new();
    while plans.len() < 200 {
        let mut plan = random_plan(&mut random);
        let kind = *random.pick(&kinds);
        if mutate(&mut random, &mut plan, kind).is_some() && json::read(&json::write(&plan)).is_ok()
        {
            plans.push(plan);
        }
    }
    let Some(answers) = ask("mutants", Reading::ByWays, &plans) else { return };
    let mut missed = 0;
    for (index, (plan, answer)) in plans.iter().zip(&answers).enumerate() {
        match verify(&plan.program, plan) {
            Ok(_) => assert_eq!(answer, "", "mutant {index}: only the stranger refuses it"),
            Err(violations) if answer.is_empty() => {
                missed += 1;
                println!("{index} the stranger accepts: {}", violations[0]);
            }
            Err(_) => {}
        }
    }
    // Beyond the rules: the region of transients, exclusive bytes of each term, what is written
    // for the host alone.
    assert!(missed * 10 < plans.len(), "{missed} of {} missed", plans.len());
}
