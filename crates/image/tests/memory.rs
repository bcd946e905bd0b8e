//! What decoding and tiling take from the heap, against the stated bound; hostile files.

mod common;
#[path = "../../format/tests/common/counting.rs"]
mod counting;

use common::{SplitMix64, parts, source};
use counting::peak_len_bytes;
use dctms_image::header::read_header;
use dctms_image::preprocess::idefics3::Idefics3;
use dctms_image::preprocess::lfm2::{Lfm2, Tiling};
use dctms_image::{ImageBounds, ImageError, Size, decode};
use std::io::Cursor;
use std::time::Instant;

#[test]
fn decoding_stays_within_its_bound_and_the_bound_is_tight() {
    let mut tightest = 0.0_f64;
    for file in parts("heavy.bin").chunks_exact(2) {
        let [name, file] = file else { unreachable!() };
        let name = String::from_utf8_lossy(name);
        let size = read_header(Cursor::new(file)).expect("a header").stored;
        let bounds = ImageBounds::of(size);
        let len = file.len() as u64;
        let (picture, peak) = peak_len_bytes(|| decode(Cursor::new(file), len, &bounds));
        picture.unwrap_or_else(|error| panic!("{name}: {error}"));
        let bound = bounds.decode_heap_bytes();
        let part = peak as f64 / bound as f64;
        let pixels = size.pixels() as f64;
        println!(
            "{name} {}x{}: {peak} of {bound} bytes, {part:.3}; {:.2} a pixel",
            size.width,
            size.height,
            peak as f64 / pixels
        );
        assert!(part <= 1.0, "{name}: {peak} of {bound} bytes");
        if pixels >= 1e6 {
            tightest = tightest.max(part);
        }
    }
    assert!(tightest >= 0.8, "no file comes near the bound: {tightest:.3}");
}

#[test]
fn tiles_take_rows_and_no_pictures() {
    let sizes = [(1000, 1000), (2000, 500), (1, 2000), (2000, 1), (700, 31), (33, 900), (1, 1)];
    let mut random = SplitMix64(8);
    let random_sizes: Vec<(u32, u32)> =
        (0..12).map(|_| (1 + random.below(1000) as u32, 1 + random.below(1000) as u32)).collect();
    let tiling = Tiling::Grid { tile_edge: 512 };
    let lfm2 = Lfm2 { patch_edge: 16, merge: 2, tokens_min: 64, tokens_max: 256, tiling };
    let idefics3 = Idefics3 { longest_edge: 2048, tile_edge: 512 };
    let mut tile = vec![0; 1 << 22];
    for &(width, height) in sizes.iter().chain(&random_sizes) {
        let size = Size::new(width, height);
        let picture = source(size, 1);
        let bounds = ImageBounds::of(size);
        for layout in [lfm2.layout(size), idefics3.layout(size)] {
            // The last two are a corner of the grid and the whole.
            for index in layout.count().saturating_sub(2)..layout.count() {
                let part = layout.part(index);
                let bytes = layout.size(part).pixels() as usize * 3;
                let ((), peak) =
                    peak_len_bytes(|| layout.render(&picture, part, &mut tile[..bytes]));
                let bound = bounds.decode_heap_bytes();
                let total = peak as u64 + bounds.picture_bytes();
                println!("{width}x{height} tile {index}: {peak} bytes, {total} of {bound}");
                assert!(
                    total <= bound,
                    "{width}x{height} tile {index}: {peak}, {total} of {bound}"
                );
            }
        }
    }
}

/// A picture that is made smaller stands beside what is made of it: no more than decoding took.
#[test]
fn a_smaller_picture_is_made_within_the_bound_of_the_larger() {
    let mut random = SplitMix64(12);
    let mut draw = || 1 + random.below(1400) as u32;
    let sizes = [(1400, 1400, 1400, 1399), (1400, 1400, 1, 1), (1400, 1, 700, 1), (3, 2, 2, 1)];
    let random_sizes = (0..16).map(|_| (draw(), draw(), draw(), draw())).collect::<Vec<_>>();
    for (width, height, seen_width, seen_height) in sizes.into_iter().chain(random_sizes) {
        let size = Size::new(width, height);
        let seen = ImageBounds::of(Size::new(seen_width, seen_height)).fit(size);
        let bounds = ImageBounds::of(size);
        let picture = source(size, 1);
        let (smaller, peak) = peak_len_bytes(|| picture.resized(seen));
        assert_eq!(smaller.size(), seen);
        let (total, bound) = (peak as u64 + bounds.picture_bytes(), bounds.decode_heap_bytes());
        assert!(total <= bound, "{size:?} to {seen:?}: {peak}, {total} of {bound}");
    }
}

fn refusal(file: &[u8], bounds: &ImageBounds) -> (ImageError, usize) {
    let start = Instant::now();
    let (result, peak) = peak_len_bytes(|| decode(Cursor::new(file), file.len() as u64, bounds));
    let error = result.expect_err("a hostile file");
    assert!(start.elapsed().as_millis() < 500, "{error}: {:?}", start.elapsed());
    (error, peak)
}

