//! A figure as SVG text.

use std::fmt::Write as _;

use super::{Anchor, Colour, Figure, Shape};

/// The drawing as an element that can stand in a page.
#[must_use]
pub fn svg(figure: &Figure) -> String {
    let mut out = String::new();
    let (width, height) = (figure.width, figure.height);
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"ui-monospace, monospace\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    for shape in &figure.shapes {
        write_shape(&mut out, shape);
    }
    out.push_str("</svg>\n");
    out
}

fn write_shape(out: &mut String, shape: &Shape) {
    let _ = match shape {
        Shape::Line { from, to, colour, width } => writeln!(
            out,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\" \
             stroke-width=\"{width}\"/>",
            from.0,
            from.1,
            to.0,
            to.1,
            hex(*colour)
        ),
        Shape::Box { at, size, colour } => writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
            at.0,
            at.1,
            size.0,
            size.1,
            hex(*colour)
        ),
        Shape::Disc { at, radius, colour } => writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{}\"/>",
            at.0,
            at.1,
            hex(*colour)
        ),
        Shape::Text { at, text, anchor, colour } => writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{}\" fill=\"{}\">{}</text>",
            at.0,
            at.1,
            match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            },
            hex(*colour),
            crate::report::escape(text)
        ),
    };
}

fn hex(Colour(red, green, blue): Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}
