//! Grids, sizes and tiles, against Hugging Face's processors.

mod common;

use common::{crc32, source, table};
use dctms_image::Size;
use dctms_image::preprocess::Part;
use dctms_image::preprocess::idefics3::Idefics3;
use dctms_image::preprocess::lfm2::{Lfm2, Tiling};
use dctms_image::preprocess::qwen2vl::Qwen2Vl;

fn numbers(line: &[String]) -> Vec<u32> {
    line.iter().map_while(|number| number.parse().ok()).collect()
}

#[test]
fn idefics3_chooses_the_grids_of_the_processor() {
    let lines = table("idefics3.tsv");
    assert!(lines.len() > 300);
    let mut digests = 0;
    for line in &lines {
        let [longest_edge, tile_edge, width, height, _, _, to_width, to_height] =
            numbers(&line[..8])[..]
        else {
            panic!("{line:?}");
        };
        let settings = Idefics3 { longest_edge, tile_edge };
        let size = Size::new(width, height);
        let layout = settings.layout(size);
        let split = to_width > tile_edge || to_height > tile_edge;
        let grid = match split {
            true => (to_height / tile_edge, to_width / tile_edge),
            false => (0, 0),
        };
        assert_eq!((layout.grid_rows, layout.grid_columns), grid, "{line:?}");
        assert_eq!(layout.whole, Some(Size::new(tile_edge, tile_edge)), "{line:?}");
        assert!(layout.count() <= settings.tiles_max());
        if line[8] != "-" {
            let picture = source(size, 0);
            let mut tiles = Vec::new();
            for index in 0..layout.count() {
                let part = layout.part(index);
                let mut tile = vec![0; layout.size(part).pixels() as usize * 3];
                layout.render(&picture, part, &mut tile);
                tiles.extend_from_slice(&tile);
            }
            assert_eq!(format!("{:08x}", crc32(0, &tiles)), line[8], "{line:?}");
            digests += 1;
        }
    }
    assert!(digests >= 8);
}

#[test]
fn lfm2_chooses_the_grids_of_the_processor() {
    let lines = table("lfm2.tsv");
    assert!(lines.len() > 300);
    for line in &lines {
        let [patch, tiling, tokens_min, tokens_max, width, height, rows, columns, w, h, count] =
            numbers(line)[..]
        else {
            panic!("{line:?}");
        };
        let tiling = match tiling {
            0 => Tiling::Never,
            _ => Tiling::Grid { tile_edge: 512 },
        };
        let settings = Lfm2 { patch_edge: patch, merge: 2, tokens_min, tokens_max, tiling };
        let layout = settings.layout(Size::new(width, height));
        assert_eq!(layout.count(), count, "{line:?}");
        let grid = if rows * columns == 1 { (0, 0) } else { (rows, columns) };
        assert_eq!((layout.grid_rows, layout.grid_columns), grid, "{line:?}");
        assert_eq!(layout.whole, Some(Size::new(w, h)), "{line:?}");
        assert!(layout.count() <= settings.tiles_max());
    }
}

#[test]
fn lfm2_cells_are_cut_from_one_picture_and_the_thumbnail_from_the_original() {
    let tiling = Tiling::Grid { tile_edge: 512 };
    let settings = Lfm2 { patch_edge: 16, merge: 2, tokens_min: 64, tokens_max: 256, tiling };
    let picture = source(Size::new(1700, 500), 3);
    let layout = settings.layout(picture.size());
    assert_eq!((layout.grid_rows, layout.grid_columns, layout.count()), (1, 3, 4));
    assert_eq!(layout.part(3), Part::Whole);
    let cut = Size::new(1536, 512);
    let mut all = vec![0; cut.pixels() as usize * 3];
    let filter = dctms_image::resize::Filter::Bilinear;
    dctms_image::resize::resize(&picture, cut, filter, &mut all);
    let mut tile = vec![0; 512 * 512 * 3];
    layout.render(&picture, Part::Cell { row: 0, column: 1 }, &mut tile);
    for (row, line) in tile.chunks_exact(512 * 3).enumerate() {
        let start = (row * 1536 + 512) * 3;
        assert_eq!(line, &all[start..start + 512 * 3], "row {row}");
    }
}

#[test]
fn qwen2vl_chooses_the_sizes_of_the_processor_within_its_most_tokens() {
    let lines = table("qwen2vl.tsv");
    assert!(lines.len() > 300);
    let mut digests = 0;
    for line in &lines {
        let [least, most, width, height, w, h] = numbers(&line[..6])[..] else {
            panic!("{line:?}");
        };
        let (pixels_min, pixels_max) = (u64::from(least), u64::from(most));
        let settings = Qwen2Vl { token_edge: 28, pixels_min, pixels_max };
        let size = Size::new(width, height);
        let Some(layout) = settings.layout(size) else {
            assert_eq!((w, h), (0, 0), "{line:?}");
            continue;
        };
        assert_eq!((layout.count(), layout.whole), (1, Some(Size::new(w, h))), "{line:?}");
        let tokens = u64::from(w / 28) * u64::from(h / 28);
        let tokens_max = settings.tokens_max(width.max(height), size.pixels());
        assert!(tokens <= tokens_max, "{line:?}: {tokens} of {tokens_max}");
        if line[6] != "-" {
            let mut tile = vec![0; layout.size(Part::Whole).pixels() as usize * 3];
            layout.render(&source(size, 0), Part::Whole, &mut tile);
            assert_eq!(format!("{:08x}", crc32(0, &tile)), line[6], "{line:?}");
            digests += 1;
        }
    }
    assert!(digests >= 5);
}

#[test]
fn qwen2vl_states_the_most_tokens_that_any_picture_within_bounds_becomes() {
    for (pixels_min, pixels_max) in [(3136, 12_845_056), (6272, 60_000), (50_176, 100_352)] {
        let settings = Qwen2Vl { token_edge: 28, pixels_min, pixels_max };
        for bound in [Size::new(640, 480), Size::new(70, 70), Size::new(300, 1)] {
            let edge = bound.width.max(bound.height);
            let stated = settings.tokens_max(edge, bound.pixels());
            let mut most = 0;
            for height in 1..=edge {
                for width in 1..=(bound.pixels() / u64::from(height)).min(edge.into()) as u32 {
                    let layout = settings.layout(Size::new(width, height));
                    let tile = layout.and_then(|layout| layout.whole);
                    most = most.max(tile.map_or(0, Size::pixels) / (28 * 28));
                }
            }
            assert!(most <= stated, "{settings:?} {bound:?}: {most} of {stated}");
        }
    }
    let settings = Qwen2Vl { token_edge: 28, pixels_min: 3136, pixels_max: 12_845_056 };
    assert_eq!(settings.tokens_max(1288, 1288 * 1288), 46 * 46);
    assert_eq!(settings.tokens_max(1024, 1024 * 1024), 37 * 37);
}
