//! A vision file beside a model, and what its pictures become: tiles, rows of embeddings, and the
//! text round them in a prompt.
//!
//! Two things are decided from sizes alone, before any pixel is read: how a picture is cut, and
//! how many tokens it takes. So a prompt with pictures has its length from their headers, and is
//! admitted or refused like any other. Believes `dctms_image` for geometry and the vision
//! configuration for numbers; must not know where a picture comes from.

use std::fs::File;
use std::path::{Path, PathBuf};

use dctms_format::Checkpoint;
use dctms_image::preprocess::idefics3::Idefics3;
use dctms_image::preprocess::lfm2::{Lfm2, Tiling};
use dctms_image::preprocess::qwen2vl::{ASPECT_MAX, Qwen2Vl};
use dctms_image::preprocess::{Layout, Part};
use dctms_image::{ImageBounds, Size};
use dctms_ir::program::ModelInfo;
use dctms_models::clip::{Projector, TileGrid};
use dctms_models::{VisionConfig, read_vision_config};

use crate::error::{Class, EngineError};
use crate::model_file::CheckpointFile;

/// Longest edge of a picture that any bound may allow, pixels.
pub const IMAGE_EDGE_MAX: u32 = dctms_image::limits::EDGE_MAX;

/// Most members of the encoder's family, the one for any tile among them.
pub const FAMILY_MAX: usize = 8;

/// How many pictures a request may have, and how large each may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Pictures of a request or of a conversation.
    pub count: u64,
    /// Pixels of the largest that is looked at: no more in all, and no longer edge.
    pub size: Size,
    /// What becomes of a larger one.
    pub oversize: Oversize,
    /// Members of the encoder's family for smaller tiles, at most, where grids vary.
    pub smaller: u32,
}

/// What becomes of a picture over the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oversize {
    /// It is refused.
    Refused,
    /// It is made smaller in its own shape, if it is no larger than this: so much is decoded.
    Resized(Size),
}

/// Members for smaller tiles unless asked otherwise: sides of a half and of a quarter.
const SMALLER: u32 = 2;

impl ImageLimits {
    /// So many pictures, each of at most `width` times `height` pixels.
    #[must_use]
    pub fn new(count: u64, (width, height): (u32, u32)) -> ImageLimits {
        let size = Size::new(width, height);
        ImageLimits { count, size, oversize: Oversize::Refused, smaller: SMALLER }
    }

    /// Larger ones are made smaller, up to a size that is decoded: `source`, or without one twice
    /// each edge.
    #[must_use]
    pub fn resizing(self, source: Option<(u32, u32)>) -> ImageLimits {
        let twice = |edge: u32| (2 * edge).min(IMAGE_EDGE_MAX);
        let (width, height) = source.unwrap_or((twice(self.size.width), twice(self.size.height)));
        ImageLimits { oversize: Oversize::Resized(Size::new(width, height)), ..self }
    }
}

impl Default for ImageLimits {
    fn default() -> Self {
        ImageLimits::new(1, (1024, 1024))
    }
}

impl ImageLimits {
    /// The bounds of a decoder.
    #[must_use]
    pub fn bounds(&self) -> ImageBounds {
        let seen = ImageBounds::of(self.size);
        match self.oversize {
            Oversize::Refused => seen,
            Oversize::Resized(source) => {
                let source = ImageBounds::of(source);
                ImageBounds {
                    pixels_max: source.pixels_max.max(seen.pixels_max),
                    edge_max: source.edge_max.max(seen.edge_max),
                }
            }
        }
    }

    /// The size at which a picture within the decoder's bounds is looked at.
    #[must_use]
    pub fn seen(&self, size: Size) -> Size {
        ImageBounds::of(self.size).fit(size)
    }

    /// Heap of decoding one picture, bytes: a region of its own, as long as the worst picture
    /// needs, with the heap's headers.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        const HEADERS_BYTES: u64 = 32 << 10;
        (self.bounds().decode_heap_bytes() + HEADERS_BYTES).next_multiple_of(4096)
    }
}

/// An opened vision file.
pub struct Eyes {
    /// Its header.
    pub checkpoint: Checkpoint,
    /// Its numbers.
    pub config: VisionConfig,
    path: PathBuf,
}

impl Eyes {
    /// Opens a vision file.
    ///
    /// # Errors
    /// Class `File` for any defect or unsupported feature.
    pub fn open(path: &Path) -> Result<Eyes, EngineError> {
        let checkpoint = Checkpoint::open(path)?;
        let config = read_vision_config(&CheckpointFile(&checkpoint))?;
        Ok(Eyes { checkpoint, config, path: path.to_path_buf() })
    }

    /// What a plan says of the file.
    #[must_use]
    pub fn info(&self) -> ModelInfo {
        ModelInfo {
            file: self.checkpoint.file_name(0).to_string(),
            header_sha256: self.checkpoint.header_sha256_hex(),
            sha256: None,
            file_complete: self.checkpoint.file_complete(),
            architecture: format!("clip ({})", self.config.projector.name()),
            parameters: self.checkpoint.parameter_count(),
        }
    }

