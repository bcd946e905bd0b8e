//! A model file, opened: its header read, its numbers checked, its vocabulary measured.
//!
//! Nothing of the weights is read. Belongs to the compile stage: it is dropped before an arena is
//! touched; [`ModelFiles`] is what lives on, to load from.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dctms_exec::Constant;
use dctms_format::{Checkpoint, ShardName, shard_file_name};
use dctms_ir::Plan;
use dctms_ir::program::ModelInfo;
use dctms_models::{DecoderConfig, VisionMode, read_config};
use dctms_text::{Facts, TableLayout};

use crate::artefact::{Artefact, Mapping, Pieces, Verify, Weights};
use crate::error::{Class, EngineError};
use crate::eyes::Eyes;
use crate::model_file::CheckpointFile;
use crate::planning::mode_of;
use crate::vocabulary::VocabularyInfo;

/// Longest chat template that is accepted, bytes.
pub const TEMPLATE_BYTES_MAX: usize = 256 * 1024;

/// An opened model.
pub struct Model {
    /// Its header.
    pub checkpoint: Checkpoint,
    /// Its numbers.
    pub config: DecoderConfig,
    /// Its vocabulary, when the file has one.
    pub vocabulary: Option<Vocabulary>,
    /// Its chat template, when the file has one.
    pub template: Option<String>,
    /// The vision file beside it.
    pub eyes: Option<Eyes>,
    verify: Verify,
    weights: Weights,
    path: PathBuf,
    artefact: Option<Artefact>,
}

/// A measured vocabulary.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// Where it is.
    pub info: VocabularyInfo,
    /// What tables it needs.
    pub layout: TableLayout,
}

impl Model {
    /// Opens a model file (or the first of its shards), or a compiled model.
    ///
    /// # Errors
    /// Class `File` for any defect or unsupported feature of header, metadata or vocabulary.
    pub fn open(path: &Path) -> Result<Model, EngineError> {
        let artefact = Artefact::open(path)?;
        let checkpoint = match &artefact {
            Some(artefact) => artefact.checkpoint()?,
            None => Checkpoint::open(path)?,
        };
        let config = read_config(&CheckpointFile(&checkpoint))?;
        let file = |message: String| EngineError::new(Class::File, message);
        let info = VocabularyInfo::of(&checkpoint).map_err(file)?;
        let vocabulary = match info {
            Some(info) => Some(measure(&checkpoint, info)?),
            None => None,
        };
        if let Some(vocabulary) = &vocabulary {
            let tokens = vocabulary.info.token_count();
            if tokens > config.vocabulary {
                return Err(file(format!(
                    "tokenizer.ggml.tokens has {tokens} tokens, token_embd.weight {} rows",
                    config.vocabulary
                )));
            }
        }
        let template = checkpoint.read_string("tokenizer.chat_template")?;
        if let Some(long) = template.as_ref().filter(|text| text.len() > TEMPLATE_BYTES_MAX) {
            return Err(file(format!(
                "tokenizer.chat_template has {} bytes, at most {TEMPLATE_BYTES_MAX}",
                long.len()
            )));
        }
        let (eyes, path) = (None, path.to_path_buf());
        let (verify, weights) = (Verify::default(), Weights::default());
        Ok(Model {
            checkpoint,
            config,
            vocabulary,
            template,
            eyes,
            verify,
            weights,
            path,
            artefact,
        })
    }

    /// The same model with a vision file beside it.
    #[must_use]
    pub fn with_eyes(self, eyes: Eyes) -> Model {
        Model { eyes: Some(eyes), ..self }
    }

    /// Its header, and its vision file's: in the order that plans name them.
    pub fn checkpoints(&self) -> impl Iterator<Item = &Checkpoint> {
        std::iter::once(&self.checkpoint).chain(self.eyes.iter().map(|eyes| &eyes.checkpoint))
    }

    /// Refuses files that are not whole yet.
    ///
    /// # Errors
    /// Class `File` with the bytes that are missing.
    pub fn require_complete(&self) -> Result<(), EngineError> {
        self.checkpoint.require_complete()?;
        if let Some(eyes) = &self.eyes {
            eyes.checkpoint.require_complete()?;
        }
        Ok(())
    }

    /// What a plan says of the file.
    #[must_use]
    pub fn info(&self) -> ModelInfo {
        ModelInfo {
            file: self.checkpoint.file_name(0).to_string(),
            header_sha256: self.checkpoint.header_sha256_hex(),
            sha256: None,
            file_complete: self.checkpoint.file_complete(),
            architecture: self.config.architecture.to_string(),
            parameters: self.checkpoint.parameter_count(),
        }
    }

