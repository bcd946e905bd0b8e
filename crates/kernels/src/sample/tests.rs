//! Draws against the sorted f64 distribution, and the edges of every parameter.

use super::*;
use crate::naive::sample::distribution;
use crate::testing::Random;

/// A tile-major tensor in which `logits` is row `row` of `rows`, the rest poison.
fn tensor(logits: &[f32], rows: usize, row: usize) -> Vec<f32> {
    let mut out = vec![f32::INFINITY; logits.len().div_ceil(16) * rows * 16];
    for (id, &logit) in logits.iter().enumerate() {
        out[(id / 16 * rows + row) * 16 + id % 16] = logit;
    }
    out
}

const POISON: Candidate = Candidate { logit: f32::NAN, id: u32::MAX };

fn pick(
    isa: Isa,
    logits: &[f32],
    parameters: &SampleParameters,
    history: &[u32],
    seed: u64,
) -> u32 {
    let tensor = tensor(logits, 3, 1);
    let row = LogitsRow::new(&tensor, 3, 1, logits.len());
    let mut workspace = vec![POISON; sample_workspace_len(logits.len())];
    sample(isa, row, parameters, history, &mut RandomState::new(seed), &mut workspace)
}

fn settings(random: &mut Random) -> SampleParameters {
    SampleParameters {
        temperature: [0.0, 0.7, 1.0, 2.0][random.below(4)],
        top_k: [0, 1, 5, 40, 3000][random.below(5)],
        top_p: [1.0, 0.95, 0.5, 0.0][random.below(4)],
        min_p: [0.0, 0.05, 0.5, 1.0][random.below(4)],
        repeat_penalty: [1.0, 1.3][random.below(2)],
        frequency_penalty: [0.0, 0.4][random.below(2)],
        presence_penalty: [0.0, 0.6][random.below(2)],
    }
}

#[test]
fn only_tokens_of_the_distribution_are_drawn_and_all_isas_agree() {
    let mut random = Random(61);
    for round in 0..300 {
        let vocabulary = [1, 15, 16, 17, 1000, 5003][random.below(6)];
        let logits: Vec<f32> = (0..vocabulary).map(|_| random.normal() * 3.0).collect();
        let history: Vec<u32> =
            (0..random.below(80)).map(|_| random.below(vocabulary) as u32).collect();
        let parameters = settings(&mut random);
        let allowed = distribution(&logits, &parameters, &history);
        let want = pick(Isa::Scalar, &logits, &parameters, &history, round);
        assert!(allowed.iter().any(|&(id, _)| id == want), "{parameters:?} drew {want}");
        if parameters.temperature <= 0.0 {
            assert_eq!(want, allowed[0].0);
        }
        for isa in Isa::available() {
            assert_eq!(pick(isa, &logits, &parameters, &history, round), want, "{}", isa.name());
        }
    }
}

#[test]
fn frequencies_follow_the_distribution() {
    let mut random = Random(62);
    let logits: Vec<f32> = (0..300).map(|_| random.normal() * 2.0).collect();
    let tensor = tensor(&logits, 1, 0);
    let row = LogitsRow::new(&tensor, 1, 0, 300);
    let mut workspace = vec![POISON; 300];
    let base = SampleParameters { temperature: 0.8, ..SampleParameters::GREEDY };
    let cases = [
        base,
        SampleParameters { top_k: 20, ..base },
        SampleParameters { top_p: 0.9, ..base },
        SampleParameters { top_k: 50, top_p: 0.8, min_p: 0.02, repeat_penalty: 1.5, ..base },
    ];
    let history = [3, 3, 70, 299];
    for parameters in cases {
        let exact = distribution(&logits, &parameters, &history);
        let draws = 20_000;
        let mut counts = [0usize; 300];
        let mut state = RandomState::new(9);
        for _ in 0..draws {
            let isa = Isa::detect_best();
            counts[sample(isa, row, &parameters, &history, &mut state, &mut workspace) as usize] +=
                1;
        }
        for (id, probability) in &exact {
            let mean = probability * f64::from(draws);
            let deviation = (mean * (1.0 - probability)).sqrt();
            let off = (counts[*id as usize] as f64 - mean).abs();
            assert!(off <= 5.0 * deviation + 1.0, "token {id}: {off} from {mean}");
        }
        let allowed: usize = exact.iter().map(|(id, _)| counts[*id as usize]).sum();
        assert_eq!(allowed, draws as usize, "{parameters:?}");
    }
}

