//! What a session refuses by itself, so that no safe call reads or writes what it must not: pages
//! of a file in the wrong place, half-loaded weights, tensors of another session, missing lanes.
//!
//! Most of these would end the process where they are not refused.

mod common;
#[path = "common/vision.rs"]
#[allow(dead_code, reason = "each test uses a part of it")]
mod vision;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Setup, tiny};
use dctms_engine::loading::Loader;
use dctms_engine::planning::{Planned, certify};
use dctms_engine::session::session_options;
use dctms_engine::{Model, VisionMode};
use dctms_exec::{CertifiedPlan, Constant, ExecError, FilePart, LoadHost, Session};
use dctms_ir::ids::{PhaseId, TensorId};
use dctms_ir::plan::{Plan, Task};
use dctms_ir::{Residence, json};
use dctms_kernels::isa::Isa;
use dctms_models::{names, phases};
use dctms_planner::Activations;
use vision::{VisionRun, VisionSetup};

const PAGE: usize = 4096;

fn planned() -> (Model, Planned) {
    let model = tiny("llama-f16.gguf");
    let planned = Setup::new(64).plan(&model);
    (model, planned)
}

fn start(planned: &Planned) -> Session {
    let certified = CertifiedPlan::new(&planned.plan, &planned.certificate).expect("its own");
    let options = session_options(&planned.plan, 256 << 10).expect("this machine's options");
    Session::start(certified, &options).expect("a session")
}

fn phase(plan: &Plan, name: &str) -> PhaseId {
    plan.program.phase_named(name).expect("a phase of every decoder")
}

/// First bytes of the arena on which only constants stand.
fn constants_len(plan: &Plan) -> usize {
    let placed = plan.program.tensors.iter().zip(&plan.placements);
    let others = placed.filter(|(tensor, _)| tensor.residence != Residence::Constant);
    others.filter_map(|(_, placement)| placement.offset).min().expect("there are others") as usize
}

/// A file of so many zeros.
fn zeros(name: &str, len: usize) -> File {
    let path = std::env::temp_dir().join(format!("dctms-guards-{}-{name}", std::process::id()));
    std::fs::write(&path, vec![0; len]).expect("written");
    let file = File::open(&path).expect("opened");
    std::fs::remove_file(&path).expect("removed");
    file
}

/// A host that has every constant ready, or none; and fails from the `reads`-th read on.
struct Host {
    ready: Constant,
    reads: AtomicU64,
}

impl Host {
    fn ready() -> Host {
        Host { ready: Constant::Filled, reads: AtomicU64::new(0) }
    }

    fn fails_after(reads: u64) -> Host {
        Host { ready: Constant::Elsewhere, reads: AtomicU64::new(reads) }
    }
}

impl LoadHost for Host {
    fn read(&self, _: u32, _: u64, buffer: &mut [u8]) -> Result<(), String> {
        let down = |left: u64| left.checked_sub(1);
        let left = self.reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, down);
        left.map_err(|_| "no more of this file".to_string())?;
        buffer.fill(0);
        Ok(())
    }

    fn build_tokenizer(&self, _: u64, _: &[u8], tables: &mut [u8]) -> Result<(), String> {
        tables.fill(0);
        Ok(())
    }

    fn constant(&self, _: usize, out: &mut [u8]) -> Result<Constant, String> {
        if self.ready == Constant::Filled {
            out.fill(0);
        }
        Ok(self.ready)
    }

    fn loaded(&self, _: u64) {}
}

#[test]
fn a_file_is_mapped_over_constants_alone_before_anything_is_loaded_and_once() {
    let (_, planned) = planned();
    let bound = constants_len(&planned.plan);
    let most = bound / PAGE * PAGE;
    assert!(most > PAGE, "a model of some pages");
    let file = zeros("over", most + 2 * PAGE);
    let part = |len_bytes: usize| Some(FilePart { file: &file, at: 0, len_bytes });
    let mut session = start(&planned);
    let refused = session.make_resident(part(most + PAGE), || ());
    assert_eq!(refused, Err(ExecError::Mapped { len_bytes: most + PAGE, bound }));
    let short = zeros("short", PAGE);
    let beyond = FilePart { file: &short, at: 0, len_bytes: 2 * PAGE };
    let refused = session.make_resident(Some(beyond), || ());
    assert!(matches!(refused, Err(ExecError::System { .. })), "{refused:?}");
    // Nothing was done so far.
    session.make_resident(part(most), || ()).expect("mapped");
    session.make_resident(None, || ()).expect("what is mapped stays so");
    assert_eq!(session.make_resident(part(most), || ()), Err(ExecError::MappedLate));
    session.load(phase(&planned.plan, phases::LOAD), &Host::ready()).expect("loaded");

    let mut session = start(&planned);
    session.make_resident(None, || ()).expect("resident");
    session.load(phase(&planned.plan, phases::LOAD), &Host::ready()).expect("loaded");
    assert_eq!(session.make_resident(part(most), || ()), Err(ExecError::MappedLate));
}

