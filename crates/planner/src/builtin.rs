//! Rates of a typical core of a current server, by instruction set: what a plan is made with when
//! nobody gives a profile. Plans for elsewhere stay reproducible that way.
//!
//! Figures of one machine (AVX-512 VNNI, two cores), rounded; those of the other sets by proportion.
//! Products have one rate for all types of weights here; a profile states each type's own.

use dctms_ir::Dtype;

use crate::rates::{Balance, Element, ProductRates, TOKEN_POINTS};

impl Balance {
    /// The table's rates for `lanes` lanes of an instruction set: arithmetic grows with lanes,
    /// memory up to twice that of one. Any profile replaces it.
    #[must_use]
    pub fn builtin(isa: &str, lanes: u32) -> Balance {
        let table = match isa {
            "amx" => &AMX,
            "avx512" => &AVX512,
            "avx2" => &AVX2,
            _ => &SCALAR,
        };
        let count = f64::from(lanes);
        let spread = count.min(2.0);
        let products = |kernel: &[f64; TOKEN_POINTS.len()]| {
            Dtype::ALL.map(|_| ProductRates {
                weight_ps: *kernel,
                stream_bytes_per_s: table.stream_bytes_per_s * spread,
                beside_bytes_per_s: 0.9 * table.stream_bytes_per_s,
            })
        };
        Balance {
            lanes,
            integer_ops_per_s: table.integer_ops_per_s * count,
            float_ops_per_s: table.float_ops_per_s * count,
            read_bytes_per_s: 24e9 * spread,
            lane_read_bytes_per_s: 24e9,
            cache_read_bytes_per_s: 40e9 * count,
            cache_bytes: 24e6,
            beside_read_bytes_per_s: 0.9 * table.stream_bytes_per_s,
            beside_products_ratio: 1.05,
            cut_ps: if lanes == 1 { 0.0 } else { 300e3 },
            wait_ratio: if lanes == 1 { 0.0 } else { 0.03 },
            pause_ps: 25e9,
            task_ps: 150e3,
            run_ps: 1e6,
            element_ps: table.element_ps,
            products: products(&table.weight_ps),
            float_products: products(&table.float_weight_ps),
        }
    }
}

/// One lane of an instruction set.
struct Table {
    integer_ops_per_s: f64,
    float_ops_per_s: f64,
    stream_bytes_per_s: f64,
    weight_ps: [f64; TOKEN_POINTS.len()],
    float_weight_ps: [f64; TOKEN_POINTS.len()],
    element_ps: [f64; Element::ALL.len()],
}

/// As [`AVX512`], but for the products of 16 tokens and more.
const AMX: Table = Table {
    integer_ops_per_s: 3700e9,
    weight_ps: [29.0, 33.0, 42.0, 64.0, 90.0, 330.0, 1300.0],
    ..AVX512
};

const AVX512: Table = Table {
    integer_ops_per_s: 470e9,
    float_ops_per_s: 117e9,
    stream_bytes_per_s: 18e9,
    weight_ps: [29.0, 33.0, 42.0, 64.0, 112.0, 445.0, 1800.0],
    float_weight_ps: [60.0, 90.0, 150.0, 280.0, 540.0, 2160.0, 8640.0],
    element_ps: [
        135.0, 1150.0, 330.0, 75.0, 890.0, 1400.0, 115.0, 2000.0, 5500.0, 18500.0, 80.0, 77.0,
        85.0, 1250.0, 2000.0, 200.0, 400.0, 700.0, 60.0, 900.0, 300.0,
    ],
};

const AVX2: Table = Table {
    integer_ops_per_s: 200e9,
    float_ops_per_s: 100e9,
    stream_bytes_per_s: 12e9,
    weight_ps: [24.0, 40.0, 70.0, 130.0, 250.0, 1000.0, 4000.0],
    float_weight_ps: [80.0, 120.0, 200.0, 370.0, 700.0, 2800.0, 11200.0],
    element_ps: [
        180.0, 1500.0, 450.0, 100.0, 1200.0, 2000.0, 130.0, 2500.0, 5500.0, 18500.0, 120.0, 110.0,
        120.0, 1700.0, 2500.0, 260.0, 500.0, 1000.0, 85.0, 900.0, 400.0,
    ],
};

const SCALAR: Table = Table {
    integer_ops_per_s: 8e9,
    float_ops_per_s: 4e9,
    stream_bytes_per_s: 2e9,
    weight_ps: [250.0, 500.0, 1000.0, 2000.0, 4000.0, 16e3, 64e3],
    float_weight_ps: [500.0, 1000.0, 2000.0, 4000.0, 8000.0, 32e3, 128e3],
    element_ps: [
        500.0, 2000.0, 3000.0, 2000.0, 2000.0, 8000.0, 500.0, 1000.0, 2000.0, 25e3, 1000.0, 1000.0,
        1000.0, 1000.0, 5000.0, 1000.0, 2000.0, 6000.0, 1000.0, 1500.0, 1000.0,
    ],
};
