//! What a machine does in a second: peaks, and what the real kernels reach.
//!
//! Measured by `dctms doctor` or taken from a table by instruction set; nothing here is measured
//! now. Arithmetic is stated for **one lane while all work**, memory for **all lanes together**:
//! that is how each of them grows. Times are picoseconds for one element of work, so that a time
//! is a product and a table is readable.

use dctms_ir::Dtype;

/// Numbers of tokens that products are measured at; times between them are interpolated.
pub const TOKEN_POINTS: [u64; 7] = [1, 2, 4, 8, 16, 64, 256];

/// How long lanes work between two meetings when their waits are measured, picoseconds.
pub const MEETING_PS: f64 = 5e9;

/// Work that is counted by elements (see [`Element::ALL`] for what an element is of each).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// A feature of a token that a norm sums (every lane sums all of them).
    NormSum,
    /// A feature of a token that a norm writes, quantised or not.
    NormWrite,
    /// A feature of a head's norm.
    HeadNorm,
    /// A rotated feature.
    Rope,
    /// A quantised feature.
    Quantise,
    /// activation(gate)·up, quantised.
    Gated,
    /// A sum, a bias, a picked row: one feature read and written.
    Copy,
    /// A feature of a key or value that is appended.
    Append,
    /// A feature of an embedding.
    Embed,
    /// A pair of the rotary table: a sine and a cosine.
    RopeTable,
    /// A logit that the sampler looks at.
    Sample,
    /// A query feature meeting a visible position in a prompt: score and weighted sum.
    AttentionPrefill,
    /// The same in a decode step.
    AttentionDecode,
    /// A feature of a partial result that is merged.
    AttentionMerge,
    /// An output of a product for a token, beside the weights that it takes.
    Output,
    /// A feature of a token about whose mean a norm sums (every lane sums all of them).
    LayerNormSum,
    /// A feature of a token that such a norm writes.
    LayerNormWrite,
    /// A function of a feature.
    Activate,
    /// A query feature of a patch meeting another patch.
    AttentionFull,
    /// A feature of a patch, made of its pixels.
    Patchify,
    /// A feature of a patch or of an embedding that is moved elsewhere.
    Rearrange,
}

impl Element {
    /// Every member, in order.
    pub const ALL: [Element; 21] = [
        Element::NormSum,
        Element::NormWrite,
        Element::HeadNorm,
        Element::Rope,
        Element::Quantise,
        Element::Gated,
        Element::Copy,
        Element::Append,
        Element::Embed,
        Element::RopeTable,
        Element::Sample,
        Element::AttentionPrefill,
        Element::AttentionDecode,
        Element::AttentionMerge,
        Element::Output,
        Element::LayerNormSum,
        Element::LayerNormWrite,
        Element::Activate,
        Element::AttentionFull,
        Element::Patchify,
        Element::Rearrange,
    ];

    /// The name in a profile.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Element::NormSum => "norm_sum",
            Element::NormWrite => "norm_write",
            Element::HeadNorm => "head_norm",
            Element::Rope => "rope",
            Element::Quantise => "quantise",
            Element::Gated => "gated",
            Element::Copy => "copy",
            Element::Append => "append",
            Element::Embed => "embed",
            Element::RopeTable => "rope_table",
            Element::Sample => "sample",
            Element::AttentionPrefill => "attention_prefill",
            Element::AttentionDecode => "attention_decode",
            Element::AttentionMerge => "attention_merge",
            Element::Output => "output",
            Element::LayerNormSum => "layer_norm_sum",
            Element::LayerNormWrite => "layer_norm_write",
            Element::Activate => "activate",
            Element::AttentionFull => "attention_full",
            Element::Patchify => "patchify",
            Element::Rearrange => "rearrange",
        }
    }
}

/// Products with weights of one type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductRates {
    /// Picoseconds that one lane takes for each weight, at each of [`TOKEN_POINTS`] tokens, the
    /// weights being in its cache.
    pub weight_ps: [f64; TOKEN_POINTS.len()],
    /// Packed bytes a second that all lanes multiply with one token when the weights come from
    /// memory.
    pub stream_bytes_per_s: f64,
    /// Packed bytes a second that one lane multiplies with one token when the weights come from
    /// memory and all other lanes do products of many tokens.
    pub beside_bytes_per_s: f64,
}