/// The last page ends inside a constant. A host that lacks its rest would have it made anew, on
/// pages that nobody may write.
#[test]
fn a_constant_that_is_partly_mapped_is_not_made_anew() {
    let (_, planned) = planned();
    let cut = |at: &usize| {
        let placed = planned.plan.program.tensors.iter().zip(&planned.plan.placements);
        placed.filter(|(tensor, _)| tensor.residence == Residence::Constant).any(
            |(_, placement)| {
                let start = placement.offset.expect("placed") as usize;
                start < *at && *at < start + placement.bytes as usize
            },
        )
    };
    let mut pages = (1..=constants_len(&planned.plan) / PAGE).map(|pages| pages * PAGE);
    let len_bytes = pages.rfind(cut).expect("a constant over the end of a page");
    let file = zeros("cut", len_bytes);
    let mut session = start(&planned);
    let part = FilePart { file: &file, at: 0, len_bytes };
    session.make_resident(Some(part), || ()).expect("mapped");
    let host = Host::fails_after(u64::MAX);
    let failed = session.load(phase(&planned.plan, phases::LOAD), &host);
    let Err(ExecError::Load { message, .. }) = failed else { panic!("{failed:?}") };
    assert!(message.contains("are mapped, the rest is not"), "{message}");
}

/// No whole page in the file: the arena's first bytes are gone by then.
#[test]
fn what_is_withheld_is_touched_by_nobody() {
    let (_, planned) = planned();
    let file = zeros("withheld", 3 * PAGE);
    let mut session = start(&planned);
    let part = FilePart { file: &file, at: 1, len_bytes: PAGE };
    let failed = session.make_resident(Some(part), || ());
    assert!(matches!(failed, Err(ExecError::System { .. })), "{failed:?}");
    let plan = &planned.plan;
    let load = phase(plan, phases::LOAD);
    assert_eq!(session.load(load, &Host::ready()), Err(ExecError::Withheld));
    assert_eq!(session.reload(load, &Host::ready()), Err(ExecError::Withheld));
    assert_eq!(session.make_resident(None, || ()), Err(ExecError::Withheld));
    let streams = dctms_kernels::peak::Streams::Four;
    let read = session.read_weights(phase(plan, phases::DECODE), streams);
    assert_eq!(read, Err(ExecError::Withheld));
    assert!(session.constant(first_constant(plan)).is_none());
    session.retire().map(|_| ()).expect("it can still be ended");
}

fn first_constant(plan: &Plan) -> TensorId {
    let tensors = plan.program.tensors.iter();
    let mut constants = tensors.zip(0..).filter(|(one, _)| one.residence == Residence::Constant);
    TensorId::of(constants.next().expect("weights").1)
}

/// What failed half way is lent to nobody, nothing runs on it, and it may be loaded again.
#[test]
fn half_loaded_constants_are_neither_lent_nor_used() {
    let (model, planned) = planned();
    let plan = &planned.plan;
    let (load, prefill) = (phase(plan, phases::LOAD), phase(plan, phases::PREFILL));
    let mut session = start(&planned);
    session.make_resident(None, || ()).expect("resident");
    let id = first_constant(plan);
    assert!(session.constant(id).is_none());
    let failed = session.load(load, &Host::fails_after(3));
    assert!(matches!(failed, Err(ExecError::Load { .. })), "{failed:?}");
    assert!(session.constant(id).is_none());
    let refused = session.run(prefill);
    assert!(matches!(refused, Err(ExecError::Order { .. })), "{refused:?}");
    let files = model.files(plan).expect("files");
    let loader = Loader::new(&files, model.vocabulary.as_ref(), None);
    session.load(load, &loader).expect("loaded at last");
    let lent = session.constant(id).expect("loaded");
    assert!(lent.bytes().iter().any(|byte| *byte != 0));
    assert_eq!(session.make_resident(None, || ()), Err(ExecError::Lent));
}

