//! The schedule of a concurrent region: each stream on lanes of its own, then all lanes on what is
//! left of the longer one.
//!
//! ```text
//! lane 0   behind ████████████│ahead  ██████████
//! lane 1   ahead  ████████████│ahead  ██████████
//!                             the streams meet: one cut
//! ```
//!
//! They meet between two operations of the longer stream. Where those are coarse (an encoder's
//! feed-forward layer may take one lane as long as half a chunk), the last operations of the
//! shorter one are left for all lanes too, so that no lane waits for the middle of one.
//!
//! On lanes of their own the streams ask each other for nothing but what one hands over to the
//! other (embeddings that are read before they are written again), and a stream on one lane asks
//! for nothing at all: no cuts, no norm that every lane sums again, no lane that waits for another's
//! odd head. That is what such a region recovers, and all that it can on cores that one stage
//! fills. The number of lanes of each stream, and the operation at which they meet, are those of the
//! least predicted time at the bounds' maxima; both are static, so other sizes at run time leave
//! lanes idle.
//!
//! Believes [`dctms_ir::region`] for which operation is whose. Where nothing is gained, the region
//! is woven over all lanes like any phase: still right, only of no use.

use std::collections::BTreeMap;
use std::ops::Range;

use dctms_ir::Program;
use dctms_ir::contract::accesses;
use dctms_ir::ids::{EventId, OpId, PhaseId, TensorId};
use dctms_ir::plan::{Bounds, Cost, Placement, RegionReport, Schedule, Segment, StreamReport};
use dctms_ir::region::Streams;

use crate::error::PlanError;
use crate::groups::Group;
use crate::predict::{Scene, Step, patches_max};
use crate::rates::Balance;
use crate::schedule::{Alignment, Weaver};
use crate::timeline::{timeline, with_patches_ps};

/// The part of its time that a region with lanes for each stream takes at most, of one that is cut
/// over all lanes: less is no gain that anybody could measure.
const GAIN_LEAST: f64 = 0.999;

/// Which operations of a region run where.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Lanes of each stream: `behind`, `ahead`.
    pub lanes: [Range<usize>; 2],
    /// How many operations of each stream run on lanes of its own; the rest on all lanes.
    pub apart: [usize; 2],
    /// Pairs (operation of `behind`, operation of `ahead`) that an event orders, indices into the
    /// phase's operations.
    pub hand_overs: Vec<(usize, usize)>,
}

impl Layout {
    /// Whether two operations run beside each other, on lanes of different streams.
    #[must_use]
    pub fn is_beside(&self, streams: &[Vec<usize>; 2], a: usize, b: usize) -> bool {
        let apart = |stream: usize, op: usize| {
            streams[stream][..self.apart[stream]].binary_search(&op).is_ok()
        };
        (apart(0, a) && apart(1, b)) || (apart(0, b) && apart(1, a))
    }
}

/// A step of a region that schedules and predictions are made for: a whole chunk, in the middle of
/// the longest prompt.
#[must_use]
pub fn step(bounds: &Bounds) -> Step {
    let tokens = bounds.prefill_chunk.clamp(1, bounds.max_input_tokens.max(1));
    Step { tokens, depth: bounds.max_input_tokens.saturating_sub(tokens) / 2 }
}

