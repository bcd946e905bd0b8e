//! The process as the envelope sees it: sizes of heap and stacks, and the order of its stages.

use dctms_engine::loading::Loader;
use dctms_engine::model::{ModelFiles, Vocabulary};
use dctms_engine::planning::{PlanSettings, Planned, compile_heap_bytes, image_heap_bytes, plan};
use dctms_engine::session::session_options;
use dctms_engine::{Class, EngineError, Model, Runner};
use dctms_exec::{CertifiedPlan, FilePart};
use dctms_ir::plan::{Bounds, Envelope};
use dctms_system::heap::Region;
use dctms_system::machine::machine_memory;
use dctms_system::seal::Seal;
use dctms_text::VocabularyKind;

use crate::HEAP;
use crate::args::UsageError;

/// Heap before a plan is known, bytes: arguments and machine facts.
pub const BOOT_HEAP_BYTES: usize = 512 << 10;
/// Address space kept for the heap until its limit is known, bytes.
pub const HEAP_RESERVE_BYTES: usize = 1 << 30;
/// Heap while a header is read, before it is known what the model needs, bytes: the vocabulary's
/// bytes are read to measure its tables.
pub const HEADER_HEAP_BYTES: usize = 48 << 20;
/// Address space kept for the heap of the stages that read, plan and verify, bytes.
pub const COMPILE_RESERVE_BYTES: usize = 1 << 30;
/// Heap of a run that does not depend on the plan, bytes.
pub const HEAP_FIXED_BYTES: u64 = 48 << 10;
/// Heap of a run for each scheduled task, bytes: its command, and the names that loading keeps.
pub const HEAP_PER_TASK_BYTES: u64 = 260;
/// Heap of a run for each event: a cache line.
pub const HEAP_PER_EVENT_BYTES: u64 = 64;
/// Heap of a run for each sequence: held text, digest, decoder.
pub const HEAP_PER_SEQUENCE_BYTES: u64 = 4 << 10;
/// Heap of a run for each token of a context: its id, and the time of its step.
pub const HEAP_PER_CONTEXT_TOKEN_BYTES: u64 = 8;
/// Stack of the control thread, which is lane 0, bytes.
pub const CONTROL_STACK_BYTES: usize = 512 << 10;
/// Stack of each further lane, bytes.
pub const LANE_STACK_BYTES: usize = 128 << 10;

/// What M_max does not count.
pub const NOT_COVERED: [&str; 4] = [
    "kernel page tables: 8 bytes for each 4 KiB mapped",
    "kernel stacks and descriptors of each thread: about 32 KiB",
    "kernel objects of the process and upper levels of its page tables: about 512 KiB",
    "page cache of the model file while it is read: reclaimable, dropped after loading",
];

/// Stack of every thread beside the main one.
#[must_use]
pub fn thread_stacks(lanes: u32) -> Vec<usize> {
    let mut stacks = vec![LANE_STACK_BYTES; lanes as usize];
    stacks[0] = CONTROL_STACK_BYTES;
    stacks
}

/// What lives on after planning.
pub struct Prepared {
    /// The loaded decoder.
    pub runner: Runner,
    /// Its vocabulary.
    pub vocabulary: Option<Vocabulary>,
    /// The envelope.
    pub envelope: Envelope,
    /// Lanes.
    pub lanes: u32,
    /// Why memory could not be locked, if it could not.
    pub unlocked: Option<String>,
    /// The kernel refuses every further byte of address space until this is lifted.
    pub seal: Seal,
}

impl Prepared {
    /// The kind of its vocabulary, for the scratch of encoding.
    #[must_use]
    pub fn vocabulary_kind(&self) -> VocabularyKind {
        let vocabulary = self.vocabulary.as_ref();
        vocabulary.map_or(VocabularyKind::BytePair, |vocabulary| vocabulary.layout.facts().kind)
    }
}

/// Arguments and environment, bytes with 8 for each: what the main thread's stack has room for.
pub const WORDS_BYTES_MAX: u64 = 32 << 10;

/// Refuses, before anything is parsed, words that the stack of the envelope does not hold.
///
/// # Errors
/// Both numbers, and what helps.
pub fn check_words() -> Result<(), UsageError> {
    let words_bytes = dctms_system::process::words_bytes();
    if words_bytes > WORDS_BYTES_MAX {
        return Err(UsageError::Wrong(format!(
            "arguments and environment take {words_bytes} bytes, at most {WORDS_BYTES_MAX} are in \
             the envelope: give long prompts by -f FILE, and start with less environment (env -i)"
        )));
    }
    Ok(())
}

/// Opens the compile stage: allocations of this thread go to its region until
/// [`CompileStage::close`].
pub struct CompileStage {
    scope: Option<dctms_system::heap::RegionScope>,
}

impl CompileStage {
    /// Begins it.
    ///
    /// # Errors
    /// An operating system without room.
    pub fn open() -> Result<CompileStage, EngineError> {
        HEAP.open_compile_region_within(HEADER_HEAP_BYTES, COMPILE_RESERVE_BYTES)?;
        Ok(CompileStage { scope: Some(HEAP.scope(Region::Compile)) })
    }

    /// Runs `work` with allocations that outlive the stage.
    pub fn lasting<T>(&self, work: impl FnOnce() -> T) -> T {
        let _scope = HEAP.scope(Region::Run);
        work()
    }

    /// Fixes the stage's limit to what the model's plan states for it.
    ///
    /// # Errors
    /// When reading the header took more already.
    pub fn limit_for(
        &self,
        model: &Model,
        lanes: u32,
        extra_bytes: u64,
    ) -> Result<(), EngineError> {
        let bytes = compile_heap_bytes(model, lanes) + extra_bytes;
        HEAP.set_compile_limit(bytes as usize)?;
        Ok(())
    }

