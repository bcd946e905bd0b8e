//! Parity with Hugging Face transformers, on the fixtures.
//!
//! Each sequence runs as a user's would: the prompt by prefill, the reference's greedy tokens one
//! by one by decode, and every stored row of logits is compared. A greedy token may differ from
//! the reference's only where the reference itself was undecided: where its margin is within the
//! noise of the comparison. The noise is bounded from above, not taken from the worst difference
//! seen (a token can never differ at a margin above twice *that*, so it would test nothing): three
//! standard deviations of a difference of two logits, which the NMSE gives.

mod common;

use common::{Expected, Fixture, Setup, best_token, prefill_some, real, tiny};
use dctms_engine::Model;
use dctms_engine::runner::{Runner, Step};
use dctms_ir::Dtype;
use dctms_planner::Activations;

/// NMSE of f32 arithmetic: two correct orders of summation differ by about 1e-12 here. (The
/// project promises 1e-6; so much less would already be a defect worth finding.)
const FLOAT_NMSE_MAX: f64 = 1e-10;
/// NMSE with f16 keys and values: their rounding alone makes some 1e-7.
const HALF_CACHE_NMSE_MAX: f64 = 1e-6;
/// With quantised activations, how much of llama.cpp's NMSE is allowed.
const QUANTISED_NMSE_RATIO_MAX: f64 = 1.1;

/// A comparison so far.
#[derive(Clone, Copy, Debug, Default)]
struct Difference {
    squares: f64,
    reference_squares: f64,
    greatest: f64,
    count: u64,
    agreed: usize,
    steps: usize,
    /// Greatest margin at which a greedy token differs.
    margin: f64,
}

impl Difference {
    fn nmse(&self) -> f64 {
        self.squares / self.reference_squares
    }

    /// Three standard deviations of the difference of two logits.
    fn noise(&self) -> f64 {
        3.0 * (2.0 * self.squares / self.count as f64).sqrt()
    }

    fn add(&mut self, other: Difference) {
        self.squares += other.squares;
        self.reference_squares += other.reference_squares;
        self.greatest = self.greatest.max(other.greatest);
        self.count += other.count;
        self.agreed += other.agreed;
        self.steps += other.steps;
        self.margin = self.margin.max(other.margin);
    }

    fn row(&mut self, expected: &Expected<'_>, position: usize, (runner, row): (&Runner, usize)) {
        for (token, reference) in expected.row(position).into_iter().flatten() {
            let reference = f64::from(reference);
            let difference = f64::from(runner.logit(row, token)) - reference;
            self.squares += difference * difference;
            self.reference_squares += reference * reference;
            self.greatest = self.greatest.max(difference.abs());
            self.count += 1;
        }
        // The logits of the prompt's last token choose the first greedy token.
        let step = (position + 1).checked_sub(expected.prompt.len());
        if let Some(step) = step.filter(|step| *step < expected.greedy.len()) {
            self.steps += 1;
            match best_token(runner, row) == expected.greedy[step] {
                true => self.agreed += 1,
                false => self.margin = self.margin.max(f64::from(expected.margins[step])),
            }
        }
    }
}

/// How the reference's greedy tokens are run. The bits are the same (see `one_answer.rs`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Continuation {
    /// One by one, as a user's would.
    Decoded,
    /// With the prompt: dequantising a real model's weights for each token takes minutes.
    Prefilled,
}

/// All sequences of a fixture on one model.
fn compare(
    model: &Model,
    fixture: &Fixture,
    setup: &Setup,
    continuation: Continuation,
) -> Difference {
    let sequences = fixture.sequences();
    let longest = sequences.iter().map(|s| s.prompt.len() + s.greedy.len()).max().unwrap_or(2);
    let context = Setup::new(longest).context;
    let mut runner = Setup { context, ..setup.clone() }.start(model);
    let mut sum = Difference::default();
    for expected in &sequences {
        let mut difference = Difference::default();
        let tokens = expected.tokens();
        let prefilled = match continuation {
            Continuation::Decoded => expected.prompt.len(),
            Continuation::Prefilled => tokens.len(),
        };
        let (prompt, decoded) = tokens.split_at(prefilled);
        let wanted =
            |position| expected.row(position).is_some() || position + 1 >= expected.prompt.len();
        prefill_some(&mut runner, 0, prompt, &wanted, &mut |position, runner, row| {
            difference.row(expected, position, (runner, row));
        });
        for (step, token) in decoded.iter().enumerate() {
            let position = prefilled + step;
            let step = Step { slot: 0, token: *token, position: position as u32 };
            runner.decode(&[step]).expect("within bounds");
            difference.row(expected, position, (&runner, 0));
        }
        eprintln!(
            "    {:8} nmse {:.3e}, greatest {:.5}, greedy {} of {}",
            expected.name,
            difference.nmse(),
            difference.greatest,
            difference.agreed,
            difference.steps
        );
        sum.add(difference);
    }
    eprintln!(
        "  {:?} {:?}: nmse {:.4e}, greatest {:.5}, greedy {} of {}, differs up to margin {:.4}, \
         noise {:.4}",
        setup.activations,
        setup.kv,
        sum.nmse(),
        sum.greatest,
        sum.agreed,
        sum.steps,
        sum.margin,
        sum.noise()
    );
    sum
}

