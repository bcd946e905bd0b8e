//! `dctms plan`: the memory envelope of a model, or of several that are resident together, before
//! anything of them is loaded.
//!
//! Reads headers only. Standard output carries the table or, with `--json`, the plan; what is true
//! only now (free memory) and refusals go to standard error. The plan is verified before it is
//! printed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dctms_engine::bench::pictures::{QUESTION_TOKENS, Tile, largest};
use dctms_engine::planning::{self, PlanSettings, Together};
use dctms_engine::{Class, EngineError, Model};
use dctms_ir::join::Steps;
use dctms_ir::limits::LANES_MAX;
use dctms_ir::{Plan, json};
use dctms_planner::second_unit::{Request, SecondUnit, SecondUnitTimes, predict};
use dctms_system::heap::Region;
use dctms_system::machine::machine_memory;
use lexopt::prelude::*;

use super::files::{named, note, open_reading_heap, require_other, write};
use super::{diff, model_path, say};
use crate::HEAP;
use crate::advice::{advise, refusal};
use crate::args::{PlanArgs, UsageError, bytes, unknown};
use crate::choice::Wish;
use crate::costs::{Prices, prices};
use crate::failure::Failure;
use crate::machine::settings;
use crate::modes;
use crate::report;
use crate::room::{Growth, for_conversation};
use crate::show::grouped;
use crate::sight;
use crate::table::{self, Shown};
use crate::together;
use crate::variants::{Depth, variants};

/// What the words say.
struct Words {
    plan: PlanArgs,
    /// Names of the plan's options that were written.
    given: BTreeSet<String>,
    files: Vec<PathBuf>,
    fit: Option<u64>,
    json: bool,
    hash: bool,
    explain: bool,
    diff: bool,
    chat: bool,
    replan: bool,
    /// Whether steps of different models may run at the same time.
    steps: Steps,
    html: Option<PathBuf>,
    output: Option<PathBuf>,
    /// A second unit to predict for.
    second_unit: Option<SecondUnit>,
}

/// Runs the command.
///
/// # Errors
/// Usage; a defect of the model (exit code 2); a plan that does not fit (3).
pub fn run(parser: &mut lexopt::Parser) -> Result<(), Failure> {
    let words = parse(parser)?;
    open_reading_heap()?;
    let _scope = HEAP.scope(Region::Compile);
    if words.diff {
        return match words.files.as_slice() {
            [old, new] => diff::run(old, new, words.json),
            _ => {
                Err(UsageError::Wrong("plan --diff OLD.json NEW.json: two files".to_string())
                    .into())
            }
        };
    }
    let inputs: Vec<&Path> = words.files.iter().map(PathBuf::as_path).collect();
    for output in [&words.html, &words.output].into_iter().flatten() {
        require_other(output, &inputs)?;
    }
    let resident = open(&words)?;
    let settings = settings_of(&words, &limited(&words), &resident)?;
    let wish = words.fit.map_or(Wish::Asked, |_| Wish::Fit(settings.machine.memory_bytes));
    let asked = (wish, words.plan.mode);
    let (planned, modes) = modes::pick(&resident, &settings, &words.given, asked)?;
    let modes::Planned { settings, choice, mut plan } = planned;
    if words.hash {
        hash_files(&mut plan, &resident)?;
    }
    let depth = if words.explain { Depth::Choices } else { Depth::Prices };
    let one_lane = settings_of(&words, &one_lane(&words), &resident)?;
    plan.variants = variants(&resident, &settings, &one_lane, &plan, depth)?;
    planning::certify(&plan)?;
    let prices = prices_of(&words, &resident, &settings, &plan)?;
    let alone = together::alone(&resident, &settings, &plan)?;
    let (alone, modes) = (alone.as_slice(), modes.as_slice());
    let second = second_unit(&words, &resident, &settings, &plan)?;
    let (choice, prices, second_unit) = (&choice, &prices, second.as_ref());
    let images = &settings.images;
    let shown = Shown { plan: &plan, choice, prices, alone, modes, images, second_unit };
    print(&words, &shown)?;
    if let Some(what) = sight::over(&resident, images, &plan.bounds) {
        note(&format!("dctms: {what}\n"));
    }
    verdict(&words, &resident, &settings, &plan)
}

