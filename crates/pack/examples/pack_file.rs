//! Packs CSV files and prints one line each: how the table in `docs/packing.md` is made.
//! Arguments: steps, capacity (0 for none, then the arena is minimised), files.

use std::time::Instant;

use dctms_pack::{Budget, Goal};

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = || args.next().and_then(|s| s.parse::<u64>().ok()).expect("a number");
    let (steps, capacity) = (number(), number());
    for path in args {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let mut table = dctms_pack::csv::read(&text).expect("a well-formed file");
        table.problem.capacity = Some(capacity).filter(|&c| c > 0);
        let goal = if capacity > 0 { Goal::Fit } else { Goal::Minimize };
        let budget = Budget { steps, goal };
        let start = Instant::now();
        let packing = dctms_pack::pack(&table.problem, &budget).expect("a packable problem");
        let seconds = start.elapsed().as_secs_f64();
        let arena = dctms_pack::validate(&table.problem, &packing.offsets).expect("a packing");
        assert_eq!(arena, packing.arena_bytes);
        println!(
            "{path} arena {arena} bound {} ratio {:.4} {:?} steps {} {seconds:.2} s",
            packing.lower_bound,
            arena as f64 / packing.lower_bound as f64,
            packing.status,
            packing.steps
        );
    }
}