impl ProductRates {
    /// Picoseconds of a lane for each weight with so many tokens: linear between the points, in
    /// proportion beyond the last.
    #[must_use]
    pub fn weight_ps_at(&self, tokens: u64) -> f64 {
        let last = TOKEN_POINTS.len() - 1;
        if tokens >= TOKEN_POINTS[last] {
            return self.weight_ps[last] * tokens as f64 / TOKEN_POINTS[last] as f64;
        }
        let next = TOKEN_POINTS.iter().position(|point| *point > tokens).unwrap_or(last).max(1);
        let (low, high) = (TOKEN_POINTS[next - 1], TOKEN_POINTS[next]);
        let share = tokens.saturating_sub(low) as f64 / (high - low) as f64;
        self.weight_ps[next - 1] + share * (self.weight_ps[next] - self.weight_ps[next - 1])
    }
}

/// Rates of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Lanes that worked together when this was measured.
    pub lanes: u32,
    /// 8-bit integer operations a second, all lanes (a multiply and an add count as two).
    pub integer_ops_per_s: f64,
    /// f32 operations a second, all lanes.
    pub float_ops_per_s: f64,
    /// Bytes read from memory a second, all lanes.
    pub read_bytes_per_s: f64,
    /// Bytes read from memory a second by one lane alone.
    pub lane_read_bytes_per_s: f64,
    /// Bytes read from the last-level cache a second, all lanes.
    pub cache_read_bytes_per_s: f64,
    /// Bytes that the last-level cache serves at that rate.
    pub cache_bytes: f64,
    /// Bytes that one lane reads from memory a second while all other lanes do products of many
    /// tokens.
    pub beside_read_bytes_per_s: f64,
    /// How many times longer those products of the others take meanwhile, at least 1.
    pub beside_products_ratio: f64,
    /// Picoseconds of a synchronisation point.
    pub cut_ps: f64,
    /// What lanes that meet wait for the last of them, as a part of what they did since they met
    /// before: lanes with equal shares are not equally fast. See [`Balance::wait_ps`].
    pub wait_ratio: f64,
    /// The longest time that a lane was seen to stand still though it had work, picoseconds: other
    /// processes, interrupts, a hypervisor.
    pub pause_ps: f64,
    /// Picoseconds of a task beside its work.
    pub task_ps: f64,
    /// Picoseconds between the end of one run of a phase and the start of the next.
    pub run_ps: f64,
    /// Work by elements, one lane, picoseconds; in order of [`Element::ALL`].
    pub element_ps: [f64; Element::ALL.len()],
    /// Products with quantised activations, in order of [`Dtype::ALL`].
    pub products: [ProductRates; Dtype::ALL.len()],
    /// Products with f32 activations, in order of [`Dtype::ALL`].
    pub float_products: [ProductRates; Dtype::ALL.len()],
}

impl Balance {
    /// Picoseconds of an element on one lane.
    #[must_use]
    pub fn element(&self, element: Element) -> f64 {
        self.element_ps[element as usize]
    }

    /// Products with weights of a type.
    #[must_use]
    pub fn product(&self, dtype: Dtype, quantised: bool) -> &ProductRates {
        let table = if quantised { &self.products } else { &self.float_products };
        &table[index_of(dtype)]
    }

    /// What lanes wait for the last of them after they have worked so long, picoseconds. In
    /// proportion up to [`MEETING_PS`], where it was measured; what is apart by chance evens out
    /// over longer stretches, so beyond it grows with the square root.
    #[must_use]
    pub fn wait_ps(&self, since_ps: f64) -> f64 {
        let since_ps = since_ps.max(0.0);
        match since_ps > MEETING_PS {
            true => self.wait_ratio * (since_ps * MEETING_PS).sqrt(),
            false => self.wait_ratio * since_ps,
        }
    }

    /// The rates of one lane that runs a step while all others encode a tile: what it reads comes
    /// from memory, whose bandwidth is not its own; `neighbour_bytes` of the last-level cache are
    /// the others'.
    #[must_use]
    pub fn of_step_beside(&self, neighbour_bytes: f64) -> Balance {
        let read = self.beside_read_bytes_per_s;
        let mut balance = Balance {
            lanes: 1,
            read_bytes_per_s: read,
            lane_read_bytes_per_s: read,
            cache_read_bytes_per_s: self.cache_read_bytes_per_s / f64::from(self.lanes.max(1)),
            cache_bytes: (self.cache_bytes - neighbour_bytes).max(0.0),
            ..*self
        };
        for rates in balance.products.iter_mut().chain(&mut balance.float_products) {
            rates.stream_bytes_per_s = rates.beside_bytes_per_s;
        }
        balance
    }

