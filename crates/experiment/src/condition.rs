//! Conditions: what surrounds the systems while they answer.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing beyond what the machine does anyway.
    None,
    /// A control group that leaves each system M_max.
    GroupMMax,
    /// One that leaves it 1.05 × M_max.
    GroupRoom,
    /// One that leaves it 0.9 of what the dynamic system touches.
    GroupDynamic,
    /// A neighbour that allocates and touches memory in bursts.
    Bursts,
    /// A neighbour that reads large files.
    Churn,
    /// A neighbour that keeps a processor busy.
    Burner,
}

impl Condition {
    /// Every condition, in the order in which they run.
    pub const ALL: [Condition; 7] = [
        Condition::None,
        Condition::Burner,
        Condition::Bursts,
        Condition::Churn,
        Condition::GroupRoom,
        Condition::GroupMMax,
        Condition::GroupDynamic,
    ];

    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Condition::None => "none",
            Condition::GroupMMax => "group-m-max",
            Condition::GroupRoom => "group-1.05-m-max",
            Condition::GroupDynamic => "group-0.9-dynamic",
            Condition::Bursts => "bursts",
            Condition::Churn => "churn",
            Condition::Burner => "burner",
        }
    }

    /// The condition of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Condition> {
        Condition::ALL.into_iter().find(|condition| condition.name() == name)
    }

    /// What it is, for people.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Condition::None => "nothing beside the systems",
            Condition::GroupMMax => "a memory group of M_max",
            Condition::GroupRoom => "a memory group of 1.05 × M_max",
            Condition::GroupDynamic => "a memory group of 0.9 × what the dynamic system touches",
            Condition::Bursts => "a neighbour that allocates and touches memory in bursts",
            Condition::Churn => "a neighbour that turns the page cache over",
            Condition::Burner => "a neighbour that keeps one processor busy",
        }
    }

    /// The memory that a group leaves each system; `None` where there is no group.
    ///
    /// # Errors
    /// What has to be measured first.
    pub fn group_bytes(self, facts: GroupFacts) -> Result<Option<u64>, String> {
        let m_max = || facts.m_max_bytes.ok_or_else(|| "M_max is not known".to_string());
        Ok(match self {
            Condition::None | Condition::Bursts | Condition::Churn | Condition::Burner => None,
            Condition::GroupMMax => Some(m_max()? + not_covered_bytes(m_max()?)),
            Condition::GroupRoom => Some(m_max()? * 105 / 100),
            Condition::GroupDynamic => match facts.dynamic_peak_bytes {
                Some(bytes) => Some(bytes * 9 / 10),
                None => {
                    return Err("what the dynamic system touches is measured under \"none\", \
                                which was not run"
                        .to_string());
                }
            },
        })
    }

    /// The words of its neighbour.
    #[must_use]
    pub fn neighbour(self, settings: &NeighbourSettings) -> Option<Vec<String>> {
        let words: Vec<String> = match self {
            Condition::Bursts => vec!["bursts".to_string(), settings.burst_bytes.to_string()],
            Condition::Churn => vec!["churn".to_string(), settings.file.display().to_string()],
            Condition::Burner => vec!["burner".to_string()],
            Condition::None
            | Condition::GroupMMax
            | Condition::GroupRoom
            | Condition::GroupDynamic => return None,
        };
        let program = settings.program.display().to_string();
        Some(std::iter::once(program).chain(words).collect())
    }
}

/// What limits of groups are made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupFacts {
    /// The product's bound.
    pub m_max_bytes: Option<u64>,
    /// Most that the dynamic system had resident when nothing disturbed it.
    pub dynamic_peak_bytes: Option<u64>,
}

/// What the kernel counts to a group and no M_max covers: page tables, kernel stacks, objects.
fn not_covered_bytes(m_max_bytes: u64) -> u64 {
    m_max_bytes / 4096 * 8 + (512 << 10) + 4 * (32 << 10)
}

/// How neighbours are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourSettings {
    /// The program.
    pub program: PathBuf,
    /// Bytes of a burst.
    pub burst_bytes: u64,
    /// The file that is read.
    pub file: PathBuf,
    /// Its length, bytes.
    pub file_bytes: u64,
}

/// A running neighbour. It is killed when dropped.
pub struct Neighbour {
    child: Child,
}

impl Neighbour {
    /// Starts what a condition asks for; nothing where it asks for nothing.
    ///
    /// # Errors
    /// A program that cannot be started.
    pub fn start(
        condition: Condition,
        settings: &NeighbourSettings,
    ) -> Result<Option<Neighbour>, String> {
        let Some(words) = condition.neighbour(settings) else { return Ok(None) };
        if condition == Condition::Churn {
            make_file(&settings.file, settings.file_bytes)
                .map_err(|error| format!("{}: {error}", settings.file.display()))?;
        }
        let mut command = Command::new(&words[0]);
        // It ends when its input does, so it does not outlive this process.
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{}: {error}", words[0]))?;
        Ok(Some(Neighbour { child }))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of zeros without blocks: reading it fills the page cache all the same.
fn make_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    std::fs::File::create(path)?.set_len(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_limits_follow_from_facts() {
        for condition in Condition::ALL {
            assert_eq!(Condition::from_name(condition.name()), Some(condition));
        }
        let facts = GroupFacts { m_max_bytes: Some(1000), dynamic_peak_bytes: Some(2000) };
        assert_eq!(Condition::GroupRoom.group_bytes(facts), Ok(Some(1050)));
        assert_eq!(Condition::GroupDynamic.group_bytes(facts), Ok(Some(1800)));
        assert!(Condition::GroupMMax.group_bytes(facts).unwrap().unwrap() > 1000);
        assert_eq!(Condition::Churn.group_bytes(facts), Ok(None));
        assert!(Condition::GroupDynamic.group_bytes(GroupFacts::default()).is_err());
    }
}
