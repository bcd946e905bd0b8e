//! Every format and kind, against Pillow's pixels.

mod common;

use common::{bytes, parts};
use dctms_image::{ImageBounds, Size, decode, header::read_header};
use std::io::Cursor;

#[test]
fn pictures_are_those_that_pillow_reads() {
    let parts = parts("pictures.bin");
    let mut seen = 0;
    for picture in parts.chunks_exact(5) {
        let [name, tolerance, size, file, expected] = picture else { unreachable!() };
        let name = String::from_utf8_lossy(name);
        let edge = |at: usize| u32::from_le_bytes(size[at..at + 4].try_into().expect("four"));
        let size = Size::new(edge(0), edge(4));
        let got = decode(Cursor::new(file), file.len() as u64, &ImageBounds::of(size));
        let got = got.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(got.size(), size, "{name}");
        let got = bytes(&got);
        let far = got.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
        let sum: u64 = got.iter().zip(expected).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
        let mean = sum as f64 / got.len() as f64;
        println!("{name}: max {far}, mean {mean:.3}");
        assert!(far <= tolerance[0] && mean <= 1.0, "{name}: differs by {far}, mean {mean:.3}");
        seen += 1;
    }
    assert!(seen > 40);
}

#[test]
fn one_pixel_less_of_a_bound_refuses() {
    for picture in parts("pictures.bin").chunks_exact(5) {
        let file = &picture[3];
        let stored = read_header(Cursor::new(file)).expect("a header").stored;
        let full = ImageBounds::of(stored);
        let tight = [
            ImageBounds { pixels_max: full.pixels_max - 1, ..full },
            ImageBounds { edge_max: full.edge_max - 1, ..full },
        ];
        for bounds in tight {
            let error = decode(Cursor::new(file), file.len() as u64, &bounds).expect_err("over");
            assert!(error.to_string().contains("header: "), "{error}");
        }
    }
}