    /// The rates of the lanes that encode a tile while one lane runs steps.
    #[must_use]
    pub fn of_tile_beside(&self) -> Balance {
        let mut balance = *self;
        for rates in balance.products.iter_mut().chain(&mut balance.float_products) {
            rates.weight_ps.iter_mut().for_each(|ps| *ps *= self.beside_products_ratio);
        }
        balance
    }

    /// How many times longer the same bytes take when only `some` lanes read them, which do not
    /// reach what all of them do.
    #[must_use]
    pub fn fewer_lanes(&self, some: u32) -> f64 {
        if some >= self.lanes {
            return 1.0;
        }
        (self.read_bytes_per_s / (self.lane_read_bytes_per_s * f64::from(some))).max(1.0)
    }

    /// The rates when only a part of the memory's bandwidth is left, `share` of it.
    #[must_use]
    pub fn with_bandwidth(&self, share: f64) -> Balance {
        let mut balance = *self;
        balance.read_bytes_per_s *= share;
        balance.beside_read_bytes_per_s *= share;
        balance.lane_read_bytes_per_s = self.lane_read_bytes_per_s.min(balance.read_bytes_per_s);
        for rates in balance.products.iter_mut().chain(&mut balance.float_products) {
            rates.stream_bytes_per_s *= share;
            rates.beside_bytes_per_s *= share;
        }
        balance
    }

    /// The rates when `lanes` work in place of those measured: arithmetic in proportion, memory up
    /// to what was measured with all of them.
    #[must_use]
    pub fn at_lanes(&self, lanes: u32) -> Balance {
        if lanes == self.lanes {
            return *self;
        }
        let factor = f64::from(lanes) / f64::from(self.lanes.max(1));
        let read = (self.lane_read_bytes_per_s * f64::from(lanes)).min(self.read_bytes_per_s);
        let shrink = read / self.read_bytes_per_s;
        let scale = |mut table: [ProductRates; Dtype::ALL.len()]| {
            for rates in &mut table {
                rates.stream_bytes_per_s *= shrink;
            }
            table
        };
        Balance {
            lanes,
            integer_ops_per_s: self.integer_ops_per_s * factor,
            float_ops_per_s: self.float_ops_per_s * factor,
            read_bytes_per_s: read,
            cache_read_bytes_per_s: self.cache_read_bytes_per_s * factor.min(1.0).max(shrink),
            cut_ps: if lanes == 1 { 0.0 } else { self.cut_ps },
            wait_ratio: if lanes == 1 { 0.0 } else { self.wait_ratio },
            products: scale(self.products),
            float_products: scale(self.float_products),
            ..*self
        }
    }
}

/// Where a type stands in the tables.
#[must_use]
pub fn index_of(dtype: Dtype) -> usize {
    Dtype::ALL.iter().position(|known| *known == dtype).expect("ALL holds every type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_meet_seldom_wait_less() {
        let balance = Balance::builtin("avx512", 2);
        let often = 200.0 * balance.wait_ps(1e9);
        let once = balance.wait_ps(200e9);
        assert!(once > 0.0 && once < often / 2.0, "{once} once, {often} in small pieces");
        // The two laws meet.
        let (below, above) = (balance.wait_ps(MEETING_PS - 1.0), balance.wait_ps(MEETING_PS + 1.0));
        assert!((above - below).abs() < 1.0, "{below} {above}");
        assert_eq!(Balance::builtin("avx512", 1).wait_ps(1e9), 0.0);
        assert_eq!(balance.at_lanes(1).wait_ps(1e9), 0.0);
    }

    #[test]
    fn beside_others_a_lane_has_less_of_everything() {
        let balance = Balance::builtin("avx512", 2);
        let step = balance.of_step_beside(1e6);
        assert_eq!(step.cache_bytes, balance.cache_bytes - 1e6);
        assert_eq!(balance.of_step_beside(1e12).cache_bytes, 0.0);
        let stream = |balance: &Balance| balance.product(Dtype::Q8_0, true).stream_bytes_per_s;
        assert!(stream(&step) < stream(&balance) && step.fewer_lanes(1) == 1.0);
        let tile = balance.of_tile_beside();
        let weight = |balance: &Balance| balance.product(Dtype::Q8_0, true).weight_ps_at(64);
        assert!(weight(&tile) > weight(&balance) && weight(&step) == weight(&balance));
    }
}