    /// Opens the file again for loading.
    ///
    /// # Errors
    /// A file that cannot be opened any more.
    pub fn file(&self) -> Result<File, EngineError> {
        File::open(&self.path).map_err(|error| {
            EngineError::new(Class::File, format!("{}: {error}", self.path.display()))
        })
    }

    /// How its pictures are cut.
    #[must_use]
    pub fn tiler(&self) -> Tiler {
        Tiler::of(&self.config)
    }
}

/// How pictures are cut for an encoder, and what they become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiler {
    cutting: Cutting,
    patch: u32,
    merge: u32,
    /// Tokens of the largest tile.
    tile_tokens_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cutting {
    Idefics3(Idefics3),
    Lfm2(Lfm2),
    Qwen2Vl(Qwen2Vl),
}

/// A picture in a prompt: its tiles, and where their embeddings stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Size of the upright picture.
    pub size: Size,
    /// Its tiles.
    pub layout: Layout,
    /// Row of the embeddings at which it begins.
    pub first_row: u32,
    /// Rows that it takes.
    pub rows: u32,
}

/// A piece of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text to be encoded, special tokens by their names.
    Text(String),
    /// Rows of the embeddings: the first, and how many.
    Rows(u32, u32),
}

impl Tiler {
    /// For a configuration.
    #[must_use]
    pub fn of(config: &VisionConfig) -> Tiler {
        let (patch, merge) = (config.patch as u32, config.merge as u32);
        let (image_size, token_edge) = (config.image_size as u32, patch * merge);
        let cutting = match (config.projector, config.grid) {
            (Projector::Lfm2, TileGrid::Variable { tokens_min, tokens_max }) => {
                const TILE_EDGE: u32 = 512;
                let tile_tokens = u64::from(TILE_EDGE / token_edge).pow(2);
                let whole = TILE_EDGE.is_multiple_of(token_edge) && tile_tokens <= tokens_max;
                Cutting::Lfm2(Lfm2 {
                    patch_edge: patch,
                    merge,
                    tokens_min: tokens_min as u32,
                    tokens_max: tokens_max as u32,
                    tiling: match whole {
                        true => Tiling::Grid { tile_edge: TILE_EDGE },
                        false => Tiling::Never,
                    },
                })
            }
            (_, TileGrid::Whole { pixels_min, pixels_max }) => {
                Cutting::Qwen2Vl(Qwen2Vl { token_edge, pixels_min, pixels_max })
            }
            (Projector::Idefics3 | Projector::Lfm2 | Projector::Qwen25Vl, _) => {
                Cutting::Idefics3(Idefics3 {
                    longest_edge: config.longest_edge.map_or(image_size, |edge| edge as u32),
                    tile_edge: image_size,
                })
            }
        };
        let tile_tokens_max = config.tokens(config.patches_max());
        Tiler { cutting, patch, merge, tile_tokens_max }
    }

    /// Most tokens of one picture of at most so many pixels, and no longer edge.
    #[must_use]
    pub fn tokens_max(&self, size: Size) -> u64 {
        let tiles = match self.cutting {
            Cutting::Idefics3(settings) => settings.tiles_max(),
            Cutting::Lfm2(settings) => settings.tiles_max(),
            Cutting::Qwen2Vl(settings) => {
                let tokens = settings.tokens_max(size.width.max(size.height), size.pixels());
                return tokens.min(self.tile_tokens_max);
            }
        };
        u64::from(tiles) * self.tile_tokens_max
    }

    /// Cuts a picture; its embeddings begin at `first_row`.
    ///
    /// # Errors
    /// Class `OverBound` for a picture so long and thin that a tile has no room for it.
    pub fn place(&self, size: Size, first_row: u32) -> Result<Placed, EngineError> {
        let layout = match self.cutting {
            Cutting::Idefics3(settings) => settings.layout(size),
            Cutting::Lfm2(settings) => settings.layout(size),
            Cutting::Qwen2Vl(settings) => settings.layout(size).ok_or_else(|| {
                let Size { width, height } = size;
                let message = format!(
                    "a picture of {width}x{height} pixels: one edge is at most {ASPECT_MAX} times \
                     the other"
                );
                EngineError::new(Class::OverBound, message)
            })?,
        };
        let mut rows = 0;
        for index in 0..layout.count() {
            let tokens = self.tokens(layout.size(layout.part(index)));
            if u64::from(tokens) > self.tile_tokens_max {
                return Err(EngineError::new(
                    Class::OverBound,
                    format!(
                        "a picture of {}x{} pixels becomes {tokens} tokens, the vision file's \
                         tiles hold {}: it is too long and thin",
                        size.width, size.height, self.tile_tokens_max
                    ),
                ));
            }
            rows += tokens;
        }
        Ok(Placed { size, layout, first_row, rows })
    }

    /// Rows and columns of patches of a tile.
    #[must_use]
    pub fn grid(&self, tile: Size) -> [u32; 2] {
        [tile.height / self.patch, tile.width / self.patch]
    }

    /// Tokens of a tile.
    #[must_use]
    pub fn tokens(&self, tile: Size) -> u32 {
        let [rows, columns] = self.grid(tile);
        (rows / self.merge) * (columns / self.merge)
    }