/// What a second unit would do for the largest request, where reasons were asked for.
fn second_unit(
    words: &Words,
    resident: &Together,
    settings: &PlanSettings,
    plan: &Plan,
) -> Result<Option<SecondUnitTimes>, EngineError> {
    let asked = words.explain || words.html.is_some() || words.second_unit.is_some();
    let [model] = resident.models.as_slice() else { return Ok(None) };
    let Some(eyes) = model.eyes.as_ref().filter(|_| asked) else { return Ok(None) };
    let tile = Tile::largest_within(eyes, &plan.bounds);
    let largest = largest(&plan.bounds, &tile);
    let request = Request {
        text_tokens: largest.text_tokens as u64,
        tiles: largest.tiles as u64,
        tile_tokens: u64::from(tile.tokens),
        question_tokens: QUESTION_TOKENS as u64,
    };
    let unit = words.second_unit.unwrap_or_default();
    Ok(predict(plan, &settings.balance, unit, request)?)
}

/// PEAK:SHARE, or PEAK alone.
fn unit_of(text: &str) -> Result<SecondUnit, UsageError> {
    let (peak, share) = text.split_once(':').unwrap_or((text, "0.5"));
    let number = |name: &str, number: &str, most: f64| {
        let value = number.parse::<f64>().ok().filter(|value| (0.01..=most).contains(value));
        value.ok_or_else(|| {
            let what = format!("{name} is {number:?}, expected a number from 0.01 to {most}");
            UsageError::Wrong(format!("--second-unit {text}: {what} (PEAK:SHARE, as in 4:0.5)"))
        })
    };
    let (peak_ratio, bandwidth_share) = (number("PEAK", peak, 1e3)?, number("SHARE", share, 0.99)?);
    Ok(SecondUnit { peak_ratio, bandwidth_share })
}

/// Writes the digests of all files into a plan: a model's, then its vision file's.
fn hash_files(plan: &mut Plan, resident: &Together) -> Result<(), EngineError> {
    let mut infos = plan.program.models.iter_mut();
    for checkpoint in resident.models.iter().flat_map(Model::checkpoints) {
        let digest = super::hash::of_files(checkpoint)?;
        infos.next().into_iter().for_each(|info| info.sha256 = Some(digest.clone()));
    }
    Ok(())
}

/// Opens the models that the words name: the default one when they name none.
fn open(words: &Words) -> Result<Together, EngineError> {
    let paths = match words.files.as_slice() {
        [] => vec![model_path(None)?],
        paths => paths.to_vec(),
    };
    let models = paths.iter().enumerate().map(|(index, path)| {
        // A vision file is for the first.
        let vision = words.plan.vision.as_deref().filter(|_| index == 0);
        // With several, a defect has to say whose it is.
        super::run::open_model(path, vision, &[]).map_err(|error| {
            match error.message.contains(&named(path)) {
                false if paths.len() > 1 => {
                    EngineError::new(error.class, format!("{}: {error}", named(path)))
                }
                true | false => error,
            }
        })
    });
    Ok(Together { models: models.collect::<Result<_, _>>()?, steps: words.steps })
}

fn parse(parser: &mut lexopt::Parser) -> Result<Words, UsageError> {
    let mut words = Words {
        plan: PlanArgs::default(),
        given: BTreeSet::new(),
        files: Vec::new(),
        fit: None,
        json: false,
        hash: false,
        explain: false,
        diff: false,
        chat: false,
        replan: false,
        steps: Steps::Exclusive,
        html: None,
        output: None,
        second_unit: None,
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Value(value) => words.files.push(PathBuf::from(value)),
            Long("json") => words.json = true,
            Long("hash") => words.hash = true,
            Long("explain") => words.explain = true,
            Long("diff") => words.diff = true,
            Long("chat") => words.chat = true,
            Long("replan") => words.replan = true,
            Long("overlap") => words.steps = Steps::Overlapping,
            Long("html") => words.html = Some(PathBuf::from(parser.value()?)),
            Long("second-unit") => {
                let text = parser.value()?.string()?;
                words.second_unit = Some(unit_of(&text)?);
            }
            Long("fit") => words.fit = Some(bytes(parser, "fit")?),
            Short('o') | Long("output") => words.output = Some(PathBuf::from(parser.value()?)),
            Long(name) => {
                let name = name.to_string();
                if !words.plan.take(&name, parser)? {
                    return Err(unknown(&Long(&name)));
                }
                words.given.insert(name);
            }
            other @ Short(_) => return Err(unknown(&other)),
        }
    }
    if words.html.is_some() && words.html == words.output {
        let message = "--html and --output name the same file".to_string();
        return Err(UsageError::Wrong(message));
    }
    if words.fit.is_some() && words.plan.max_input.is_some() {
        let message = "--fit chooses --max-input: give one of them".to_string();
        return Err(UsageError::Wrong(message));
    }
    if words.replan && !words.chat {
        let message = "--replan: a plan has it with --chat only".to_string();
        return Err(UsageError::Wrong(message));
    }
    if words.chat && words.files.len() > 1 {
        let message = "--chat: a conversation is with one model".to_string();
        return Err(UsageError::Wrong(message));
    }
    if words.second_unit.is_some() && words.plan.vision.is_none() {
        let message = "--second-unit is for a model with a vision file (--mmproj FILE): the unit \
                       takes the encoder";
        return Err(UsageError::Wrong(message.to_string()));
    }
    if words.second_unit.is_some() && words.files.len() > 1 {
        let message = "--second-unit: its times are of one model".to_string();
        return Err(UsageError::Wrong(message));
    }
    if words.steps == Steps::Overlapping && words.files.len() < 2 {
        let message = "--overlap is for steps of different models: name two or more".to_string();
        return Err(UsageError::Wrong(message));
    }
    Ok(words)
}