/// The schedule of a region, and how its lanes are shared; `None` where the streams gain nothing by
/// lanes of their own.
///
/// # Errors
/// An operation that breaks its contract.
pub fn schedule(
    program: &Program,
    phase: PhaseId,
    (lanes, streams): (u32, Streams<'_>),
    (balance, bounds): (&Balance, &Bounds),
    placements: &[Placement],
) -> Result<(Schedule, Option<Layout>), PlanError> {
    let lanes = lanes as usize;
    let whole =
        crate::schedule::schedule(program, phase, Group::all(lanes as u32), &Default::default())?;
    let planner = Planner {
        program,
        phase,
        streams: streams.split(&program.phases[phase.index()]),
        step: step(bounds),
        balance,
        placements,
    };
    let known = planner.streams.iter().map(Vec::len).sum::<usize>();
    let whose = known == program.phases[phase.index()].ops.len();
    if lanes < 2 || !whose || planner.streams.iter().any(Vec::is_empty) {
        return Ok((whole, None));
    }
    let hand_overs = planner.hand_overs()?;
    let Some(layout) = planner.best_layout(lanes, hand_overs)? else { return Ok((whole, None)) };
    let Some(schedule) = planner.weave(lanes, &layout)? else { return Ok((whole, None)) };
    match planner.end_ps(&schedule)? < planner.end_ps(&whole)? * GAIN_LEAST {
        true => Ok((schedule, Some(layout))),
        false => Ok((whole, None)),
    }
}

/// What is said of a region: `costs` are those of each phase's operations.
///
/// # Errors
/// An operation that breaks its contract.
pub fn report(
    scene: &Scene<'_>,
    layout: Option<&Layout>,
    (schedules, costs): (&[Schedule], &[Vec<Cost>]),
    (balance, bounds): (&Balance, &Bounds),
) -> Result<RegionReport, PlanError> {
    let (program, phase) = (scene.program, scene.phase);
    let region = &program.phases[phase.index()];
    let step = step(bounds);
    let mut streams = Vec::new();
    if let (Some(layout), Some(names)) = (layout, Streams::of(region)) {
        // Of several models each phase has its model's label before its own name.
        let label = region.name.rsplit_once(':').map_or("", |(label, _)| label);
        let colon = if label.is_empty() { "" } else { ":" };
        for (index, name) in [names.behind, names.ahead].into_iter().enumerate() {
            let Some(own) = program.phase_named(&format!("{label}{colon}{name}")) else { continue };
            let alone = Scene { phase: own, schedule: &schedules[own.index()], ..*scene };
            let times = timeline(&alone, balance, step)?;
            let (mut all_ps, mut bandwidth_ps) = (0.0, 0.0);
            for span in &times.spans {
                let bound = costs[own.index()][span.op.index()].bandwidth_bound;
                all_ps += span.end_ps - span.start_ps;
                bandwidth_ps += if bound { span.end_ps - span.start_ps } else { 0.0 };
            }
            streams.push(StreamReport {
                phase: own,
                first_lane: layout.lanes[index].start as u32,
                lanes: layout.lanes[index].len() as u32,
                ops_apart: layout.apart[index] as u32,
                alone_ns: (times.end_ps / 1e3) as u64,
                bandwidth_percent: (100.0 * bandwidth_ps / all_ps.max(1.0)) as u32,
            });
        }
    }
    let least_patches = least_patches(scene, (schedules, &streams), (balance, step))?;
    let pairs = layout.into_iter().flat_map(|layout| &layout.hand_overs);
    Ok(RegionReport {
        phase,
        streams,
        hand_overs: pairs.map(|(a, b)| (OpId::of(*a), OpId::of(*b))).collect(),
        least_patches,
        together_ns: (timeline(scene, balance, step)?.end_ps / 1e3) as u64,
        segments: segments(bounds),
    })
}

/// Sizes of a tile that are looked at, of the largest.
const SIZES: u64 = 16;

/// The smallest tile from which on a run of the region is expected to take no longer than its
/// streams one after the other: its lanes are shared for the largest tile. 0 where tiles have one
/// size.
fn least_patches(
    scene: &Scene<'_>,
    (schedules, streams): (&[Schedule], &[StreamReport]),
    (balance, step): (&Balance, Step),
) -> Result<u64, PlanError> {
    let Some(most) = patches_max(scene.program) else { return Ok(0) };
    let mut least = most;
    for size in (1..=SIZES).rev() {
        let patches = (most * size / SIZES).max(1);
        let mut apart = 0.0;
        for stream in streams {
            let schedule = &schedules[stream.phase.index()];
            let alone = Scene { phase: stream.phase, schedule, ..*scene };
            apart += with_patches_ps(&alone, balance, (step, patches))?;
        }
        if with_patches_ps(scene, balance, (step, patches))? > apart && size < SIZES {
            break;
        }
        least = patches;
    }
    Ok(least)
}

/// Pictures of which the parts of a prompt are listed; further ones go on alike.
const PICTURES_LISTED: u64 = 8;

/// What each part of a prompt `text 0, picture 1, text 1, …` waits for. A causal decoder needs the
/// keys and values of all that stands before; a picture's rows are there when it is encoded; and
/// encoding needs nothing but the pictures before it, whose buffer of pixels it takes.
fn segments(bounds: &Bounds) -> Vec<Segment> {
    if bounds.max_images == 0 {
        return Vec::new();
    }
    let segment =
        |name: String, waits_for: &[String]| Segment { name, waits_for: waits_for.to_vec() };
    let text = |index: u64| format!("text {index}");
    let picture = |index: u64| format!("picture {index}");
    let vision = |index: u64| format!("vision of picture {index}");
    let mut segments = vec![segment(text(0), &[])];
    for index in 1..=bounds.max_images.min(PICTURES_LISTED) {
        let before = if index > 1 { vec![vision(index - 1)] } else { Vec::new() };
        segments.push(segment(vision(index), &before));
        segments.push(segment(picture(index), &[text(index - 1), vision(index)]));
        segments.push(segment(text(index), &[picture(index)]));
    }
    segments
}

struct Planner<'a> {
    program: &'a Program,
    phase: PhaseId,
    /// Operations of `behind` and of `ahead`.
    streams: [Vec<usize>; 2],
    step: Step,
    balance: &'a Balance,
    placements: &'a [Placement],
}

