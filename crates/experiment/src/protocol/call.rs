//! One call of a system under a condition: asked, watched, written down, and what follows from it.

use std::time::{Duration, Instant};

use crate::child::Failure;
use crate::condition::{Condition, Neighbour};
use crate::progress::Progress;
use crate::prompts::Prompt;
use crate::record::{Call, text_hash};
use crate::results::{CHANGED, SKIPPED};
use crate::watch::Watch;

use super::{PRODUCT, Runner, Running};

/// What follows from a call.
pub(super) enum Step {
    /// The next one.
    GoOn,
    /// Time is over, or it was asked to stop.
    Late,
    /// The neighbour is gone, and why: nothing is disturbed any more.
    Alone(String),
    /// The cell is over: its status, and why.
    Over(&'static str, String),
}

impl Runner<'_> {
    /// One call, and what follows from it for its cell.
    pub(super) fn step(
        &mut self,
        condition: Condition,
        one: &mut Running,
        (prompt, round): (&Prompt, usize),
        progress: &mut Progress,
    ) -> std::io::Result<Step> {
        let keep_series = round == 0;
        let made = self.call(condition, one, (prompt, round), keep_series)?;
        if let Some(why) = self.neighbour.as_mut().and_then(Neighbour::gone) {
            return Ok(Step::Alone(why));
        }
        let latency = match made {
            Ok(latency) => latency,
            Err(Failure::TimedOut | Failure::Stopped) if self.is_late() => return Ok(Step::Late),
            Err(failure @ Failure::Declined(_)) => {
                let (what, status) = ((&*one.name, Some(&*prompt.id)), status_of(&failure, ""));
                self.end(condition, what, (status, &failure.to_string()), progress)?;
                return Ok(Step::GoOn);
            }
            Err(failure) => {
                return Ok(Step::Over(status_of(&failure, &one.name), failure.to_string()));
            }
        };
        one.spent += latency;
        progress.step(&format!("{} {} {}", condition.name(), one.name, prompt.id), latency);
        let s = self.plan.cell_limit.as_secs();
        Ok(match one.spent > self.plan.cell_limit {
            true => Step::Over("cut-off", format!("its calls took more than {s} s")),
            false => Step::GoOn,
        })
    }

    /// One measured call.
    fn call(
        &mut self,
        condition: Condition,
        one: &mut Running,
        (prompt, round): (&Prompt, usize),
        keep_series: bool,
    ) -> std::io::Result<Result<Duration, Failure>> {
        let unseen = |what: &dyn std::fmt::Display| Failure::Ended {
            how: "it could not be measured".to_string(),
            said: what.to_string(),
        };
        let watch = match Watch::start(one.system.pid()) {
            Ok(watch) => watch,
            Err(error) => return Ok(Err(unseen(&error))),
        };
        let started_s = self.before_s + self.start.elapsed().as_secs_f64();
        let limit = self.call_limit();
        let begun = Instant::now();
        let reply = one.system.ask(&prompt.text, self.plan.max_output, limit);
        let latency = begun.elapsed();
        let seen = watch.end();
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => return Ok(Err(failure)),
        };
        let latency_ms = latency.as_secs_f64() * 1e3;
        let possible = reply.require_possible(latency_ms, self.plan.max_output);
        if let Err(failure) = possible.and_then(|()| self.require_bound(&one.name, &reply)) {
            return Ok(Err(failure));
        }
        let Some(seen) = seen else { return Ok(Err(unseen(&"it was gone when it had answered"))) };
        let call = Call {
            condition: condition.name().to_string(),
            system: one.name.clone(),
            prompt: prompt.id.clone(),
            round,
            latency_ms,
            first_token_ms: reply.first_token_ms,
            prompt_tokens: reply.prompt_tokens,
            output_tokens: reply.output_tokens,
            peak_bytes: seen.peak_bytes,
            minor_faults: seen.faults.minor,
            major_faults: seen.faults.major,
            pressure_percent: seen.pressure_percent,
            text_hash: text_hash(&reply.text),
            session: self.session,
            started_s,
        };
        // Without its neighbour it was no call under this condition.
        if self.neighbour.as_mut().is_some_and(|neighbour| neighbour.gone().is_some()) {
            return Ok(Ok(latency));
        }
        self.store.add_call(&call)?;
        if keep_series {
            self.store.add_series(&call, &crate::series::thinned(&seen.samples))?;
        }
        let (system, prompt) = (one.name.clone(), prompt.id.clone());
        self.done.insert((call.condition.clone(), system, prompt, round));
        self.results.calls.push(call);
        Ok(Ok(latency))
    }
}

/// What an end without an answer is called. What another program's exit code means is its affair.
pub(super) fn status_of(failure: &Failure, system: &str) -> &'static str {
    match failure {
        Failure::TimedOut => "thrashed",
        Failure::Ended { how, .. } if system == PRODUCT && how == "exit status: 3" => "refused",
        Failure::Ended { .. } => "ended",
        Failure::Refused(_) | Failure::Declined(_) => "refused",
        Failure::Changed(_) => CHANGED,
        Failure::Stopped => SKIPPED,
    }
}
