//! Resampling, bit for bit Pillow's: separable filters with antialiasing in fixed point.
//!
//! For each place of the answer a filter is laid over the source, stretched where the picture
//! shrinks; its weights are computed in double precision, divided by their sum, and rounded to
//! integers with 22 fractional bits. One axis is resampled first, to bytes, then the other; every
//! sum is an integer, so no order of adding can be seen. Mostly rows come first; where the height
//! shrinks by more than twice what the width does, columns do, as in Pillow 13.
//!
//! ```text
//! source rows ─▶ [ across: taps × columns ] ─▶ ring of rows ─▶ [ down: taps × 1 ] ─▶ row
//! source rows ─▶ ring of rows ─▶ [ down: taps × 1 ] ─▶ [ across: taps × columns ] ─▶ row
//! ```
//!
//! Nothing is kept but that ring: an answer's row needs the source's rows that its filter covers,
//! and they move on with it. Stages stand behind one another in a [`Chain`]; only those columns
//! are computed for which a later stage asks. Memory is bounded rows, whatever the picture.
//!
//! Believes: [`Picture`]'s rows. Must not know: which model asks, and why.

use crate::picture::{Picture, Size};
use std::ops::Range;

/// A resampling filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle, one pixel to each side.
    Bilinear,
    /// Keys' cubic with a = −1/2, two pixels to each side.
    Bicubic,
    /// Sinc under a wider sinc, three pixels to each side.
    Lanczos,
}

impl Filter {
    /// Half its width, pixels.
    #[must_use]
    pub const fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Filter::Bilinear => (1.0 - x.abs()).max(0.0),
            Filter::Bicubic => {
                const A: f64 = -0.5;
                match x.abs() {
                    x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
                    x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
                    _ => 0.0,
                }
            }
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    libm::sin(x) / x
}

/// Fractional bits of a weight.
const PRECISION_BITS: u32 = 32 - 8 - 2;

/// One axis of one resampling.
#[derive(Clone, Copy, Debug)]
struct Axis {
    filter: Filter,
    from: u32,
    to: u32,
}

impl Axis {
    fn scale(&self) -> f64 {
        f64::from(self.from) / f64::from(self.to)
    }

    fn support(&self) -> f64 {
        self.filter.support() * self.scale().max(1.0)
    }

    /// Most taps of one place.
    fn taps_max(&self) -> usize {
        // Never more than there are pixels; the window is cut to them.
        (self.support().ceil() as usize * 2 + 1).min(self.from as usize)
    }

    /// The source pixels under the filter at `place`.
    fn covered(&self, place: u32) -> Range<u32> {
        let (center, support) = (self.center(place), self.support());
        let start = ((center - support + 0.5) as i64).max(0);
        let end = ((center + support + 0.5) as i64).min(i64::from(self.from));
        start as u32..end as u32
    }

    fn center(&self, place: u32) -> f64 {
        (f64::from(place) + 0.5) * self.scale()
    }

    /// The source pixels under the filter at `place`, and their weights.
    fn taps(&self, place: u32, weights: &mut [i32], exact: &mut [f64]) -> Range<u32> {
        let covered = self.covered(place);
        let center = self.center(place);
        let shrink = 1.0 / self.scale().max(1.0);
        let exact = &mut exact[..covered.len()];
        let mut sum = 0.0;
        for (index, exact) in exact.iter_mut().enumerate() {
            let at = f64::from(covered.start) + index as f64;
            *exact = self.filter.weight((at - center + 0.5) * shrink);
            sum += *exact;
        }
        for (weight, &mut exact) in weights.iter_mut().zip(exact) {
            let share = if sum == 0.0 { exact } else { exact / sum };
            let fixed = share * f64::from(1_u32 << PRECISION_BITS);
            *weight = if share < 0.0 { (fixed - 0.5) as i32 } else { (fixed + 0.5) as i32 };
        }
        covered
    }
}

/// Which axis is resampled first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    AcrossFirst,
    DownFirst,
}

impl Order {
    fn of(from: Size, to: Size) -> Order {
        let rows_lost = i64::from(from.height) - i64::from(to.height);
        let columns_lost = i64::from(from.width) - i64::from(to.width);
        match rows_lost > 0 && rows_lost > 2 * columns_lost {
            true => Order::DownFirst,
            false => Order::AcrossFirst,
        }
    }
}

