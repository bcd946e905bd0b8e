//! Which bounds a plan is made for, and why: as asked, by default, or cut to what there is.
//!
//! The engine resolves bounds; here is remembered where each came from, so that a user sees what
//! was decided for him. Where nothing fits, the wish is kept, so that the refusal speaks of it.

use std::collections::BTreeSet;

use dctms_engine::planning::{self, PlanSettings, Resident};
use dctms_engine::{Class, EngineError};
use dctms_ir::plan::{Bounds, Plan};

use crate::show::grouped;

/// Why a bound has its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The user said so.
    Given,
    /// Nobody said anything.
    Default,
    /// The default passes the model's context, positions.
    ModelContext(u64),
    /// More would not fit into this memory, bytes.
    Memory(u64),
    /// A prefill step is no longer than a prompt.
    Input,
    /// Nothing fits into this memory, bytes: what is shown needs least.
    NothingFits(u64),
}

impl Why {
    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Why::Given => "given".to_string(),
            Why::Default => "default".to_string(),
            Why::ModelContext(context) => {
                format!("capped by the model's context of {}", grouped(*context))
            }
            Why::Memory(bytes) => format!("the most that fits into {} bytes", grouped(*bytes)),
            Why::Input => "capped by the input bound".to_string(),
            Why::NothingFits(bytes) => {
                format!("the least: nothing fits into {} bytes", grouped(*bytes))
            }
        }
    }
}

/// Bounds, and a reason for each that a user can set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The bounds.
    pub bounds: Bounds,
    /// Of the input tokens.
    pub input: Why,
    /// Of the output tokens.
    pub output: Why,
    /// Of the sequences.
    pub sequences: Why,
    /// Of the prefill chunk.
    pub chunk: Why,
    /// Of the type of keys and values.
    pub kv_type: Why,
}

/// How large a context is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The bounds asked for, or the defaults where they fit.
    Asked,
    /// The largest that fits into this many bytes.
    Fit(u64),
}

/// Chooses the bounds and plans. `given` holds the names of the options that the user wrote. The
/// plan is not verified; it may not fit. Where nothing fits into a budget, it is the plan of the
/// smallest context.
///
/// # Errors
/// Any defect of the model; class `OverBound` when the bounds pass its context.
pub fn choose(
    resident: &dyn Resident,
    settings: &PlanSettings,
    given: &BTreeSet<String>,
    wish: Wish,
) -> Result<(Choice, Plan), EngineError> {
    let choice = match wish {
        Wish::Fit(budget) => match fitted(resident, settings, given, budget) {
            Err(error) if error.class == Class::DoesNotFit => {
                least(resident, settings, given, budget)?
            }
            other => other?,
        },
        Wish::Asked => {
            let bounds = planning::resolve_bounds(resident, settings, None)?;
            reasons(resident, settings, given, bounds)
        }
    };
    let plan = planning::plan_unverified(resident, settings, &choice.bounds)?;
    if plan.envelope.fits() || wish != Wish::Asked || given.contains("max-input") {
        return Ok((choice, plan));
    }
    // An input bound that nobody asked for shrinks to what fits, if anything does.
    let output = Some(choice.bounds.max_output_tokens);
    let settings = PlanSettings { max_output_tokens: output, ..settings.clone() };
    match fitted(resident, &settings, given, settings.machine.memory_bytes) {
        Ok(choice) => {
            let plan = planning::plan_unverified(resident, &settings, &choice.bounds)?;
            Ok((choice, plan))
        }
        Err(_) => Ok((choice, plan)),
    }
}

/// The largest context that fits into `budget` bytes.
fn fitted(
    resident: &dyn Resident,
    settings: &PlanSettings,
    given: &BTreeSet<String>,
    budget: u64,
) -> Result<Choice, EngineError> {
    let bounds = planning::fit(resident, settings, budget)?;
    let context = planning::context(resident);
    let full = bounds.max_input_tokens + bounds.max_output_tokens >= context;
    let input = if full { Why::ModelContext(context) } else { Why::Memory(budget) };
    Ok(Choice { input, ..reasons(resident, settings, given, bounds) })
}

/// The smallest context, where not even that fits into `budget` bytes.
fn least(
    resident: &dyn Resident,
    settings: &PlanSettings,
    given: &BTreeSet<String>,
    budget: u64,
) -> Result<Choice, EngineError> {
    let least = PlanSettings { max_input_tokens: Some(1), ..settings.clone() };
    let bounds = planning::resolve_bounds(resident, &least, None)?;
    let input = Why::NothingFits(budget);
    Ok(Choice { input, ..reasons(resident, settings, given, bounds) })
}

fn reasons(
    resident: &dyn Resident,
    settings: &PlanSettings,
    given: &BTreeSet<String>,
    bounds: Bounds,
) -> Choice {
    let plain = |name: &str| if given.contains(name) { Why::Given } else { Why::Default };
    let capped = |name: &str, value: u64, default: u64| match plain(name) {
        Why::Default if value < default => Why::ModelContext(planning::context(resident)),
        why => why,
    };
    let input = bounds.max_input_tokens;
    let output = bounds.max_output_tokens;
    Choice {
        input: capped("max-input", input, planning::DEFAULT_INPUT_TOKENS),
        output: capped("max-output", output, planning::DEFAULT_OUTPUT_TOKENS),
        sequences: plain("sequences"),
        chunk: match bounds.prefill_chunk < settings.prefill_chunk {
            true => Why::Input,
            false => plain("prefill-chunk"),
        },
        kv_type: plain("kv-type"),
        bounds,
    }
}