#[test]
fn headers_that_lie_are_refused_at_once_and_without_memory() {
    let bounds = ImageBounds::of(Size::new(1024, 1024));
    let png = |width: u32, height: u32| {
        let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        file.extend_from_slice(&width.to_be_bytes());
        file.extend_from_slice(&height.to_be_bytes());
        file.extend_from_slice(&[8, 2, 0, 0, 0, 0, 0, 0, 0]);
        file
    };
    let gif = |width: u16, height: u16| {
        let mut file = b"GIF89a".to_vec();
        file.extend_from_slice(&width.to_le_bytes());
        file.extend_from_slice(&height.to_le_bytes());
        file.extend_from_slice(&[0; 3]);
        file
    };
    let jpeg = |width: u16, height: u16| {
        let mut file = vec![0xff, 0xd8, 0xff, 0xc2, 0, 17, 8];
        file.extend_from_slice(&height.to_be_bytes());
        file.extend_from_slice(&width.to_be_bytes());
        file.extend_from_slice(&[3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]);
        file
    };
    let webp = |width: u32, height: u32| {
        let mut file = b"RIFF\xff\xff\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
        file.extend_from_slice(&(width - 1).to_le_bytes()[..3]);
        file.extend_from_slice(&(height - 1).to_le_bytes()[..3]);
        file
    };
    let mut junk = vec![0; 100 << 20];
    for (index, byte) in junk.iter_mut().enumerate() {
        *byte = ((index * 31) >> 2) as u8;
    }
    let mut long = png(10, 10);
    long.resize(100 << 20, 7);
    let files: Vec<(&str, Vec<u8>)> = vec![
        ("20000x20000", png(20_000, 20_000)),
        ("65535x1", png(65_535, 1)),
        ("at most 1024", png(1, 65_535)),
        ("0x5", png(0, 5)),
        ("4294967295", png(u32::MAX, u32::MAX)),
        ("20000x20000", gif(20_000, 20_000)),
        ("65535x1", gif(65_535, 1)),
        ("0x0", gif(0, 0)),
        ("20000x20000", jpeg(20_000, 20_000)),
        ("65535x1", jpeg(65_535, 1)),
        ("7x0", jpeg(7, 0)),
        ("16777216x16777216", webp(1 << 24, 1 << 24)),
        ("first bytes", junk),
        ("at most 12582912", long),
        ("first bytes 00 00 00 00", Vec::new()),
        ("first bytes", b"BM".to_vec()),
        ("ends in its header", b"\x89PNG\r\n\x1a\n\0\0".to_vec()),
        ("ends in its header", b"\xff\xd8\xff".to_vec()),
        ("ends in its header", b"GIF89a".to_vec()),
        ("ends in its header", b"RIFF\0\0\0\0WEBPVP8 ".to_vec()),
    ];
    for (part, file) in &files {
        let (error, peak) = refusal(file, &bounds);
        assert!(error.to_string().contains(part), "{error} lacks {part}");
        assert!(peak < 64 << 10, "{error}: {peak} bytes");
    }
}

#[test]
fn changed_files_are_refused_or_read_within_the_bound() {
    let mut random = SplitMix64(77);
    let files = parts("pictures.bin");
    let files: Vec<&[Vec<u8>]> = files.chunks_exact(5).collect();
    let start = Instant::now();
    let mut refused = 0;
    for round in 0..4000 {
        let picture = files[round % files.len()];
        let mut file = picture[3].clone();
        if round % 3 == 0 {
            file.truncate(random.below(file.len() as u64) as usize);
        } else {
            for _ in 0..1 + random.below(4) {
                let at = random.below(file.len() as u64) as usize;
                file[at] = random.draw() as u8;
            }
        }
        let bounds = ImageBounds::of(Size::new(64, 64));
        let len = file.len() as u64;
        let (result, peak) = peak_len_bytes(|| decode(Cursor::new(&file), len, &bounds));
        refused += usize::from(result.is_err());
        let name = String::from_utf8_lossy(&picture[0]);
        // A WebP's tables are as many as it says; the heap of the caller bounds them.
        let bounded = !name.starts_with("webp");
        let bound = bounds.decode_heap_bytes();
        assert!(!bounded || peak as u64 <= bound, "{name} round {round}: {peak} of {bound} bytes");
        if start.elapsed().as_secs() > 8 {
            break;
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn truncated_files_are_errors() {
    for picture in parts("pictures.bin").chunks_exact(5) {
        let name = String::from_utf8_lossy(&picture[0]);
        let file = &picture[3];
        let bounds = ImageBounds::of(Size::new(64, 64));
        let cut = &file[..file.len() / 2];
        let animated = name.contains("animated");
        let result = decode(Cursor::new(cut), cut.len() as u64, &bounds);
        assert!(result.is_err() || animated, "{name}: half a file is no picture");
    }
}
