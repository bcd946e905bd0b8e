//! What one more of each bound costs, by planning again next to the plan.
//!
//! Sizes grow in steps (cache blocks of 64 positions, attention segments of 256, pages), so each
//! figure is the mean over a stated number of units: what a user pays when he moves the bound.

use dctms_engine::planning::{PlanSettings, Resident, plan_unverified};
use dctms_ir::limits::SEGMENT;
use dctms_ir::plan::{Bounds, Envelope};

/// The price of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Bytes that the units together add to M_max.
    pub bytes: i128,
    /// How many units.
    pub units: u64,
}

impl Price {
    /// Bytes of one unit, rounded to nearest.
    #[must_use]
    pub fn bytes_per_unit(&self) -> i128 {
        let units = i128::from(self.units.max(1));
        (2 * self.bytes + units).div_euclid(2 * units)
    }
}

/// Prices of the bounds that a user can move; none where the next value passes a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// A token of context, of every sequence.
    pub context_token: Option<Price>,
    /// A token of a prefill chunk.
    pub chunk_token: Option<Price>,
    /// A sequence.
    pub sequence: Option<Price>,
    /// A lane.
    pub lane: Option<Price>,
}

/// Computes the prices. `more_lanes` are the settings of a machine with one lane more.
#[must_use]
pub fn prices(
    resident: &dyn Resident,
    settings: &PlanSettings,
    more_lanes: Option<&PlanSettings>,
    bounds: &Bounds,
    envelope: &Envelope,
) -> Prices {
    let price = |settings: &PlanSettings, bounds: &Bounds, units: u64| {
        let plan = plan_unverified(resident, settings, bounds).ok()?;
        let bytes = i128::from(plan.envelope.total) - i128::from(envelope.total);
        Some(Price { bytes, units })
    };
    let context =
        Bounds { max_output_tokens: bounds.max_output_tokens + SEGMENT, ..bounds.clone() };
    let chunk = Bounds { prefill_chunk: bounds.prefill_chunk + CHUNK_UNITS, ..bounds.clone() };
    let sequence = Bounds {
        sequences: bounds.sequences + 1,
        logit_rows: bounds.logit_rows.max(bounds.sequences + 1),
        ..bounds.clone()
    };
    Prices {
        context_token: price(settings, &context, SEGMENT),
        chunk_token: price(settings, &chunk, CHUNK_UNITS),
        sequence: price(settings, &sequence, 1),
        lane: more_lanes.and_then(|settings| price(settings, bounds, 1)),
    }
}

/// Enough tokens that rounding to pages does not show.
const CHUNK_UNITS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_rounded_to_nearest() {
        let unit = |bytes, units| Price { bytes, units }.bytes_per_unit();
        assert_eq!(unit(23_040 * 64, 64), 23_040);
        assert_eq!(unit(7, 2), 4);
        assert_eq!(unit(-7, 2), -3);
        assert_eq!(unit(5, 64), 0);
    }
}
