//! Packs CSV files and prints one line each: a development aid, not part of the product.

use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1);
    let steps = args.next().and_then(|s| s.parse().ok()).expect("steps, then files");
    for path in args {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let table = dctms_pack::csv::read(&text).expect("a well-formed file");
        let budget = dctms_pack::Budget { steps, goal: dctms_pack::Goal::Minimize };
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
