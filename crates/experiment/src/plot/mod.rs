//! Plots: one list of shapes, drawn as SVG or as PNG.
//!
//! A chart is made of lines, boxes, discs and words at fixed places, so that both forms show the
//! same thing, and equal data give equal bytes.

mod axes;
pub mod charts;
mod font;
mod raster;
mod svg;

pub use raster::png;
pub use svg::svg;

/// A colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

/// Words and axes.
pub const INK: Colour = Colour(40, 40, 46);
/// Grid lines.
pub const FAINT: Colour = Colour(222, 222, 228);
/// What must not be passed.
pub const LIMIT: Colour = Colour(190, 30, 45);

/// The line of what must not be passed: pale, since what keeps to it is drawn over it.
pub const LIMIT_BAND: Colour = Colour(246, 176, 184);

/// Colours of series, told apart by those who see few colours too.
pub const SERIES: [Colour; 8] = [
    Colour(0, 114, 178),
    Colour(230, 159, 0),
    Colour(0, 158, 115),
    Colour(204, 121, 167),
    Colour(86, 180, 233),
    Colour(213, 94, 0),
    Colour(120, 94, 40),
    Colour(90, 90, 90),
];

/// Where a text stands to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Right of it.
    Start,
    /// Around it.
    Middle,
    /// Left of it.
    End,
}

/// One shape; lengths are in units of the figure, y downwards.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A straight line.
    Line {
        /// From.
        from: (f64, f64),
        /// To.
        to: (f64, f64),
        /// Its colour.
        colour: Colour,
        /// Its width.
        width: f64,
    },
    /// A filled box.
    Box {
        /// Left and top.
        at: (f64, f64),
        /// Width and height.
        size: (f64, f64),
        /// Its colour.
        colour: Colour,
    },
    /// A filled disc.
    Disc {
        /// Its middle.
        at: (f64, f64),
        /// Its radius.
        radius: f64,
        /// Its colour.
        colour: Colour,
    },
    /// A line of text; `at` is on its base line.
    Text {
        /// The point.
        at: (f64, f64),
        /// The words.
        text: String,
        /// How it stands to the point.
        anchor: Anchor,
        /// Its colour.
        colour: Colour,
    },
}

/// A drawing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
    /// What is drawn, from back to front.
    pub shapes: Vec<Shape>,
}

/// Width of a character, the same for all.
pub const CHARACTER_WIDTH: f64 = 7.5;

impl Figure {
    /// An empty figure.
    #[must_use]
    pub fn new(width: f64, height: f64) -> Figure {
        Figure { width, height, shapes: Vec::new() }
    }

    /// Adds a line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: Colour, width: f64) {
        self.shapes.push(Shape::Line { from, to, colour, width });
    }

    /// Adds a box.
    pub fn fill(&mut self, at: (f64, f64), size: (f64, f64), colour: Colour) {
        self.shapes.push(Shape::Box { at, size, colour });
    }

    /// Adds a disc.
    pub fn disc(&mut self, at: (f64, f64), radius: f64, colour: Colour) {
        self.shapes.push(Shape::Disc { at, radius, colour });
    }

    /// Adds a text.
    pub fn text(&mut self, at: (f64, f64), text: &str, anchor: Anchor, colour: Colour) {
        self.shapes.push(Shape::Text { at, text: text.to_string(), anchor, colour });
    }
}
