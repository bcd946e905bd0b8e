//! Settings that would fit where a plan does not: computed, never guessed.
//!
//! Each advice changes as little as it can, and was planned; what cannot help is not named.

use dctms_engine::EngineError;
use dctms_engine::planning::{self, PlanSettings, Resident};
use dctms_ir::Dtype;
use dctms_ir::plan::{Bounds, Envelope, Plan};

use crate::show::{Columns, grouped};

/// Options that fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The options to add or change.
    pub options: String,
    /// M_max with them, bytes.
    pub total_bytes: u64,
}

/// The refusal of a plan that does not fit: numbers first, then what would. No line's end.
#[must_use]
pub fn refusal(envelope: &Envelope, source: &str, advice: &[Advice]) -> String {
    let short = envelope.total.saturating_sub(envelope.hardware);
    let mut text = format!(
        "does not fit: M_max is {} bytes, the limit is {} bytes ({source}): {} bytes short",
        grouped(envelope.total),
        grouped(envelope.hardware),
        grouped(short),
    );
    if advice.is_empty() {
        text.push_str("\nno setting fits: it needs more memory or fewer weights");
        return text;
    }
    text.push_str("\nany one of these lines fits:\n");
    let mut columns = Columns::named();
    for line in advice {
        columns.row([line.options.clone(), grouped(line.total_bytes), "bytes".to_string()]);
    }
    text.push_str(columns.lines(2).trim_end());
    text
}

/// What would fit into `budget_bytes`, `plan` being too large.
#[must_use]
pub fn advise(
    resident: &dyn Resident,
    settings: &PlanSettings,
    plan: &Plan,
    budget_bytes: u64,
) -> Vec<Advice> {
    // No setting changes the weights or the program.
    let least = plan.envelope.weights.saturating_add(plan.envelope.runtime.image);
    if least > budget_bytes {
        return Vec::new();
    }
    let bounds = &plan.bounds;
    let wish = Wish { resident, settings, bounds, budget_bytes };
    let single = [wish.context(), wish.kv_type(), wish.chunk(), wish.sequences()];
    let advice: Vec<Advice> = single.into_iter().flatten().collect();
    match advice.is_empty() {
        true => wish.everything().into_iter().collect(),
        false => advice,
    }
}

struct Wish<'a> {
    resident: &'a dyn Resident,
    settings: &'a PlanSettings,
    bounds: &'a Bounds,
    budget_bytes: u64,
}

impl Wish<'_> {
    /// M_max with other bounds; nothing when they make no plan.
    fn total(&self, bounds: &Bounds) -> Option<u64> {
        let plan = planning::plan_unverified(self.resident, self.settings, bounds).ok()?;
        Some(plan.envelope.total)
    }

    fn fitting(&self, options: String, bounds: &Bounds) -> Option<Advice> {
        let total_bytes = self.total(bounds).filter(|total| *total <= self.budget_bytes)?;
        Some(Advice { options, total_bytes })
    }

    /// The largest context with everything else as asked.
    fn context(&self) -> Option<Advice> {
        let bounds = self.fit(self.settings, self.bounds.max_output_tokens).ok()?;
        self.fitting(context_options(&bounds), &bounds)
    }

    fn fit(&self, settings: &PlanSettings, output: u64) -> Result<Bounds, EngineError> {
        let settings = PlanSettings { max_output_tokens: Some(output), ..settings.clone() };
        planning::fit(self.resident, &settings, self.budget_bytes)
    }

    /// The widest smaller type of keys and values that fits.
    fn kv_type(&self) -> Option<Advice> {
        smaller_kv_types(self.bounds.kv_type).iter().find_map(|kv_type| {
            let bounds = Bounds { kv_type: *kv_type, ..self.bounds.clone() };
            self.fitting(format!("--kv-type {}", kv_type.name()), &bounds)
        })
    }

    /// The largest chunk, halving, that fits.
    fn chunk(&self) -> Option<Advice> {
        let halves = std::iter::successors(Some(self.bounds.prefill_chunk / 2), |c| Some(c / 2));
        halves.take_while(|chunk| *chunk >= CHUNK_MIN).find_map(|prefill_chunk| {
            let bounds = Bounds { prefill_chunk, ..self.bounds.clone() };
            self.fitting(format!("--prefill-chunk {prefill_chunk}"), &bounds)
        })
    }

    /// The most sequences that fit.
    fn sequences(&self) -> Option<Advice> {
        let with = |sequences: u64| Bounds { sequences, ..self.bounds.clone() };
        let fits = |sequences: u64| {
            self.total(&with(sequences)).is_some_and(|total| total <= self.budget_bytes)
        };
        let (mut low, mut high) = (0, self.bounds.sequences);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        match low {
            0 => None,
            most => self.fitting(format!("--sequences {most}"), &with(most)),
        }
    }

    /// One sequence, a small chunk, the smallest caches, and the context that this leaves; with
    /// a single output token if it must be.
    fn everything(&self) -> Option<Advice> {
        let smaller = smaller_kv_types(self.bounds.kv_type).iter().rev();
        let kv_types: Vec<Dtype> = smaller.copied().chain([self.bounds.kv_type]).collect();
        let outputs = [self.bounds.max_output_tokens, 1];
        let tries = outputs.iter().flat_map(|output| kv_types.iter().map(move |kv| (*output, *kv)));
        tries.into_iter().find_map(|(output, kv_type)| {
            let settings = PlanSettings {
                sequences: 1,
                logit_rows: 1,
                prefill_chunk: CHUNK_MIN.min(self.settings.prefill_chunk),
                kv_type,
                ..self.settings.clone()
            };
            let bounds = self.fit(&settings, output).ok()?;
            let options = format!(
                "{} --sequences 1 --prefill-chunk {} --kv-type {}",
                context_options(&bounds),
                bounds.prefill_chunk,
                kv_type.name()
            );
            self.fitting(options, &bounds)
        })
    }
}

fn context_options(bounds: &Bounds) -> String {
    format!("--max-input {} --max-output {}", bounds.max_input_tokens, bounds.max_output_tokens)
}

/// Smaller cache types than one, widest first.
fn smaller_kv_types(kv_type: Dtype) -> &'static [Dtype] {
    match kv_type {
        Dtype::F32 => &[Dtype::F16, Dtype::Q8_0],
        Dtype::F16 => &[Dtype::Q8_0],
        Dtype::U8
        | Dtype::I32
        | Dtype::Bf16
        | Dtype::Q8_0
        | Dtype::Q4_0
        | Dtype::Q4_1
        | Dtype::Q5_0
        | Dtype::Q5_1
        | Dtype::Q2K
        | Dtype::Q3K
        | Dtype::Q4K
        | Dtype::Q5K
        | Dtype::Q6K => &[],
    }
}

/// Below this a prefill step is hardly better than decoding.
const CHUNK_MIN: u64 = 16;
