//! What the plan expects of a benchmark's work, to stand beside what was measured.

use dctms_engine::EngineError;
use dctms_engine::bench::BenchSettings;
use dctms_ir::Plan;
use dctms_planner::Balance;
use dctms_planner::predict::{Scene, Step, prompt_ps, step_ps};

/// Expected times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Seconds of the prompt.
    pub prefill_s: f64,
    /// Seconds of a decode step with the choice of its token, on average.
    pub step_s: f64,
}

/// What a machine of these rates takes for the work.
///
/// # Errors
/// An operation that breaks its contract.
pub fn predicted(
    plan: &Plan,
    balance: &Balance,
    settings: &BenchSettings,
) -> Result<Predicted, EngineError> {
    let scene = |name: &str| {
        let phase = plan.program.phase_named(name);
        Scene::of(plan, phase.expect("a decoder's phase"))
    };
    let prompt = (settings.prompt_tokens as u64, plan.bounds.prefill_chunk);
    let prefill_ps = prompt_ps(&scene("prefill"), balance, prompt)?;
    // Time grows evenly with depth: the step in the middle is the mean.
    let depth = (settings.depth_tokens + settings.gen_tokens / 2) as u64;
    let step = Step { tokens: settings.sequences as u64, depth };
    let pass_ps = step_ps(&scene("decode"), balance, step)?;
    let choice_ps = step_ps(&scene("sample"), balance, step)?;
    Ok(Predicted { prefill_s: prefill_ps / 1e12, step_s: (pass_ps + choice_ps) / 1e12 })
}