/// The columns of an answer, each with its taps.
struct Across {
    /// First source column (counted from the first that any needs), taps.
    places: Vec<(u32, u32)>,
    /// Weights of all columns, one behind another.
    weights: Vec<i32>,
}

impl Across {
    fn row(&self, source: &[u8], to: &mut [u8]) {
        let mut weights = self.weights.as_slice();
        for (&(start, taps), pixel) in self.places.iter().zip(to.chunks_exact_mut(3)) {
            let (mine, rest) = weights.split_at(taps as usize);
            weights = rest;
            let start = start as usize * 3;
            let mut sums = [1 << (PRECISION_BITS - 1); 3];
            let source = source[start..start + mine.len() * 3].chunks_exact(3);
            for (&weight, source) in mine.iter().zip(source) {
                for channel in 0..3 {
                    sums[channel] += i32::from(source[channel]) * weight;
                }
            }
            for channel in 0..3 {
                pixel[channel] = clip(sums[channel]);
            }
        }
    }
}

/// One resampling behind another or behind a picture.
struct Stage {
    order: Order,
    down: Axis,
    across: Across,
    /// Columns of the source that are asked for.
    source_columns: Range<u32>,
    down_weights: Vec<i32>,
    exact: Vec<f64>,
    /// A row with the source's columns: before it goes across.
    row: Vec<u8>,
    /// The latest rows, before they go down: row r stands at r mod `ring_rows`.
    ring: Vec<u8>,
    ring_rows: u32,
    ring_row_bytes: usize,
    /// The next source row that is not in the ring.
    next_row: u32,
}

impl Stage {
    fn new(filter: Filter, from: Size, to: Size, columns: &Range<u32>, rows: &Range<u32>) -> Stage {
        let axis = Axis { filter, from: from.width, to: to.width };
        let down = Axis { filter, from: from.height, to: to.height };
        let taps_max = axis.taps_max().max(down.taps_max());
        let mut exact = vec![0.0; taps_max];
        let mut weights = vec![0; taps_max];
        let source_columns = source_range(&axis, columns);
        let taps: usize = columns.clone().map(|place| axis.covered(place).len()).sum();
        let mut across =
            Across { places: Vec::with_capacity(columns.len()), weights: Vec::with_capacity(taps) };
        for place in columns.clone() {
            let covered = axis.taps(place, &mut weights, &mut exact);
            across.places.push((covered.start - source_columns.start, covered.len() as u32));
            across.weights.extend_from_slice(&weights[..covered.len()]);
        }
        let order = Order::of(from, to);
        let ring_row_bytes = match order {
            Order::AcrossFirst => columns.len() * 3,
            Order::DownFirst => source_columns.len() * 3,
        };
        let ring_rows = down.taps_max() as u32;
        Stage {
            order,
            down,
            across,
            down_weights: weights,
            exact,
            row: vec![0; source_columns.len() * 3],
            source_columns,
            ring: vec![0; ring_rows as usize * ring_row_bytes],
            ring_rows,
            ring_row_bytes,
            next_row: down.covered(rows.start).start,
        }
    }

    fn ring_place(&self, row: u32) -> Range<usize> {
        let start = (row % self.ring_rows) as usize * self.ring_row_bytes;
        start..start + self.ring_row_bytes
    }

    /// Takes the source row at hand into the ring.
    fn take_row(&mut self, row: u32) {
        let place = self.ring_place(row);
        match self.order {
            Order::AcrossFirst => self.across.row(&self.row, &mut self.ring[place]),
            Order::DownFirst => self.ring[place].copy_from_slice(&self.row),
        }
    }

    /// The row of the answer for which the ring holds all that it needs.
    fn answer(&mut self, covered: Range<u32>, sums: &mut [i32], to: &mut [u8]) {
        let sums = &mut sums[..self.ring_row_bytes];
        sums.fill(1 << (PRECISION_BITS - 1));
        for (row, &weight) in covered.zip(&self.down_weights) {
            let source = &self.ring[self.ring_place(row)];
            for (sum, &value) in sums.iter_mut().zip(source) {
                *sum += i32::from(value) * weight;
            }
        }
        match self.order {
            Order::AcrossFirst => clip_all(sums, to),
            Order::DownFirst => {
                clip_all(sums, &mut self.row);
                self.across.row(&self.row, to);
            }
        }
    }
}

