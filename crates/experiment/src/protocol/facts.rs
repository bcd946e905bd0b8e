//! What an experiment learns while it runs: the product's bound, and the limits of groups that
//! follow from it. A fact is learnt once; what contradicts it is told, and is no second fact.

use crate::child::{Failure, Reply, System};
use crate::condition::{Condition, GroupFacts};
use crate::record::Call;

use super::{DYNAMIC, PRODUCT, Runner};

impl Runner<'_> {
    /// Learns the product's bound, where it was not run yet.
    pub(super) fn probe(&mut self) -> std::io::Result<()> {
        let product = self.plan.systems.iter().find(|command| command.name == PRODUCT);
        let (Some(product), None) = (product, self.results.m_max_bytes) else {
            return Ok(());
        };
        let log = self.plan.path("logs/probe.log");
        let limit = self.call_limit();
        let Ok(mut system) = System::start(product, None, &log, limit) else { return Ok(()) };
        let prompt = &self.plan.prompts[0].text;
        match system.ask(prompt, 1, self.call_limit()) {
            Ok(reply) => self.learn(PRODUCT, reply.m_max_bytes),
            Err(_) => Ok(()),
        }
    }

    /// Keeps the bound that the product states, when it does so first.
    pub(super) fn learn(&mut self, system: &str, m_max_bytes: Option<u64>) -> std::io::Result<()> {
        if system != PRODUCT || self.results.m_max_bytes.is_some() || m_max_bytes.is_none() {
            return Ok(());
        }
        self.results.m_max_bytes = m_max_bytes;
        self.store.keep_facts(&self.results)
    }

    /// Whether a reply states the bound that all replies before it did. Calls under two bounds are
    /// no calls of one system, and which of them a peak has to keep is not known.
    pub(super) fn require_bound(&self, system: &str, reply: &Reply) -> Result<(), Failure> {
        match (self.results.m_max_bytes, reply.m_max_bytes) {
            (Some(known), Some(now)) if system == PRODUCT && known != now => {
                Err(Failure::Changed(format!(
                    "it states an M_max of {now} bytes, and stated {known} before: its calls are \
                     of two bounds, and are not compared"
                )))
            }
            _ => Ok(()),
        }
    }

    /// The limit of a condition's groups. One that calls were made under stays as it is.
    pub(super) fn group_bytes(&self, condition: Condition) -> Result<Option<u64>, String> {
        let has_calls = self.results.calls.iter().any(|it| it.condition == condition.name());
        match self.results.limits.get(condition.name()) {
            Some(bytes) if has_calls => Ok(Some(*bytes)),
            _ => condition.group_bytes(self.facts()),
        }
    }

    /// Whether what a condition needs of another one is still to be measured by the same command.
    pub(super) fn is_to_come(&self, condition: Condition) -> bool {
        let has_dynamic = self.plan.systems.iter().any(|system| system.name == DYNAMIC);
        condition == Condition::GroupDynamic
            && has_dynamic
            && self.plan.conditions.contains(&Condition::None)
            && self.left_of(Condition::None, DYNAMIC) > 0
    }

    fn facts(&self) -> GroupFacts {
        // A peak of some of its calls would be another limit than that of all of them.
        if self.left_of(Condition::None, DYNAMIC) > 0 {
            let m_max_bytes = self.results.m_max_bytes;
            return GroupFacts { m_max_bytes, dynamic_peak_bytes: None };
        }
        let quiet =
            |call: &&Call| call.condition == Condition::None.name() && call.system == DYNAMIC;
        let peaks = self.results.calls.iter().filter(quiet).map(|call| call.peak_bytes);
        GroupFacts { m_max_bytes: self.results.m_max_bytes, dynamic_peak_bytes: peaks.max() }
    }
}
