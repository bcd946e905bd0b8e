//! What a machine does in a second: peaks, and what the real kernels reach.
//!
//! Measured by `dctms doctor` or taken from a table by instruction set; nothing here is measured
//! now. Arithmetic is stated for **one lane while all work**, memory for **all lanes together**:
//! that is how each of them grows. Times are picoseconds for one element of work, so that a time
//! is a product and a table is readable.

use dctms_ir::Dtype;

/// Numbers of tokens that products are measured at; times between them are interpolated.
pub const TOKEN_POINTS: [u64; 7] = [1, 2, 4, 8, 16, 64, 256];

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
}

impl Element {
    /// Every member, in order.
    pub const ALL: [Element; 15] = [
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
    /// Picoseconds of a synchronisation point.
    pub cut_ps: f64,
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
        balance.lane_read_bytes_per_s = self.lane_read_bytes_per_s.min(balance.read_bytes_per_s);
        for rates in balance.products.iter_mut().chain(&mut balance.float_products) {
            rates.stream_bytes_per_s *= share;
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
