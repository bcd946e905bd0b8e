//! The lanes' timeline: for each task when it ran, and how long its lane waited for it.
//!
//! Every lane writes into a ring of its own that was made before anything ran, so tracing
//! allocates nothing; when a ring is full, its oldest records go. Clocks are read only where a
//! session is traced.
//!
//! Believes: one lane writes one ring, and whoever reads does so between runs (a session is
//! borrowed then). Must not know what a trace is printed as.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dctms_ir::Plan;

/// Waits shorter than this are not worth a record, nanoseconds.
const SHORTEST_WAIT_NS: u64 = 1_000;

/// What a lane did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It waited for the events of a task.
    Wait,
    /// It ran a task.
    Work,
}

/// A record, with its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced<'a> {
    /// The lane.
    pub lane: usize,
    /// The phase.
    pub phase: &'a str,
    /// Which run of the phase, from 1.
    pub run: u32,
    /// The operation.
    pub operation: &'a str,
    /// Its shard, and of how many.
    pub shard: (u32, u32),
    /// What the lane did.
    pub kind: Kind,
    /// Nanoseconds since the trace was made.
    pub start_ns: u64,
    /// The same, when it was over.
    pub end_ns: u64,
}

/// The rings of all lanes, and the names of what they record.
#[derive(Debug)]
pub struct Trace {
    origin: Instant,
    rings: Box<[Ring]>,
    phases: Vec<Names>,
}

/// Names of a phase: its operations, and what each command of each lane is a part of.
#[derive(Debug)]
struct Names {
    phase: String,
    operations: Vec<String>,
    lanes: Vec<Vec<[u32; 3]>>,
}

/// One lane's records. Aligned, so that no two lanes write one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Ring {
    written: AtomicU64,
    records: Box<[[AtomicU64; 3]]>,
}

impl Trace {
    /// Room for `records` records of each lane.
    ///
    /// # Panics
    /// Without room for a record.
    #[must_use]
    pub fn new(plan: &Plan, records: usize) -> Trace {
        assert!(records > 0, "a ring has room");
        let lanes = plan.machine.lanes as usize;
        let ring = || Ring {
            written: AtomicU64::new(0),
            records: (0..records).map(|_| [const { AtomicU64::new(0) }; 3]).collect(),
        };
        let phases = plan.program.phases.iter().zip(&plan.schedules).map(|(phase, schedule)| {
            let of = |tasks: &Vec<dctms_ir::plan::Task>| {
                tasks.iter().map(|task| [task.op.index() as u32, task.shard, task.shards]).collect()
            };
            Names {
                phase: phase.name.clone(),
                operations: phase.ops.iter().map(|op| op.name.clone()).collect(),
                lanes: schedule.lanes.iter().map(of).collect(),
            }
        });
        let phases = phases.collect();
        Trace { origin: Instant::now(), rings: (0..lanes).map(|_| ring()).collect(), phases }
    }

    /// Heap that such a trace takes, bytes.
    #[must_use]
    pub fn heap_bytes(plan: &Plan, records: usize) -> u64 {
        /// Of a block of the heap: its header, and rounding up.
        const BLOCK_BYTES: usize = 32;
        let names = plan.program.phases.iter().flat_map(|phase| &phase.ops);
        let names: usize = names.map(|op| op.name.len() + size_of::<String>() + BLOCK_BYTES).sum();
        let tasks = plan.schedules.iter().flat_map(|schedule| &schedule.lanes);
        let tasks: usize = tasks.map(|tasks| tasks.len() * size_of::<[u32; 3]>()).sum();
        let lanes = plan.machine.lanes as usize;
        let blocks = (plan.schedules.len() + 2) * (lanes + 4) * (BLOCK_BYTES + 64);
        (names + tasks + blocks + lanes * (records * size_of::<[u64; 3]>() + 256)) as u64
    }

    /// What is still there of all lanes, each lane's records in order.
    pub fn records(&self) -> impl Iterator<Item = Traced<'_>> {
        self.rings.iter().enumerate().flat_map(move |(lane, ring)| {
            ring.oldest_first().map(move |record| self.named(lane, record))
        })
    }

    /// Records that went because their ring was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lost = |ring: &Ring| {
            ring.written.load(Ordering::Relaxed).saturating_sub(ring.records.len() as u64)
        };
        self.rings.iter().map(lost).sum()
    }

    /// Where a lane records a run of a phase.
    pub(crate) fn recorder(&self, lane: usize, phase: usize, run: u32) -> Recorder<'_> {
        let tag = u64::from(run) << 32 | (phase as u64) << 24;
        Recorder { ring: &self.rings[lane], origin: self.origin, tag }
    }

    fn named(&self, lane: usize, [start_ns, end_ns, tag]: [u64; 3]) -> Traced<'_> {
        let names = &self.phases[(tag >> 24 & 0xff) as usize];
        let [operation, shard, shards] = names.lanes[lane][(tag >> 1 & 0x7f_ffff) as usize];
        Traced {
            lane,
            phase: &names.phase,
            run: (tag >> 32) as u32,
            operation: &names.operations[operation as usize],
            shard: (shard, shards),
            kind: if tag & 1 == 0 { Kind::Wait } else { Kind::Work },
            start_ns,
            end_ns,
        }
    }
}

impl Ring {
    fn oldest_first(&self) -> impl Iterator<Item = [u64; 3]> {
        let written = self.written.load(Ordering::Relaxed);
        let len = self.records.len() as u64;
        (written.saturating_sub(len)..written).map(move |index| {
            let record = &self.records[(index % len) as usize];
            std::array::from_fn(|field| record[field].load(Ordering::Relaxed))
        })
    }
}

/// One lane in one run of a phase.
pub(crate) struct Recorder<'a> {
    ring: &'a Ring,
    origin: Instant,
    tag: u64,
}

impl Recorder<'_> {
    /// The time now, nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Records what the lane did for its `command`-th command since `start_ns`; gives the time.
    pub(crate) fn record(&self, kind: Kind, command: usize, start_ns: u64) -> u64 {
        let end_ns = self.now_ns();
        if kind == Kind::Wait && end_ns - start_ns < SHORTEST_WAIT_NS {
            return end_ns;
        }
        let kind = u64::from(kind == Kind::Work);
        let written = self.ring.written.load(Ordering::Relaxed);
        let slot = &self.ring.records[(written % self.ring.records.len() as u64) as usize];
        let fields = [start_ns, end_ns, self.tag | (command as u64) << 1 | kind];
        for (cell, field) in slot.iter().zip(fields) {
            cell.store(field, Ordering::Relaxed);
        }
        self.ring.written.store(written + 1, Ordering::Relaxed);
        end_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_keeps_what_is_newest_in_order() {
        let ring = Ring {
            written: AtomicU64::new(0),
            records: (0..4).map(|_| Default::default()).collect(),
        };
        let recorder = Recorder { ring: &ring, origin: Instant::now(), tag: 7 << 32 };
        for command in 0..6 {
            recorder.record(Kind::Work, command, 0);
        }
        let tags: Vec<u64> = ring.oldest_first().map(|[_, _, tag]| tag).collect();
        assert_eq!(tags, [2, 3, 4, 5].map(|command| 7 << 32 | command << 1 | 1));
        let now = recorder.now_ns();
        recorder.record(Kind::Wait, 9, now);
        assert_eq!(ring.written.load(Ordering::Relaxed), 6, "short waits are not recorded");
    }
}
