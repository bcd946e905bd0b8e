//! Conditions: what surrounds the systems while they answer.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dctms_system::child::bind_to_parent;

use crate::child::{end, tail};

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
                                which was not run, or not to its end"
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
/// Below 1 % of an M_max of 80 MiB or more.
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

/// A running neighbour. It is killed when dropped, and its file is removed.
pub struct Neighbour {
    child: Child,
    file: Option<PathBuf>,
    log: PathBuf,
}

impl Neighbour {
    /// Starts what a condition asks for; nothing where it asks for nothing.
    ///
    /// # Errors
    /// A program that cannot be started.
    pub fn start(
        condition: Condition,
        settings: &NeighbourSettings,
        log: &Path,
    ) -> Result<Option<Neighbour>, String> {
        let Some(words) = condition.neighbour(settings) else { return Ok(None) };
        let fault = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        let file = (condition == Condition::Churn).then(|| settings.file.clone());
        if let Some(file) = &file {
            require_cached(file)?;
            make_file(file, settings.file_bytes).map_err(|error| fault(file, error))?;
        }
        let stderr = File::create(log).map_err(|error| fault(log, error))?;
        let mut command = Command::new(&words[0]);
        // It ends when its input does, so it does not outlive this process.
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr);
        let child = bind_to_parent(&mut command).spawn();
        let child = child.map_err(|error| format!("{}: {error}", words[0]))?;
        Ok(Some(Neighbour { child, file, log: log.to_path_buf() }))
    }

    /// How it ended, if it has: then nothing is disturbed any more.
    pub fn gone(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(format!("the neighbour ended: {status}: {}", tail(&self.log)))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        end(&mut self.child);
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Refuses a file system in memory: what is read of a hole there is the page of zeros, so that
/// nothing is turned over, and the condition would be another one than its name says.
fn require_cached(file: &Path) -> Result<(), String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let there = file.ancestors().skip(1).find_map(|folder| std::fs::canonicalize(folder).ok());
    let kind = there.and_then(|folder| kind_of(&folder, &mounts));
    match kind.as_deref() {
        Some(kind @ ("tmpfs" | "ramfs")) => Err(format!(
            "{} is in memory ({kind}), where reading turns no page cache over; give a --work on a \
             device",
            file.display()
        )),
        _ => Ok(()),
    }
}

/// The kind of the file system that a folder is on, by the lines of `/proc/self/mounts`.
fn kind_of(folder: &Path, mounts: &str) -> Option<String> {
    let below = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?.replace("\\040", " "), fields.next()?);
        folder.starts_with(&place).then(|| (place.len(), kind.to_string()))
    });
    // Of two on one place the later one is seen.
    below.enumerate().max_by_key(|(index, (length, _))| (*length, *index)).map(|(_, it)| it.1)
}

/// A file of zeros without blocks: reading it fills the page cache all the same.
fn make_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    File::create(path)?.set_len(bytes)
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

    #[test]
    fn a_file_system_in_memory_is_known() {
        let mounts = "none / overlay rw 0 0\nnone /tmp tmpfs rw 0 0\n/dev/a /tmp/a\\040b ext4 rw\n\
                      none /x ext4 rw\nnone /x ramfs rw\n";
        let of = |folder: &str| kind_of(Path::new(folder), mounts).unwrap();
        assert_eq!([of("/"), of("/tmpx"), of("/tmp/c")], ["overlay", "overlay", "tmpfs"]);
        assert_eq!([of("/tmp/a b/c"), of("/x/y")], ["ext4", "ramfs"]);
        if kind_of(Path::new("/dev/shm"), &std::fs::read_to_string("/proc/self/mounts").unwrap())
            == Some("tmpfs".to_string())
        {
            let why = require_cached(Path::new("/dev/shm/not-there/churn.bin")).unwrap_err();
            assert!(why.contains("tmpfs") && why.contains("--work"), "{why}");
        }
    }

    #[test]
    fn a_neighbour_that_ends_is_noticed_and_leaves_no_file() {
        let folder = std::env::temp_dir().join(format!("neighbour-{}", std::process::id()));
        let settings = NeighbourSettings {
            program: PathBuf::from("false"),
            burst_bytes: 1,
            file: folder.join("deep/churn.bin"),
            file_bytes: 1 << 30,
        };
        std::fs::create_dir_all(&folder).unwrap();
        let log = folder.join("log");
        let started = Neighbour::start(Condition::Churn, &settings, &log);
        if let Err(why) = &started
            && why.contains("is in memory")
        {
            eprintln!("skipped: a_neighbour_that_ends_is_noticed_and_leaves_no_file: {why}");
            return std::fs::remove_dir_all(&folder).unwrap();
        }
        let mut started = started.unwrap().unwrap();
        assert_eq!(std::fs::metadata(&settings.file).unwrap().len(), 1 << 30);
        while started.gone().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(started.gone().unwrap().contains("exit status: 1"));
        drop(started);
        assert!(!settings.file.exists());
        assert!(Neighbour::start(Condition::None, &settings, &log).unwrap().is_none());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