#[test]
fn ties_go_to_the_lowest_id() {
    for isa in Isa::available() {
        let mut logits = vec![-1.0; 100];
        (logits[37], logits[90], logits[99]) = (2.0, 2.0, 2.0);
        assert_eq!(pick(isa, &logits, &SampleParameters::GREEDY, &[], 0), 37);
        let penalty = SampleParameters { repeat_penalty: 1.1, ..SampleParameters::GREEDY };
        assert_eq!(pick(isa, &logits, &penalty, &[37], 0), 90);
        let two = SampleParameters { temperature: 1.0, top_k: 2, ..SampleParameters::GREEDY };
        assert!((0..50).all(|seed| [37, 90].contains(&pick(isa, &logits, &two, &[], seed))));
        assert_eq!(pick(isa, &[-0.0, 0.0], &SampleParameters::GREEDY, &[], 0), 0);
    }
}

#[test]
fn a_rising_row_cuts_the_buffer_back_often_and_loses_nothing() {
    let logits: Vec<f32> = (0..20_000).map(|i| i as f32 * 1e-3).collect();
    for top_k in [2, 40, 1000] {
        let parameters = SampleParameters { temperature: 1.0, top_k, ..SampleParameters::GREEDY };
        for seed in 0..20 {
            let id = pick(Isa::detect_best(), &logits, &parameters, &[19_999], seed);
            assert!(id >= 20_000 - top_k, "{id}");
        }
    }
}

#[test]
fn hostile_logits_never_win_and_never_panic() {
    let all = SampleParameters { temperature: 1.0, ..SampleParameters::GREEDY };
    let cuts = SampleParameters { top_k: 3, top_p: 0.9, min_p: 0.1, ..all };
    let penalty = SampleParameters { repeat_penalty: 1.2, ..all };
    let extremes = [
        SampleParameters { temperature: 1e-30, ..all },
        SampleParameters { temperature: f32::INFINITY, ..all },
        SampleParameters { temperature: f32::NAN, top_p: f32::NAN, min_p: f32::NAN, ..all },
    ];
    for isa in Isa::available() {
        for parameters in [SampleParameters::GREEDY, all, cuts, penalty].iter().chain(&extremes) {
            let mut logits = vec![f32::NAN; 40];
            assert_eq!(pick(isa, &logits, parameters, &[], 1), 0);
            logits[17] = f32::MIN;
            logits[18] = f32::NEG_INFINITY;
            assert_eq!(pick(isa, &logits, parameters, &[3], 1), 17, "{parameters:?}");
            logits[30] = f32::INFINITY;
            assert_eq!(pick(isa, &logits, parameters, &[], 1), 30, "{parameters:?}");
        }
    }
}

#[test]
fn log_softmax_matches_f64() {
    let mut random = Random(63);
    for vocabulary in [1, 17, 5003, 49_152] {
        let logits: Vec<f32> = (0..vocabulary).map(|_| random.normal() * 4.0).collect();
        let tensor = tensor(&logits, 2, 1);
        let row = LogitsRow::new(&tensor, 2, 1, vocabulary);
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
        for id in [0, vocabulary / 2, vocabulary - 1] {
            let exact = f64::from(logits[id]) - f64::from(max) - sum.ln();
            let want = log_softmax_of(Isa::Scalar, row, id as u32);
            assert!((want - exact).abs() < 1e-6, "{want} is not {exact}");
            for isa in Isa::available() {
                let got = log_softmax_of(isa, row, id as u32);
                assert_eq!(got.to_bits(), want.to_bits(), "{}", isa.name());
            }
        }
    }
}