/// llama.cpp's NMSE on the same rows.
fn llama_cpp_nmse(fixture: &Fixture, file: &str) -> Option<f64> {
    fixture.json["llama_cpp_nmse"][file].as_f64()
}

fn check(what: &str, difference: &Difference, nmse_max: f64) {
    let nmse = difference.nmse();
    assert!(nmse <= nmse_max, "{what}: nmse {nmse:.4e}, at most {nmse_max:.4e}");
    let (margin, noise) = (difference.margin, difference.noise());
    assert!(margin <= noise, "{what}: a greedy token differs at margin {margin}, noise is {noise}");
}

fn setup(activations: Activations, kv: Dtype) -> Setup {
    Setup { activations, kv, ..Setup::new(65) }
}

/// A tiny model in f32 arithmetic, with f16 keys and values, and as it would run.
fn check_tiny(name: &str) {
    let fixture = Fixture::read(name);
    for file in fixture.model_files() {
        eprintln!("{file}");
        let model = tiny(file);
        let run = |setup: &Setup| compare(&model, &fixture, setup, Continuation::Decoded);
        let exact = run(&setup(Activations::Float, Dtype::F32));
        check(file, &exact, FLOAT_NMSE_MAX);
        let half = run(&setup(Activations::Float, Dtype::F16));
        check(file, &half, HALF_CACHE_NMSE_MAX);
        let quantised = run(&setup(Activations::Quantised, Dtype::F32));
        match llama_cpp_nmse(&fixture, file) {
            Some(theirs) => {
                eprintln!("  llama.cpp: nmse {theirs:.4e}");
                let most = (theirs * QUANTISED_NMSE_RATIO_MAX).max(FLOAT_NMSE_MAX);
                check(file, &quantised, most);
            }
            None => check(file, &quantised, FLOAT_NMSE_MAX),
        }
    }
}

macro_rules! tiny_models {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                check_tiny($name);
            }
        )*
    };
}

tiny_models! {
    llama: "llama",
    llama_linear: "llama-linear",
    llama_llama3: "llama-llama3",
    llama_legacy_types: "llama-legacy",
    qwen2: "qwen2",
    qwen2_yarn: "qwen2-yarn",
    qwen3: "qwen3",
    qwen3_own_yarn: "qwen3-yarn",
    qwen3_k_quants: "qwen3-k-quants",
    gemma3: "gemma3",
    gemma3_linear: "gemma3-linear",
}

fn check_real(name: &str, activations: Activations, kv: Dtype) {
    let fixture = Fixture::read(name);
    for file in fixture.model_files() {
        let Some(model) = real(file) else { continue };
        eprintln!("{file}");
        let continuation = match activations {
            Activations::Float => Continuation::Prefilled,
            Activations::Quantised => Continuation::Decoded,
        };
        let difference = compare(&model, &fixture, &setup(activations, kv), continuation);
        let theirs = llama_cpp_nmse(&fixture, file).expect("llama.cpp's figure");
        eprintln!("  llama.cpp: nmse {theirs:.4e}");
        match activations {
            Activations::Float => check(file, &difference, FLOAT_NMSE_MAX),
            Activations::Quantised => {
                check(file, &difference, theirs * QUANTISED_NMSE_RATIO_MAX);
            }
        }
    }
}

#[test]
fn smollm2_in_floats() {
    check_real("smollm2", Activations::Float, Dtype::F32);
}

#[test]
fn smollm2_quantised() {
    check_real("smollm2", Activations::Quantised, Dtype::F16);
}

#[test]
fn gemma3_270m_in_floats() {
    check_real("gemma3-270m", Activations::Float, Dtype::F32);
}

#[test]
fn gemma3_270m_quantised() {
    check_real("gemma3-270m", Activations::Quantised, Dtype::F16);
}
