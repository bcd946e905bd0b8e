//! The constants of a model: pages of its compiled file, and a few small tables of our own.
//!
//! A compiled model holds packed weights as the kernels take them, so mapping it is what common
//! runtimes do with their files: pages come from the page cache at first use, and the kernel may
//! take them back. What cannot be mapped (tables that are made while loading, the end of the last
//! page) is kept in blocks.

use dctms_engine::{Class, EngineError, Model};
use dctms_exec::Constant;
use dctms_ir::plan::Plan;
use dctms_ir::{Residence, TensorId};
use dctms_models::names;
use dctms_system::arena::FilePages;

use crate::memory::Block;

/// Every constant of a plan.
pub struct Weights {
    mapped: FilePages,
    places: Vec<Place>,
}

/// Where a constant is.
enum Place {
    Mapped { start: usize, end: usize },
    Own(Block),
    None,
}

impl Weights {
    /// Maps a compiled model.
    ///
    /// # Errors
    /// Class `Usage` for a model that is not compiled or was not opened with mapped weights, a
    /// file that cannot be read.
    pub fn map(model: &Model, plan: &Plan) -> Result<Weights, EngineError> {
        let files = model.files(plan)?;
        let (Some(mapping), Some(file)) = (files.mapping(), files.compiled_file()) else {
            let what = "weights are mapped from a compiled model: make one with dctms compile";
            return Err(EngineError::new(Class::Usage, what));
        };
        let mapped = FilePages::map(mapping.len_bytes, file, mapping.at)?;
        let fault = |what: String| EngineError::new(Class::File, what);
        let mut places = Vec::with_capacity(plan.placements.len());
        for (tensor, placement) in plan.program.tensors.iter().zip(&plan.placements) {
            let offset = match (tensor.residence, placement.offset) {
                (Residence::Constant, Some(offset)) => offset as usize,
                (
                    Residence::Constant
                    | Residence::External
                    | Residence::State
                    | Residence::Carried
                    | Residence::Transient,
                    _,
                ) => {
                    places.push(Place::None);
                    continue;
                }
            };
            let end = offset + placement.bytes as usize;
            places.push(match end <= mapping.len_bytes {
                true => Place::Mapped { start: offset, end },
                false => {
                    let mut block = Block::touched(placement.bytes as usize);
                    let bytes = block.of_mut::<u8>();
                    match files.constant(offset, bytes).map_err(fault)? {
                        Constant::Filled => {}
                        Constant::Elsewhere => build_tables(model, &tensor.name, bytes)?,
                    }
                    Place::Own(block)
                }
            });
        }
        Ok(Weights { mapped, places })
    }

    /// The bytes of a constant; `None` for any other tensor.
    #[must_use]
    pub fn bytes(&self, id: TensorId) -> Option<&[u8]> {
        match &self.places[id.index()] {
            Place::Mapped { start, end } => Some(&self.mapped.bytes()[*start..*end]),
            Place::Own(block) => Some(block.of()),
            Place::None => None,
        }
    }
}

/// The only constant that is in no file: the tokeniser's tables.
fn build_tables(model: &Model, name: &str, out: &mut [u8]) -> Result<(), EngineError> {
    let vocabulary = model.vocabulary.as_ref().filter(|_| name == names::TOKENIZER);
    let vocabulary = vocabulary.ok_or_else(|| {
        EngineError::new(Class::File, format!("the compiled model has no {name}"))
    })?;
    let text = model.vocabulary_bytes(vocabulary)?;
    dctms_text::build(&vocabulary.layout, &vocabulary.info.view(&text), out)
        .map_err(|error| EngineError::new(Class::File, error.to_string()))
}