    /// Ends it and gives its pages back; gives the most that was alive in it, bytes.
    ///
    /// # Errors
    /// When something in it is still alive: a bug of ours.
    pub fn close(mut self) -> Result<usize, EngineError> {
        drop(self.scope.take());
        Ok(HEAP.close_compile_region()?.live_peak_bytes)
    }
}

/// Whether the run heap's limit is still to be set: once in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapLimit {
    /// By this plan.
    Set,
    /// By the plan before, which left room.
    Kept,
}

/// Plans and verifies; refuses before any weight is read when the plan does not fit.
///
/// # Errors
/// Any defect of the model; class `DoesNotFit` with the shortfall.
pub fn certify(
    model: &Model,
    settings: &PlanSettings,
    bounds: &Bounds,
) -> Result<Planned, EngineError> {
    model.require_complete()?;
    let planned = plan(model, settings, bounds)?;
    let envelope = &planned.plan.envelope;
    if !envelope.fits() {
        return Err(does_not_fit(envelope));
    }
    // What this process holds already (an older plan's arena, say) is part of the new total.
    let own = dctms_system::process::memory_facts()?.resident_bytes;
    let available = machine_memory()?.available_bytes.saturating_add(own);
    if envelope.total > available {
        return Err(EngineError::new(
            Class::DoesNotFit,
            format!(
                "does not fit just now: M_max is {} bytes, {available} bytes are free, {} bytes \
                 too many",
                envelope.total,
                envelope.total - available
            ),
        ));
    }
    Ok(planned)
}

/// Starts what runs: the last act of the compile stage.
///
/// # Errors
/// A processor without the plan's instruction set, or an operating system without room.
pub fn launch(
    stage: &CompileStage,
    model: &Model,
    settings: &PlanSettings,
    planned: &Planned,
    limit: HeapLimit,
) -> Result<Started, EngineError> {
    let Planned { plan, certificate } = planned;
    let options = session_options(plan, LANE_STACK_BYTES)?;
    let picture_bytes = match limit {
        HeapLimit::Set => image_heap_bytes(model, settings),
        HeapLimit::Kept => 0,
    };
    if limit == HeapLimit::Set {
        let reserve = settings.runtime.replan_heap_bytes + picture_bytes;
        HEAP.set_run_limit((plan.envelope.runtime.heap - reserve) as usize)?;
    }
    let window = model.config.windows.iter().copied().max().unwrap_or(0);
    let facts = (model.config.vocabulary, window);
    let certified = CertifiedPlan::new(plan, certificate)?;
    stage.lasting(|| {
        Ok(Started {
            runner: Runner::start(certified, &options, facts)?,
            files: model.files(plan)?,
            vocabulary: model.vocabulary.clone(),
            envelope: plan.envelope.clone(),
            threads: plan.machine.lanes as usize,
            picture_bytes,
        })
    })
}

/// A started session whose weights are not loaded.
pub struct Started {
    runner: Runner,
    files: ModelFiles,
    vocabulary: Option<Vocabulary>,
    envelope: Envelope,
    threads: usize,
    /// Heap in which pictures are decoded, still to be made resident; 0 for none, or none new.
    picture_bytes: u64,
}

impl Started {
    /// The runner, to take caches over before anything is loaded.
    pub fn runner_mut(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// Bytes of packed weights that loading will write.
    #[must_use]
    pub fn weights_bytes(&self) -> u64 {
        self.envelope.weights
    }
}

/// Makes the arena resident, loads, seals. Call after the compile stage is closed.
///
/// # Errors
/// A file that cannot be read; an operating system that refuses.
pub fn load(
    started: Started,
    progress: Option<&(dyn Fn(u64) + Sync)>,
) -> Result<Prepared, EngineError> {
    let Started { mut runner, files, vocabulary, envelope, threads, picture_bytes } = started;
    // Not before: it is resident from here on, and the compile stage may have needed the room.
    if picture_bytes > 0 {
        HEAP.open_image_region(picture_bytes as usize)?;
    }
    let mapped = files.mapping().zip(files.compiled_file()).map(|(mapping, file)| FilePart {
        file,
        at: mapping.at,
        len_bytes: mapping.len_bytes,
    });
    let mut unlocked = None;
    runner.make_resident(mapped, || {
        unlocked = dctms_system::process::lock_all().err().map(|error| error.to_string());
        if unlocked.is_some() {
            // Without a lock at least nothing is read from storage for the first time later.
            let _ = dctms_system::image::prefault_image();
        }
    })?;
    let loader = Loader::new(&files, vocabulary.as_ref(), progress);
    runner.load(&loader)?;
    for file in files.handles() {
        // Advice: a kernel that does not take it keeps its cache.
        let _ = dctms_system::output::drop_page_cache(file, 0, 0);
    }
    runner.keep(files);
    dctms_system::footprint::check_footprint(threads)?;
    let seal = dctms_system::seal::seal()?;
    let lanes = threads as u32;
    Ok(Prepared { runner, vocabulary, envelope, lanes, unlocked, seal })
}

/// The refusal of a plan that does not fit.
fn does_not_fit(envelope: &Envelope) -> EngineError {
    EngineError::new(
        Class::DoesNotFit,
        format!(
            "does not fit: M_max is {} bytes, the limit is {} bytes, {} bytes too many",
            envelope.total,
            envelope.hardware,
            envelope.total - envelope.hardware
        ),
    )
}
