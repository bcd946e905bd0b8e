//! Resampling, byte for byte Pillow's; rectangles of it, byte for byte its own.

mod common;

use common::{SplitMix64, bytes, crc32, source, table};
use dctms_image::Size;
use dctms_image::resize::{Chain, Filter, resize};

#[test]
fn resized_pictures_are_byte_for_byte_pillows() {
    let lines = table("resize.tsv");
    assert!(lines.len() >= 400);
    for line in &lines {
        let number = |at: usize| line[at].parse::<u32>().expect("a number");
        let filter = match line[0].as_str() {
            "bilinear" => Filter::Bilinear,
            "bicubic" => Filter::Bicubic,
            "lanczos" => Filter::Lanczos,
            other => panic!("filter {other}"),
        };
        let picture = source(Size::new(number(2), number(3)), u64::from(number(1)));
        let to = Size::new(number(4), number(5));
        let mut got = vec![0; to.pixels() as usize * 3];
        resize(&picture, to, filter, &mut got);
        assert_eq!(format!("{:08x}", crc32(0, &got)), line[6], "{line:?}");
    }
}

#[test]
fn a_rectangle_of_a_chain_is_that_of_the_whole() {
    let mut random = SplitMix64(5);
    for round in 0..120 {
        let mut size = || Size::new(1 + random.below(70) as u32, 1 + random.below(70) as u32);
        let (from, steps) = (size(), [size(), size(), size()]);
        let steps = &steps[..round % 4];
        let picture = source(from, round as u64);
        let filter = [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos][round % 3];
        let mut whole = picture.clone();
        for &step in steps {
            let mut to = vec![0; step.pixels() as usize * 3];
            resize(&whole, step, filter, &mut to);
            whole = dctms_image::Picture::new(step, to);
        }
        let last = whole.size();
        let mut range = |edge: u32| {
            let start = random.below(u64::from(edge)) as u32;
            start..start + 1 + random.below(u64::from(edge - start)) as u32
        };
        let (columns, rows) = (range(last.width), range(last.height));
        let mut got = vec![0; columns.len() * rows.len() * 3];
        Chain::new(&picture, steps, filter, columns.clone(), rows.clone()).write(&mut got);
        let width = last.width as usize * 3;
        let all = bytes(&whole);
        let want: Vec<u8> = rows
            .flat_map(|row| {
                let start = row as usize * width;
                let (from, to) = (columns.start as usize * 3, columns.end as usize * 3);
                all[start + from..start + to].to_vec()
            })
            .collect();
        assert_eq!(got, want, "round {round}");
    }
}
