//! Draws a packing of intervals: time to the right, offset upwards, one rectangle a buffer.
//! Buffers of the lower bound's witness are outlined, the bound and the arena are lines. Text in,
//! text out; ids are escaped, since they come from a file.

use std::fmt::Write;

use crate::csv::Table;
use crate::problem::{Conflicts, Packing};

/// Size of the drawing and of its margin, in units of the SVG.
const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 700.0;
const MARGIN: f64 = 40.0;

/// The drawing as an SVG document.
///
/// # Panics
/// If the packing is not one of the table, or the table's conflicts are not intervals.
#[must_use]
pub fn draw(table: &Table, packing: &Packing) -> String {
    let Conflicts::Intervals(lives) = &table.problem.conflicts else {
        panic!("a table's conflicts are intervals");
    };
    assert_eq!(packing.offsets.len(), lives.len(), "one offset a buffer");
    let start = lives.iter().map(|i| i.lower).min().unwrap_or(0);
    let end = lives.iter().map(|i| i.upper).max().unwrap_or(1);
    let scale = Scale { start, steps: end - start, bytes: packing.arena_bytes.max(1) };
    let mut out = String::new();
    header(&mut out);
    for (b, buffer) in table.problem.buffers.iter().enumerate() {
        if buffer.size == 0 {
            continue;
        }
        let (left, right) = (scale.x(lives[b].lower), scale.x(lives[b].upper));
        let bottom = scale.y(packing.offsets[b]);
        let top = scale.y(packing.offsets[b] + buffer.size);
        let (width, height) = (right - left, bottom - top);
        let fill = buffer.size.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let hue = fill % 360;
        let class = if packing.witness.binary_search(&b).is_ok() { " class=\"w\"" } else { "" };
        let id = escape(&table.ids[b]);
        let (offset, size) = (packing.offsets[b], buffer.size);
        let _ = writeln!(
            out,
            "<rect x=\"{left:.2}\" y=\"{top:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" \
             fill=\"hsl({hue},55%,70%)\"{class}><title>{id}: {size} bytes at {offset}</title></rect>"
        );
    }
    line(&mut out, scale.y(packing.arena_bytes), "#000", "arena", packing.arena_bytes);
    if packing.lower_bound < packing.arena_bytes {
        line(&mut out, scale.y(packing.lower_bound), "#c00", "lower bound", packing.lower_bound);
    }
    out.push_str("</svg>\n");
    out
}

/// From steps and bytes to the drawing's units.
struct Scale {
    start: u64,
    steps: u64,
    bytes: u64,
}

impl Scale {
    fn x(&self, step: u64) -> f64 {
        MARGIN + (step - self.start) as f64 / self.steps as f64 * (WIDTH - 2.0 * MARGIN)
    }

    fn y(&self, offset: u64) -> f64 {
        HEIGHT - MARGIN - offset as f64 / self.bytes as f64 * (HEIGHT - 2.0 * MARGIN)
    }
}

fn header(out: &mut String) {
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <style>rect{{stroke:#555;stroke-width:.3}}.w{{stroke:#000;stroke-width:1.2}}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>"
    );
    let (x, y) = (MARGIN, HEIGHT - MARGIN / 2.0);
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">time; outlined: the bound's witness</text>");
}

fn line(out: &mut String, y: f64, colour: &str, what: &str, bytes: u64) {
    let right = WIDTH - MARGIN;
    let text = y - 4.0;
    let _ = writeln!(
        out,
        "<path d=\"M{MARGIN} {y:.2}H{right}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
         <text x=\"{MARGIN}\" y=\"{text:.2}\" fill=\"{colour}\">{what} {bytes} bytes</text>"
    );
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