    /// Gives `emit` the pieces of a prompt that stand for a picture.
    pub fn pieces(&self, placed: &Placed, emit: &mut dyn FnMut(Piece)) {
        let mut row = placed.first_row;
        let mut rows = |part: Part, emit: &mut dyn FnMut(Piece)| {
            let tokens = self.tokens(placed.layout.size(part));
            emit(Piece::Rows(row, tokens));
            row += tokens;
        };
        let layout = &placed.layout;
        let gridded = layout.grid_rows > 0;
        match self.cutting {
            Cutting::Idefics3(_) => {
                const FAKE: &str = "<fake_token_around_image>";
                let mut lead = String::new();
                for index in 0..layout.count() {
                    let part = layout.part(index);
                    match part {
                        Part::Cell { row: r, column: c } => {
                            lead += if r > 0 && c == 0 { "\n" } else { "" };
                            lead += &format!("{FAKE}<row_{}_col_{}>", r + 1, c + 1);
                        }
                        Part::Whole => {
                            lead += if gridded { "\n\n" } else { "" };
                            lead += &format!("{FAKE}<global-img>");
                        }
                    }
                    emit(Piece::Text(std::mem::take(&mut lead)));
                    rows(part, emit);
                }
                emit(Piece::Text(FAKE.to_string()));
            }
            Cutting::Lfm2(_) => {
                let mut lead = "<|image_start|>".to_string();
                for index in 0..layout.count() {
                    let part = layout.part(index);
                    match part {
                        Part::Cell { row: r, column: c } => {
                            lead += &format!("<|img_row_{}_col_{}|>", r + 1, c + 1);
                        }
                        Part::Whole => lead += if gridded { "<|img_thumbnail|>" } else { "" },
                    }
                    emit(Piece::Text(std::mem::take(&mut lead)));
                    rows(part, emit);
                }
                emit(Piece::Text("<|image_end|>".to_string()));
            }
            Cutting::Qwen2Vl(_) => {
                emit(Piece::Text("<|vision_start|>".to_string()));
                rows(Part::Whole, emit);
                emit(Piece::Text("<|vision_end|>".to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(tiler: &Tiler, size: Size) -> String {
        let placed = tiler.place(size, 0).expect("a picture");
        let mut text = String::new();
        let mut next = 0;
        tiler.pieces(&placed, &mut |piece| match piece {
            Piece::Text(piece) => text += &piece,
            Piece::Rows(first, rows) => {
                assert_eq!(first, next);
                next += rows;
                text += &format!("[{rows}]");
            }
        });
        assert_eq!(next, placed.rows);
        text
    }

    #[test]
    fn pieces_are_those_of_the_processors() {
        let tiler = Tiler {
            cutting: Cutting::Idefics3(Idefics3 { longest_edge: 1024, tile_edge: 512 }),
            patch: 16,
            merge: 4,
            tile_tokens_max: 64,
        };
        let fake = "<fake_token_around_image>";
        assert_eq!(
            said(&tiler, Size::new(1000, 600)),
            format!(
                "{fake}<row_1_col_1>[64]{fake}<row_1_col_2>[64]\n{fake}<row_2_col_1>[64]\
                 {fake}<row_2_col_2>[64]\n\n{fake}<global-img>[64]{fake}"
            )
        );
        let lfm2 = |patch_edge, tiling| Tiler {
            cutting: Cutting::Lfm2(Lfm2 {
                patch_edge,
                merge: 2,
                tokens_min: 64,
                tokens_max: 256,
                tiling,
            }),
            patch: patch_edge,
            merge: 2,
            tile_tokens_max: 256,
        };
        let tiler = lfm2(14, Tiling::Never);
        assert_eq!(said(&tiler, Size::new(224, 224)), "<|image_start|>[64]<|image_end|>");
        // One token wide at least, however long: a thread can take more tokens than fit.
        assert_eq!(said(&tiler, Size::new(1, 1024)), "<|image_start|>[256]<|image_end|>");
        assert!(tiler.place(Size::new(1, 10_000), 0).is_err());
        let whole = Qwen2Vl { token_edge: 28, pixels_min: 3136, pixels_max: 12_845_056 };
        let tiler = Tiler { cutting: Cutting::Qwen2Vl(whole), tile_tokens_max: 16_384, ..tiler };
        assert_eq!(said(&tiler, Size::new(1288, 1288)), "<|vision_start|>[2116]<|vision_end|>");
        assert_eq!(said(&tiler, Size::new(100, 58)), "<|vision_start|>[8]<|vision_end|>");
        assert_eq!(tiler.tokens_max(Size::new(1288, 1288)), 2116);
        assert!(tiler.place(Size::new(10, 2001), 0).is_err());
        let tiler = lfm2(16, Tiling::Grid { tile_edge: 512 });
        assert_eq!(
            said(&tiler, Size::new(1200, 600)),
            "<|image_start|><|img_row_1_col_1|>[256]<|img_row_1_col_2|>[256]<|img_thumbnail|>[242]\
             <|image_end|>"
        );
    }
}
