//! What a step, an event and a barrier cost on this machine: `step_cost [lanes]`.

use dctms_system::events::{Event, SpinPolicy};
use dctms_system::lanes::{Lanes, LanesConfig, Pinning};
use dctms_system::processors::processors;
use std::time::Instant;

const STEPS: u32 = 5_000;
const EVENTS_PER_STEP: u32 = 50;

fn main() {
    let processors = processors().expect("processors");
    let lanes = std::env::args().nth(1).and_then(|lanes| lanes.parse().ok());
    let lanes = lanes.unwrap_or(processors.default_lanes());
    for (name, spin) in [("spin", SpinPolicy::SPIN), ("sleep", SpinPolicy::SLEEP)] {
        let stack_bytes = 128 << 10;
        let config =
            LanesConfig { lanes, stack_bytes, events: lanes, spin, pinning: Pinning::Free };
        let mut threads = Lanes::start(&config).expect("lanes");
        let start = Instant::now();
        for _ in 0..STEPS {
            threads.run(&|_| ()).expect("a step");
        }
        let step_ns = start.elapsed().as_nanos() / u128::from(STEPS);
        let start = Instant::now();
        for step in 0..STEPS / EVENTS_PER_STEP {
            threads
                .run(&|lane| {
                    for turn in 1..=EVENTS_PER_STEP {
                        lane.signal(lane.index);
                        let target = Event::target(step * EVENTS_PER_STEP + turn, 1);
                        let _ = lane.wait((lane.index + 1) % lane.count(), target);
                    }
                })
                .expect("a step");
        }
        let event_ns = start.elapsed().as_nanos() / u128::from(STEPS);
        println!("{name}: {lanes} lanes, {step_ns} ns a step, {event_ns} ns an exchange of events");
    }
}