#[test]
fn a_tensor_of_another_session_is_refused() {
    let (_, planned) = planned();
    let (mut one, other) = (start(&planned), start(&planned));
    let id = planned.plan.program.tensor_named(names::TOKENS).expect("every decoder's");
    let (own, foreign) = (one.host_tensor(id), other.host_tensor(id));
    let (own, foreign) = (own.expect("the host's"), foreign.expect("the host's"));
    assert_ne!(own, foreign);
    one.integers_mut(own)[0] = 1;
    let refused = |mut use_it: Box<dyn FnMut() + '_>| {
        assert!(catch_unwind(AssertUnwindSafe(&mut use_it)).is_err());
    };
    refused(Box::new(|| assert!(!one.bytes(foreign).is_empty())));
    refused(Box::new(|| assert!(!one.floats(foreign).is_empty())));
    refused(Box::new(|| assert!(!one.integers(foreign).is_empty())));
    refused(Box::new(|| one.bytes_mut(foreign)[0] = 1));
    refused(Box::new(|| one.integers_mut(foreign)[0] = 1));
    assert_eq!(one.integers(own)[0], 1);
}

/// Lists of lanes that are not there would be waited for without end.
#[test]
fn a_session_has_a_lane_for_each_of_the_plan() {
    let (_, planned) = planned();
    let certified = CertifiedPlan::new(&planned.plan, &planned.certificate).expect("its own");
    let mut options = session_options(&planned.plan, 256 << 10).expect("this machine's options");
    assert_eq!(options.lanes.lanes, 2);
    options.lanes.lanes = 1;
    let refused = Session::start(certified, &options).map(|_| ());
    assert_eq!(refused, Err(ExecError::Lanes { needed: 2, value: 1 }));
}

/// A phase that loads, planned off lane 0, so that another could run beside it: there is no host
/// to load from, and that is no success.
#[test]
fn nothing_is_loaded_beside_another_phase() {
    let (_, Planned { mut plan, .. }) = planned();
    let load = phase(&plan, phases::LOAD);
    let schedule = &mut plan.schedules[load.index()];
    let mut tasks: Vec<Task> = schedule.lanes.drain(..).flatten().collect();
    tasks.sort_by_key(|task| (task.op, task.shard));
    tasks.iter_mut().for_each(|task| (task.waits, task.signals) = (Vec::new(), None));
    (schedule.lanes, schedule.events) = (vec![Vec::new(), tasks], 0);
    let plan = json::read(&json::write(&plan)).expect("reads back");
    let certificate = certify(&plan).unwrap_or_else(|error| panic!("{error}"));
    let planned = Planned { plan, certificate };
    let mut session = start(&planned);
    let prepare = |_: &mut dctms_exec::Preparing| Ok::<(), ()>(());
    let ran = session.run_beside((load, &|| false), prepare, |_| ());
    assert!(matches!(ran, Err(ExecError::Load { .. })), "{ran:?}");
    assert!(session.constant(first_constant(&planned.plan)).is_none());
    let refused = session.run(phase(&planned.plan, phases::PREFILL));
    assert!(matches!(refused, Err(ExecError::Order { .. })), "nothing was loaded: {refused:?}");
}

/// Weights that come and go: after a failure nothing runs but what loads the same set again, or
/// the other one, whose users need nothing of the first.
#[test]
fn after_a_failed_reload_only_a_reload_follows() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let file = |ending: &str| folder.join(format!("vision-idefics3-{ending}"));
    let setup = VisionSetup {
        isa: Isa::detect_best(),
        lanes: 2,
        activations: Activations::Quantised,
        context: (400, 40),
        chunk: 24,
        image_tokens: 300,
        mode: VisionMode::PhaseResident,
    };
    let texts = [file("text-f16.gguf"), file("mmproj-f16.gguf")];
    let mut run = VisionRun::start(&texts[0], &texts[1], &setup, &[]);
    let before = run.prefill(&[2, 9, 4], &[0; 3]);
    run.positions = 0;
    let [load_text, load_vision, prefill, see] =
        [phases::LOAD_TEXT, phases::LOAD_VISION, phases::PREFILL, phases::VISION]
            .map(|name| phase(&run.plan, name));
    let order = |ran: Result<(), ExecError>| {
        assert!(matches!(ran, Err(ExecError::Order { .. })), "{ran:?}");
    };
    let fails = |ran: Result<(), ExecError>| {
        assert!(matches!(ran, Err(ExecError::Load { .. })), "{ran:?}");
    };
    let session = &mut run.session;
    fails(session.reload(load_vision, &Host::fails_after(3)));
    // Half of one set, and so not the whole of either.
    order(session.run(see));
    order(session.run(prefill));
    fails(session.reload(load_text, &Host::fails_after(3)));
    order(session.run(prefill));
    order(session.run(see));
    fails(session.reload(load_vision, &Host::fails_after(2)));
    fails(session.reload(load_text, &Host::fails_after(0)));
    order(session.run(prefill));
    // `run` has the decoder's for loaded: nobody told it.
    run.forget_loaded();
    assert_eq!(run.prefill(&[2, 9, 4], &[0; 3]), before);
}