    /// Reads the vocabulary's bytes.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn vocabulary_bytes(&self, vocabulary: &Vocabulary) -> Result<Vec<u8>, EngineError> {
        read_range(&self.checkpoint, &vocabulary.info)
    }

    /// Opens the files again to load a plan of this model.
    ///
    /// # Errors
    /// A file that cannot be opened any more; a compiled model that lacks what the plan needs.
    pub fn files(&self, plan: &Plan) -> Result<ModelFiles, EngineError> {
        let shards = self.checkpoint.shard_count();
        let mut files = match &self.artefact {
            Some(artefact) => {
                let pieces = artefact.pieces(plan)?;
                let mapping = match self.weights {
                    Weights::Resident => None,
                    // What others are loaded over cannot be a file's pages.
                    Weights::Mapped => {
                        pieces.mapping().filter(|_| mode_of(plan) != VisionMode::PhaseResident)
                    }
                };
                let compiled = Some((pieces, shards));
                ModelFiles { files: Vec::new(), compiled, mapping, verify: self.verify }
            }
            None => ModelFiles::open(&self.path, shards)?,
        };
        if let Some(eyes) = &self.eyes {
            files.files.push(eyes.file()?);
        }
        Ok(files)
    }

    /// This model, of which loading checks so much.
    #[must_use]
    pub fn verified(self, verify: Verify) -> Model {
        Model { verify, ..self }
    }

    /// This model, whose weights will be where it is said.
    #[must_use]
    pub fn weighted(self, weights: Weights) -> Model {
        Model { weights, ..self }
    }

    /// Whether this is a compiled model.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        self.artefact.is_some()
    }
}

fn measure(checkpoint: &Checkpoint, info: VocabularyInfo) -> Result<Vocabulary, EngineError> {
    let bytes = read_range(checkpoint, &info)?;
    let facts = Facts::measure(&info.view(&bytes)).map_err(|e| EngineError::new(Class::File, e))?;
    Ok(Vocabulary { layout: TableLayout::new(facts), info })
}

fn read_range(checkpoint: &Checkpoint, info: &VocabularyInfo) -> Result<Vec<u8>, EngineError> {
    let range = info.range();
    // The header's limits bound this range; the file was seen to hold it.
    let mut bytes = vec![0; (range.end - range.start) as usize];
    checkpoint.source(0).read_at(range.start, &mut bytes).map_err(|error| {
        EngineError::new(Class::File, format!("reading the vocabulary: {error}"))
    })?;
    Ok(bytes)
}

/// The open files of a model.
pub struct ModelFiles {
    /// In shard order, then the vision file; only that one beside a compiled model.
    files: Vec<File>,
    /// The compiled constants, and how many files they were made from.
    compiled: Option<(Pieces, usize)>,
    mapping: Option<Mapping>,
    verify: Verify,
}

impl ModelFiles {
    fn open(path: &Path, count: usize) -> Result<ModelFiles, EngineError> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let shard = ShardName::parse(name);
        let mut files = Vec::with_capacity(count);
        for index in 0..count {
            let path = match (&shard, index) {
                (_, 0) => path.to_path_buf(),
                (Some(shard), index) => {
                    path.with_file_name(shard_file_name(shard.prefix, index as u64, count as u64))
                }
                (None, _) => path.to_path_buf(),
            };
            let file = File::open(&path).map_err(|error| {
                EngineError::new(Class::File, format!("{}: {error}", path.display()))
            })?;
            files.push(file);
        }
        Ok(ModelFiles { files, compiled: None, mapping: None, verify: Verify::default() })
    }

    /// Fills a buffer from a byte offset of a file.
    ///
    /// # Errors
    /// What the operating system said, with the offset.
    pub fn read(&self, file: u32, offset: u64, buffer: &mut [u8]) -> Result<(), String> {
        let compiled = self.compiled.as_ref().map_or(0, |(_, files)| *files);
        if let Some((pieces, _)) = self.compiled.as_ref().filter(|_| (file as usize) < compiled) {
            return match file {
                0 => pieces.read_header(offset, buffer),
                _ => Err(format!("only constants of file {file} are compiled")),
            };
        }
        self.files[file as usize - compiled].read_exact_at(buffer, offset).map_err(|error| {
            format!("{} bytes at offset {offset} of file {file}: {error}", buffer.len())
        })
    }

    /// Fills the constant that stands at an arena offset, where it is compiled.
    ///
    /// # Errors
    /// A file that cannot be read, or bytes that are not as compiled.
    pub fn constant(&self, arena_offset: usize, out: &mut [u8]) -> Result<Constant, String> {
        let Some((pieces, _)) = &self.compiled else { return Ok(Constant::Elsewhere) };
        let filled = pieces.fill(arena_offset, out, self.verify)?;
        Ok(filled.map_or(Constant::Elsewhere, |()| Constant::Filled))
    }

    /// The part of a compiled model that is to be mapped over the arena's first bytes.
    #[must_use]
    pub fn mapping(&self) -> Option<Mapping> {
        self.mapping
    }

    /// The compiled model's open file.
    #[must_use]
    pub fn compiled_file(&self) -> Option<&File> {
        self.compiled.as_ref().map(|(pieces, _)| pieces.file())
    }

    /// The files whose page cache is of no use after loading, in shard order: all but a compiled
    /// model, whose next start reads the same bytes again.
    #[must_use]
    pub fn handles(&self) -> &[File] {
        &self.files
    }
}