impl Planner<'_> {
    /// Operations of the two streams that touch one tensor, which one of them writes.
    fn hand_overs(&self) -> Result<Vec<(usize, usize)>, PlanError> {
        let ops = &self.program.phases[self.phase.index()].ops;
        let mut touched: BTreeMap<TensorId, Vec<(usize, bool)>> = BTreeMap::new();
        for index in &self.streams[0] {
            for access in accesses(&ops[*index])? {
                touched.entry(access.tensor).or_default().push((*index, access.mode.writes()));
            }
        }
        let mut pairs = Vec::new();
        for index in &self.streams[1] {
            for access in accesses(&ops[*index])? {
                let earlier = touched.get(&access.tensor).into_iter().flatten();
                let conflicts = earlier.filter(|(_, writes)| *writes || access.mode.writes());
                pairs.extend(conflicts.map(|(earlier, _)| (*earlier, *index)));
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        Ok(pairs)
    }

    /// The lanes and the meeting point of the least time.
    fn best_layout(
        &self,
        lanes: usize,
        hand_overs: Vec<(usize, usize)>,
    ) -> Result<Option<Layout>, PlanError> {
        let alone = [self.ends(0, 1)?, self.ends(1, 1)?];
        let all = [self.ends(0, lanes)?, self.ends(1, lanes)?];
        let last = |ends: &[f64]| ends.last().copied().unwrap_or(0.0);
        let (behind, ahead) = (last(&alone[0]), last(&alone[1]));
        let ideal = (lanes as f64 * behind / (behind + ahead).max(1.0)) as usize;
        let mut best: Option<(f64, Layout)> = None;
        for own in ideal.saturating_sub(1).max(1)..=(ideal + 2).min(lanes - 1) {
            let ends = [self.ends(0, own)?, self.ends(1, lanes - own)?];
            let longer = usize::from(last(&ends[1]) > last(&ends[0]));
            let shorter = 1 - longer;
            let whole = self.streams[shorter].len();
            let at = |ends: &[f64], apart: usize| if apart == 0 { 0.0 } else { ends[apart - 1] };
            let left = |stream: usize, apart: usize| last(&all[stream]) - at(&all[stream], apart);
            for apart in self.least_apart(longer, &hand_overs).max(1)..=self.streams[longer].len() {
                let there = at(&ends[longer], apart);
                // All of the shorter stream, or as much as is done when the longer one is there.
                let fits = ends[shorter].iter().take_while(|end| **end <= there).count();
                let fits = fits.max(self.least_apart(shorter, &hand_overs)).clamp(1, whole);
                for other in [whole, fits] {
                    let apart_ps = there.max(at(&ends[shorter], other));
                    let total = apart_ps + left(longer, apart) + left(shorter, other);
                    if best.as_ref().is_none_or(|(least, _)| total < *least) {
                        let mut counts = [other; 2];
                        counts[longer] = apart;
                        let layout = Layout {
                            lanes: [0..own, own..lanes],
                            apart: counts,
                            hand_overs: hand_overs.clone(),
                        };
                        best = Some((total, layout));
                    }
                }
            }
        }
        Ok(best.map(|(_, layout)| layout))
    }

    /// Operations that a stream must run on its own lanes: what it hands over to the other stream,
    /// which is not to wait for the meeting point, and one more, so that this point is not the
    /// event of what is handed over.
    fn least_apart(&self, stream: usize, hand_overs: &[(usize, usize)]) -> usize {
        let last = hand_overs.iter().map(|(earlier, _)| *earlier).max();
        match (stream, last) {
            (0, Some(last)) => {
                let place = self.streams[0].iter().position(|index| *index == last);
                place.map_or(0, |place| (place + 2).min(self.streams[0].len()))
            }
            _ => 0,
        }
    }

    /// When each operation of a stream would end if it alone ran, on so many lanes.
    fn ends(&self, stream: usize, lanes: usize) -> Result<Vec<f64>, PlanError> {
        let ops = &self.program.phases[self.phase.index()].ops;
        let mut weaver = Weaver::new(lanes, Alignment::Counts);
        for index in &self.streams[stream] {
            weaver.op(*index, &ops[*index])?;
        }
        let schedule = weaver.finish();
        let ends = timeline(&self.scene(&schedule), self.balance, self.step)?.ends(ops.len());
        Ok(self.streams[stream].iter().map(|index| ends[*index]).collect())
    }

    /// The schedule of a layout; `None` where what is handed over cannot be told from the meeting
    /// point.
    fn weave(&self, lanes: usize, layout: &Layout) -> Result<Option<Schedule>, PlanError> {
        let ops = &self.program.phases[self.phase.index()].ops;
        let mut weaver = Weaver::new(lanes, Alignment::Counts);
        for (stream, group) in self.streams.iter().zip(&layout.lanes).zip(layout.apart) {
            let (stream, own) = stream;
            weaver.regroup(own.clone());
            for index in &stream[..group] {
                weaver.op(*index, &ops[*index])?;
            }
        }
        let rest: Vec<usize> =
            (0..2).flat_map(|s| &self.streams[s][layout.apart[s]..]).copied().collect();
        let mut meeting = None;
        if !rest.is_empty() {
            weaver.regroup(0..lanes);
            meeting = Some(weaver.cut());
        }
        for index in &rest {
            weaver.op(*index, &ops[*index])?;
        }
        let mut schedule = weaver.finish();
        let before_meeting = |index: &usize| !rest.contains(index);
        let pairs = layout.hand_overs.iter().filter(|(_, later)| before_meeting(later));
        let pairs: Vec<(usize, usize)> = pairs.copied().collect();
        Ok(hand_over(&mut schedule, &pairs, meeting).then_some(schedule))
    }

    fn end_ps(&self, schedule: &Schedule) -> Result<f64, PlanError> {
        Ok(timeline(&self.scene(schedule), self.balance, self.step)?.end_ps)
    }

    fn scene<'s>(&'s self, schedule: &'s Schedule) -> Scene<'s> {
        let (program, placements) = (self.program, self.placements);
        Scene { program, phase: self.phase, schedule, placements }
    }
}

/// Adds the events that order these pairs. Gives back whether that can be done: a task has one
/// event, and where that is the meeting point, what comes before it cannot wait for it.
fn hand_over(schedule: &mut Schedule, pairs: &[(usize, usize)], meeting: Option<EventId>) -> bool {
    let mut waits: BTreeMap<usize, Vec<EventId>> = BTreeMap::new();
    let mut earlier_events: BTreeMap<usize, Vec<EventId>> = BTreeMap::new();
    for (earlier, later) in pairs {
        let events = earlier_events.entry(*earlier).or_insert_with(|| signals(schedule, *earlier));
        if events.iter().any(|event| Some(*event) == meeting) {
            return false;
        }
        let list = waits.entry(*later).or_default();
        list.extend(events.iter());
        list.sort_unstable();
        list.dedup();
    }
    for task in schedule.lanes.iter_mut().flatten() {
        for event in waits.get(&task.op.index()).into_iter().flatten() {
            if !task.waits.contains(event) {
                task.waits.push(*event);
            }
        }
    }
    true
}

/// The events after which an operation is done: those that its tasks signal already, and a new one
/// for the others.
fn signals(schedule: &mut Schedule, op: usize) -> Vec<EventId> {
    let fresh = EventId(schedule.events);
    let mut events = Vec::new();
    for task in schedule.lanes.iter_mut().flatten().filter(|task| task.op.index() == op) {
        let event = *task.signals.get_or_insert(fresh);
        if !events.contains(&event) {
            events.push(event);
        }
    }
    schedule.events += u32::from(events.contains(&fresh));
    events
}
