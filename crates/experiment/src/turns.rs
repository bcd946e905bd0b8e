//! A prompt's turn: a call of each system, one after the other. Who begins it, and whether it is
//! begun at all when time is short.
//!
//! Whatever a system leaves behind it (what is cached, the processor's clock, a thread that still
//! looks) falls on who comes next. In an order that never changes that would be a bias that no number
//! of rounds removes, so each turn begins with another system. A turn that two runs of the program
//! make is not compared, so one that would not be done in time is not begun.

use std::time::Duration;

use crate::record::Call;

/// Who is asked first, second, … of `systems` in a turn; all numbers are from 0.
pub fn order(round: usize, prompt: usize, systems: usize) -> impl Iterator<Item = usize> {
    (0..systems).map(move |offset| (round + prompt + offset) % systems)
}

/// The same for people and settings.
pub const ORDER: &str = "begins with system (round + prompt) mod systems";

/// A turn that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// Its condition.
    pub condition: &'a str,
    /// Its prompt.
    pub prompt: &'a str,
    /// Its round, from 0.
    pub round: usize,
}

impl Turn<'_> {
    /// How long a system's call is expected to take: as long as in the round before; else as its
    /// longest call of this prompt under any condition, or of any prompt; else as `warm_up`, its
    /// first answer, which is not counted.
    #[must_use]
    pub fn expected_call(&self, calls: &[Call], system: &str, warm_up: Duration) -> Duration {
        let longest = |is_it: &dyn Fn(&&Call) -> bool| {
            let own = calls.iter().filter(|call| call.system == system).filter(is_it);
            own.map(|call| call.latency_ms).reduce(f64::max)
        };
        let before = |call: &&Call| {
            call.condition == self.condition
                && call.prompt == self.prompt
                && call.round + 1 == self.round
        };
        let known = longest(&before)
            .or_else(|| longest(&|call| call.prompt == self.prompt))
            .or_else(|| longest(&|_| true));
        known.map_or(warm_up, |ms| Duration::from_secs_f64(ms.max(0.0) / 1e3))
    }

    /// How long the calls of several systems are, each with its `warm_up`.
    #[must_use]
    pub fn expected(&self, calls: &[Call], systems: &[(&str, Duration)]) -> Duration {
        systems.iter().map(|(system, warm_up)| self.expected_call(calls, system, *warm_up)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(condition: &str, system: &str, prompt: &str, round: usize, ms: f64) -> Call {
        Call {
            condition: condition.to_string(),
            system: system.to_string(),
            prompt: prompt.to_string(),
            round,
            latency_ms: ms,
            ..Call::default()
        }
    }

    #[test]
    fn each_system_begins_as_often_and_follows_each_other() {
        for systems in 1..7 {
            let (mut begun, mut placed) = (vec![0; systems], vec![vec![0; systems]; systems]);
            for (round, prompt) in (0..systems).flat_map(|round| (0..5).map(move |it| (round, it)))
            {
                let order: Vec<usize> = order(round, prompt, systems).collect();
                begun[order[0]] += 1;
                order.iter().enumerate().for_each(|(place, it)| placed[*it][place] += 1);
            }
            assert_eq!(begun, vec![5; systems], "of {systems}");
            assert!(placed.iter().flatten().all(|count| *count == 5), "{placed:?}");
        }
        assert_eq!(order(0, 0, 3).collect::<Vec<_>>(), [0, 1, 2], "as they were named");
        assert_eq!(order(1, 1, 3).collect::<Vec<_>>(), [2, 0, 1]);
    }

    #[test]
    fn a_turn_takes_as_long_as_the_one_before_or_as_the_longest_known() {
        let calls = [
            call("none", "a", "P1", 0, 100.0),
            call("none", "a", "P1", 1, 200.0),
            call("none", "a", "P2", 0, 700.0),
            call("burner", "a", "P1", 0, 300.0),
            call("none", "b", "P1", 0, 1000.0),
        ];
        let warm_up = Duration::from_millis(9);
        let of = |condition, prompt, round, system| {
            let turn = Turn { condition, prompt, round };
            turn.expected_call(&calls, system, warm_up).as_millis()
        };
        assert_eq!(of("none", "P1", 1, "a"), 100, "the round before");
        assert_eq!(of("none", "P1", 2, "a"), 200);
        assert_eq!(of("burner", "P1", 1, "a"), 300);
        // There is no round before the first: it is no turn of no time.
        assert_eq!(of("bursts", "P1", 0, "a"), 300, "the longest of the prompt");
        assert_eq!(of("bursts", "P2", 0, "a"), 700);
        assert_eq!(of("none", "P3", 0, "a"), 700, "the longest of any");
        assert_eq!(of("none", "P1", 0, "c"), 9, "only its first answer is known");
        let turn = Turn { condition: "bursts", prompt: "P1", round: 0 };
        let all = turn.expected(&calls, &[("a", warm_up), ("b", warm_up), ("c", warm_up)]);
        assert_eq!(all.as_millis(), 1309);
    }
}