/// The plan's options: a budget to fit into is also the limit to be compared with, unless another
/// limit is lower.
fn limited(words: &Words) -> PlanArgs {
    let memory_limit = [words.plan.memory_limit, words.fit].into_iter().flatten().min();
    PlanArgs { memory_limit, ..words.plan.clone() }
}

/// The same on one lane.
fn one_lane(words: &Words) -> PlanArgs {
    PlanArgs { lanes: Some(1), ..limited(words) }
}

/// The settings of a run, or of a conversation.
fn settings_of(
    words: &Words,
    args: &PlanArgs,
    resident: &Together,
) -> Result<PlanSettings, EngineError> {
    let settings = settings(args)?;
    Ok(match (words.chat, words.replan) {
        (false, _) => settings,
        (true, false) => for_conversation(settings, &resident.models[0], Growth::Bounded),
        (true, true) => for_conversation(settings, &resident.models[0], Growth::Replanned),
    })
}

fn prices_of(
    words: &Words,
    resident: &Together,
    now: &PlanSettings,
    plan: &Plan,
) -> Result<Prices, EngineError> {
    let lanes = plan.machine.lanes + 1;
    let more_lanes = match lanes as usize <= LANES_MAX {
        true => {
            let args = PlanArgs { lanes: Some(lanes), mode: Some(now.mode), ..limited(words) };
            Some(settings_of(words, &args, resident)?)
        }
        false => None,
    };
    Ok(prices(resident, now, more_lanes.as_ref(), &plan.bounds, &plan.envelope))
}

fn print(words: &Words, shown: &Shown<'_>) -> Result<(), Failure> {
    if let Some(path) = &words.html {
        write(path, &report::page(shown))?;
    }
    if !words.json && words.output.is_none() {
        return say(&table::text(shown));
    }
    let text = json::write(shown.plan);
    if let Some(path) = &words.output {
        write(path, &text)?;
    }
    match words.json {
        true => say(&text),
        false => say(&table::text(shown)),
    }
}

/// The exit code: 3 when the limit is too small, or what is free of it now.
fn verdict(
    words: &Words,
    resident: &Together,
    settings: &PlanSettings,
    plan: &Plan,
) -> Result<(), Failure> {
    let envelope = &plan.envelope;
    if !envelope.fits() {
        let advice = advise(resident, settings, plan, envelope.hardware);
        let mut refusal = refusal(envelope, &plan.machine.memory_source, &advice);
        refusal.push_str(&together::asked(plan));
        return Err(EngineError::new(Class::DoesNotFit, refusal).into());
    }
    // A plan for another machine or another limit says nothing of this one.
    if words.plan.machine.is_some() || limited(words).memory_limit.is_some() {
        return Ok(());
    }
    let own = dctms_system::process::memory_facts()?.resident_bytes;
    let available = machine_memory()?.available_bytes.saturating_add(own);
    if envelope.total > available {
        note(&format!(
            "dctms: does not fit just now: M_max is {} bytes, of the limit of {} bytes {} are \
             free: {} bytes short\n",
            grouped(envelope.total),
            grouped(envelope.hardware),
            grouped(available),
            grouped(envelope.total - available),
        ));
        return Err(Failure::Reported(Class::DoesNotFit.exit_code()));
    }
    note(&format!("dctms: just now {} bytes are free\n", grouped(available)));
    Ok(())
}