fn clip_all(sums: &[i32], to: &mut [u8]) {
    for (to, &sum) in to.iter_mut().zip(sums) {
        *to = clip(sum);
    }
}

fn clip(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

fn source_range(axis: &Axis, places: &Range<u32>) -> Range<u32> {
    match places.is_empty() {
        true => 0..0,
        // Both ends of the filter's window move forwards with the place.
        false => axis.covered(places.start).start..axis.covered(places.end - 1).end,
    }
}

/// Resamplings one behind another, of which a rectangle is wanted.
pub struct Chain<'a> {
    picture: &'a Picture,
    stages: Vec<Stage>,
    columns: Range<u32>,
    rows: Range<u32>,
    sums: Vec<i32>,
}

impl<'a> Chain<'a> {
    /// Resizes `picture` to each of `sizes` in turn, by `filter`, and gives the pixels at
    /// `columns` and `rows` of the last.
    ///
    /// # Panics
    /// When the rectangle is not inside, or an edge is 0.
    #[must_use]
    pub fn new(
        picture: &'a Picture,
        sizes: &[Size],
        filter: Filter,
        columns: Range<u32>,
        rows: Range<u32>,
    ) -> Chain<'a> {
        let last = sizes.last().copied().unwrap_or(picture.size());
        assert!(columns.end <= last.width && rows.end <= last.height);
        let mut stages = Vec::with_capacity(sizes.len());
        let (mut wanted_columns, mut wanted_rows) = (columns.clone(), rows.clone());
        let mut longest = columns.len();
        for index in (0..sizes.len()).rev() {
            let to = sizes[index];
            let from = if index == 0 { picture.size() } else { sizes[index - 1] };
            assert!(from.pixels() > 0 && to.pixels() > 0);
            if from == to {
                continue;
            }
            let stage = Stage::new(filter, from, to, &wanted_columns, &wanted_rows);
            wanted_columns = stage.source_columns.clone();
            wanted_rows = source_range(&stage.down, &wanted_rows);
            longest = longest.max(wanted_columns.len());
            stages.push(stage);
        }
        stages.reverse();
        Chain { picture, stages, columns, rows, sums: vec![0; longest * 3] }
    }

    /// Writes the rectangle, `[rows][columns][3]` bytes. Allocates nothing.
    ///
    /// # Panics
    /// When `to` has another length.
    pub fn write(mut self, to: &mut [u8]) {
        let row_bytes = self.columns.len() * 3;
        assert_eq!(to.len(), row_bytes * self.rows.len());
        for (row, to) in self.rows.clone().zip(to.chunks_exact_mut(row_bytes.max(1))) {
            row_of(&mut self.stages, self.picture, &self.columns, row, &mut self.sums, to);
        }
    }
}

/// Row `row` of the last of `stages`, or of the picture. Rows are asked for in rising order.
fn row_of(
    stages: &mut [Stage],
    picture: &Picture,
    columns: &Range<u32>,
    row: u32,
    sums: &mut [i32],
    to: &mut [u8],
) {
    let Some((stage, before)) = stages.split_last_mut() else {
        picture.read_row(row, columns.clone(), to);
        return;
    };
    let covered = stage.down.taps(row, &mut stage.down_weights, &mut stage.exact);
    while stage.next_row < covered.end {
        let source = stage.next_row;
        row_of(before, picture, &stage.source_columns, source, sums, &mut stage.row);
        stage.take_row(source);
        stage.next_row += 1;
    }
    stage.answer(covered, sums, to);
}

/// Resizes a whole picture into `to`, `[height][width][3]` bytes.
///
/// # Panics
/// When `to` has another length, or an edge is 0.
pub fn resize(picture: &Picture, size: Size, filter: Filter, to: &mut [u8]) {
    Chain::new(picture, &[size], filter, 0..size.width, 0..size.height).write(to);
}
