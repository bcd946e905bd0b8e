//! Weights that come and go: whose turn it is, and loading the other set when that changes.
//!
//! In a phase-resident plan the encoder's weights and the decoder's stand on the same bytes. Which
//! of them are there is remembered here; a step that needs the others loads them first, from the
//! files, which stay open. Inside a turn nothing is read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dctms_exec::{Constant, LoadHost, Session};
use dctms_ir::Program;
use dctms_ir::ids::PhaseId;
use dctms_models::phases;
use dctms_system::interrupt::stop_requested;

use crate::error::{Class, EngineError};
use crate::model::ModelFiles;

/// Whose weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The decoder's.
    Text,
    /// The encoder's.
    Vision,
}

/// What loading weights again took so far.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Reloads {
    /// Times.
    pub count: u64,
    /// Bytes read from files.
    pub bytes: u64,
    /// Seconds.
    pub seconds: f64,
}

/// The turns of a phase-resident plan.
pub struct Turns {
    text: PhaseId,
    vision: PhaseId,
    now: Option<Turn>,
    files: Option<ModelFiles>,
    reloads: Reloads,
}

impl Turns {
    /// Those of a program; nothing where all weights stay.
    #[must_use]
    pub fn of(program: &Program) -> Option<Turns> {
        let text = program.phase_named(phases::LOAD_TEXT)?;
        let vision = program.phase_named(phases::LOAD_VISION)?;
        Some(Turns { text, vision, now: None, files: None, reloads: Reloads::default() })
    }

    /// Keeps the files to load from.
    pub fn keep(&mut self, files: ModelFiles) {
        self.files = Some(files);
    }

    /// What loading took so far.
    #[must_use]
    pub fn reloads(&self) -> Reloads {
        self.reloads
    }

    /// Makes a set of weights resident. Allocates nothing.
    ///
    /// # Errors
    /// A file that cannot be read any more: the weights then have to be loaded again.
    pub fn take(&mut self, turn: Turn, session: &mut Session) -> Result<(), EngineError> {
        if self.now == Some(turn) {
            return Ok(());
        }
        let files = self.files.as_ref().ok_or_else(|| {
            EngineError::new(Class::System, "the files of a phase-resident plan were not kept")
        })?;
        let start = Instant::now();
        let host = Host { files, turn, bytes: AtomicU64::new(0) };
        self.now = None;
        let phase = match turn {
            Turn::Text => self.text,
            Turn::Vision => self.vision,
        };
        session.reload(phase, &host).map_err(|error| match stop_requested() {
            // The file is as good as it was.
            true => EngineError::new(Class::System, "stopped before the weights were loaded"),
            false => error.into(),
        })?;
        self.now = Some(turn);
        for file in files.handles() {
            // Advice: a kernel that does not take it keeps its cache.
            let _ = dctms_system::output::drop_page_cache(file, 0, 0);
        }
        self.reloads.count += 1;
        self.reloads.bytes += host.bytes.into_inner();
        self.reloads.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }
}

/// The files, and how much was read of them.
struct Host<'a> {
    files: &'a ModelFiles,
    turn: Turn,
    bytes: AtomicU64,
}

impl LoadHost for Host<'_> {
    fn read(&self, file: u32, offset: u64, buffer: &mut [u8]) -> Result<(), String> {
        if stop_requested() {
            return Err("stopped".to_string());
        }
        self.files.read(file, offset, buffer)
    }

    fn build_tokenizer(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<(), String> {
        Err("the tokeniser's tables stay".to_string())
    }

    fn constant(&self, arena_offset: usize, out: &mut [u8]) -> Result<Constant, String> {
        match self.turn {
            // Two sets stand on the same bytes, so a place says nothing of whose it is.
            Turn::Vision => Ok(Constant::Elsewhere),
            Turn::Text => self.files.constant(arena_offset, out),
        }
    }

    fn loaded(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
