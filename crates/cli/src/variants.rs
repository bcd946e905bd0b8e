//! Plans of the same request beside the one that is printed: on one lane, with the other
//! preference, and (when it is asked what each choice saved) with choices switched off. Planned
//! like any other, not estimated; and verified, where all of them are asked for.

use dctms_engine::EngineError;
use dctms_engine::planning::{PlanSettings, Resident, certify, plan_unverified};
use dctms_ir::Plan;
use dctms_ir::plan::{Bounds, Preference, Variant};
use dctms_planner::{Choice, Choices};

/// How much is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Lanes and preferences.
    Prices,
    /// Every choice of the planner too.
    Choices,
}

/// The name of the plan itself among its variants.
pub const ITSELF: &str = "this plan";

/// What the names of plans with a choice switched off begin with.
pub const WITHOUT: &str = "without: ";

/// The plan itself and its variants. `one_lane` are the settings of the same machine with one
/// lane.
///
/// # Errors
/// A variant that cannot be planned, or that the verifier refuses.
pub fn variants(
    resident: &dyn Resident,
    settings: &PlanSettings,
    one_lane: &PlanSettings,
    plan: &Plan,
    depth: Depth,
) -> Result<Vec<Variant>, EngineError> {
    let mut found = vec![figures(ITSELF, plan)];
    let mut add = |name: &str, settings: &PlanSettings, bounds: &Bounds| {
        let plan = plan_unverified(resident, settings, bounds)?;
        if depth == Depth::Choices {
            certify(&plan)?;
        }
        found.push(figures(name, &plan));
        Ok::<(), EngineError>(())
    };
    let bounds = &plan.bounds;
    if plan.machine.lanes > 1 {
        add("on 1 lane", one_lane, bounds)?;
    }
    for preference in Preference::ALL {
        if preference != plan.preference {
            let choices = Choices { preference, without: Vec::new() };
            add(preference.name(), &PlanSettings { choices, ..settings.clone() }, bounds)?;
        }
    }
    if depth == Depth::Prices {
        return Ok(found);
    }
    for choice in Choice::ALL {
        let choices = Choices { preference: plan.preference, without: vec![choice] };
        let name = format!("{WITHOUT}{}", choice.name());
        add(&name, &PlanSettings { choices, ..settings.clone() }, bounds)?;
    }
    let whole = Bounds { prefill_chunk: bounds.max_input_tokens, ..bounds.clone() };
    add(&format!("{WITHOUT}chunked prefill"), settings, &whole)?;
    let rows = bounds.prefill_chunk.max(bounds.sequences);
    let all = Bounds { logit_rows: rows, ..bounds.clone() };
    add(&format!("{WITHOUT}logits of wanted rows only"), settings, &all)?;
    Ok(found)
}

fn figures(name: &str, plan: &Plan) -> Variant {
    let phase = |name: &str| {
        let found = plan.program.phases.iter().position(|phase| phase.name.ends_with(name));
        found.map_or((0, Vec::new()), |index| {
            let times = plan.predictions.iter().filter(|p| p.phase.index() == index);
            (plan.schedules[index].events, times.map(|p| p.nanoseconds).collect())
        })
    };
    let ((prefill_cuts, prefill), (decode_cuts, decode)) = (phase("prefill"), phase("decode"));
    let time = |times: &[u64]| times.first().copied().unwrap_or(0);
    Variant {
        name: name.to_string(),
        transient_bytes: plan.arena.transient_bytes,
        total_bytes: plan.envelope.total,
        cuts: [prefill_cuts, decode_cuts],
        predicted_ns: [time(&prefill), time(&decode)],
    }
}
