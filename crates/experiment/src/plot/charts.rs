//! The charts of the report: distributions, lines over time, and points.

use super::axes::{Axis, Frame, Scale};
use super::{Anchor, CHARACTER_WIDTH, Colour, Figure, INK, LIMIT, LIMIT_BAND, SERIES};
use crate::statistics::percentile;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 56.0;
const RIGHT: f64 = 20.0;

/// A name and its values.
pub type Named<T> = (String, Vec<T>);

/// Boxes of latencies: a group for each prompt, in it a box for each system. A box is the middle
/// half, its line the median; whiskers end at the 1st and 99th percentile, discs are beyond.
#[must_use]
pub fn distributions(title: &str, unit: &str, groups: &[(String, Vec<Named<f64>>)]) -> Figure {
    let values: Vec<f64> = all(groups.iter().flat_map(|(_, systems)| systems));
    let frame = frame((0.0, groups.len().max(1) as f64), spread(&values));
    let mut figure = titled(title);
    frame.draw_y(&mut figure, &named(unit, &frame.y));
    let names = names(groups.iter().flat_map(|(_, systems)| systems));
    legend(&mut figure, &names);
    for (index, (group, systems)) in groups.iter().enumerate() {
        let middle = frame.at(index as f64 + 0.5, 1.0).0;
        let bottom = frame.top + frame.height;
        figure.text((middle, bottom + 18.0), group, Anchor::Middle, INK);
        for (name, values) in systems.iter().filter(|(_, values)| !values.is_empty()) {
            let place = names.iter().position(|known| known == name).unwrap_or(0);
            let x = index as f64 + (place as f64 + 1.0) / (names.len() as f64 + 1.0);
            draw_box(&mut figure, &frame, (x, names.len()), values, colour(place));
        }
    }
    figure
}

fn draw_box(
    figure: &mut Figure,
    frame: &Frame,
    (x, boxes): (f64, usize),
    values: &[f64],
    colour: Colour,
) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| frame.at(x, percentile(&sorted, share));
    let half = (frame.width / frame.x.high / (boxes as f64 + 1.0) * 0.3).clamp(2.0, 16.0);
    let (low, high) = (percentile(&sorted, 0.01), percentile(&sorted, 0.99));
    figure.line(at(0.01), at(0.99), colour, 1.0);
    let (upper, lower) = (at(0.75), at(0.25));
    let size = (2.0 * half, (lower.1 - upper.1).max(1.0));
    figure.fill((upper.0 - half, upper.1), size, colour);
    let median = at(0.5);
    figure.line((median.0 - half, median.1), (median.0 + half, median.1), INK, 1.5);
    for value in sorted.iter().filter(|value| **value < low || **value > high) {
        figure.disc(frame.at(x, *value), 2.0, colour);
    }
}

/// Lines over x, and limits as lines from side to side.
#[must_use]
pub fn lines(
    title: &str,
    (x_name, y_name): (&str, &str),
    series: &[Named<(f64, f64)>],
    limits: &[(String, f64)],
) -> Figure {
    let points = || series.iter().flat_map(|(_, points)| points);
    let x_most = points().map(|point| point.0).fold(0.0, f64::max);
    let ys = points().map(|point| point.1).chain(limits.iter().map(|(_, limit)| *limit));
    let frame = frame((0.0, x_most), close(&ys.collect::<Vec<_>>()));
    let mut figure = titled(title);
    frame.draw_y(&mut figure, y_name);
    frame.draw_x(&mut figure, x_name);
    let names: Vec<String> = series.iter().map(|(name, _)| name.clone()).collect();
    legend(&mut figure, &names);
    // Limits go below: a line that keeps to its limit is still seen.
    for (name, limit) in limits {
        let (from, to) = (frame.at(0.0, *limit), frame.at(frame.x.high, *limit));
        figure.line(from, to, LIMIT_BAND, 5.0);
        figure.text((to.0 - 4.0, to.1 + 15.0), name, Anchor::End, LIMIT);
    }
    for (index, (_, points)) in series.iter().enumerate() {
        for pair in points.windows(2) {
            let (from, to) = (frame.at(pair[0].0, pair[0].1), frame.at(pair[1].0, pair[1].1));
            figure.line(from, to, colour(index), 1.5);
        }
    }
    figure
}

/// One value of each system in each group, as discs: groups stand side by side, their names in two
/// rows where they are too long for one.
#[must_use]
pub fn levels(title: &str, y_name: &str, groups: &[(String, Vec<(String, f64)>)]) -> Figure {
    let values: Vec<f64> = groups.iter().flat_map(|(_, systems)| systems).map(|it| it.1).collect();
    let frame = frame((0.0, groups.len().max(1) as f64), spread(&values));
    let mut figure = titled(title);
    frame.draw_y(&mut figure, &named(y_name, &frame.y));
    let mut names: Vec<String> = Vec::new();
    for (name, _) in groups.iter().flat_map(|(_, systems)| systems) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    legend(&mut figure, &names);
    let longest = groups.iter().map(|(group, _)| group.chars().count()).max().unwrap_or(0);
    let room = frame.width / groups.len().max(1) as f64;
    let rows = if (longest + 1) as f64 * CHARACTER_WIDTH < room { 1 } else { 2 };
    for (index, (group, systems)) in groups.iter().enumerate() {
        let bottom = frame.top + frame.height;
        let middle = frame.at(index as f64 + 0.5, frame.y.low).0;
        let row = 18.0 + 16.0 * (index % rows) as f64;
        figure.text((middle, bottom + row), group, Anchor::Middle, INK);
        for (name, value) in systems {
            let place = names.iter().position(|known| known == name).unwrap_or(0);
            let x = index as f64 + (place as f64 + 1.0) / (names.len() as f64 + 1.0);
            figure.disc(frame.at(x, *value), 4.5, colour(place));
        }
    }
    figure
}

/// Which line points are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guide {
    /// None.
    None,
    /// Where x and y are equal; the axes are logarithmic.
    Equality,
}

/// Points, a colour for each series.
#[must_use]
pub fn points(
    title: &str,
    (x_name, y_name): (&str, &str),
    series: &[Named<(f64, f64)>],
    guide: Guide,
) -> Figure {
    let xs: Vec<f64> = series.iter().flat_map(|(_, points)| points).map(|p| p.0).collect();
    let ys: Vec<f64> = series.iter().flat_map(|(_, points)| points).map(|p| p.1).collect();
    let (least, most) = range(&[&xs[..], &ys].concat());
    let frame = match guide {
        Guide::None => frame((0.0, range(&xs).1 * 1.02), spread(&ys)),
        Guide::Equality => {
            let axis = Axis::log(least, most);
            Frame { x: axis, ..frame((0.0, 1.0), axis) }
        }
    };
    let mut figure = titled(title);
    frame.draw_y(&mut figure, y_name);
    frame.draw_x(&mut figure, x_name);
    if guide == Guide::Equality {
        figure.line(frame.at(least, least), frame.at(most, most), LIMIT, 1.0);
    }
    let names: Vec<String> = series.iter().map(|(name, _)| name.clone()).collect();
    legend(&mut figure, &names);
    for (index, (_, points)) in series.iter().enumerate() {
        for (x, y) in points {
            figure.disc(frame.at(*x, *y), 3.5, colour(index));
        }
    }
    figure
}

/// The least and the greatest; 0 and 1 for none.
fn range(values: &[f64]) -> (f64, f64) {
    match values.is_empty() {
        true => (0.0, 1.0),
        false => (
            values.iter().copied().fold(f64::INFINITY, f64::min),
            values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ),
    }
}

/// From zero, unless the values are of very different size.
fn spread(values: &[f64]) -> Axis {
    let (least, most) = range(values);
    match least > 0.0 && most / least > 12.0 {
        true => Axis::log(least, most),
        false => Axis::linear(0.0, most),
    }
}

/// An axis's name, with what one does not see at once.
fn named(name: &str, axis: &Axis) -> String {
    match axis.scale {
        Scale::Linear => name.to_string(),
        Scale::Log => format!("{name}, logarithmic"),
    }
}

/// From zero, unless that would press all values into the upper half.
fn close(values: &[f64]) -> Axis {
    let (least, most) = range(values);
    match least > most / 2.0 && most > least {
        true => Axis::linear((least - (most - least) / 2.0).max(0.0), most),
        false => Axis::linear(0.0, most),
    }
}

fn frame((x_low, x_high): (f64, f64), y: Axis) -> Frame {
    let x = Axis { high: x_high.max(x_low + 1e-9), ..Axis::linear(x_low, x_high) };
    let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    Frame { left: LEFT, top: TOP, width, height, x, y }
}

fn titled(title: &str) -> Figure {
    let mut figure = Figure::new(WIDTH, HEIGHT);
    figure.text((LEFT, 22.0), title, Anchor::Start, INK);
    figure
}

fn legend(figure: &mut Figure, names: &[String]) {
    let mut right = LEFT;
    for (index, name) in names.iter().enumerate() {
        figure.fill((right, 33.0), (10.0, 10.0), colour(index));
        figure.text((right + 15.0, 43.0), name, Anchor::Start, INK);
        right += 30.0 + name.chars().count() as f64 * CHARACTER_WIDTH;
    }
}

fn colour(index: usize) -> Colour {
    SERIES[index % SERIES.len()]
}

fn all<'a>(systems: impl Iterator<Item = &'a Named<f64>>) -> Vec<f64> {
    systems.flat_map(|(_, values)| values).copied().collect()
}

/// Names in the order of their first appearance.
fn names<'a>(systems: impl Iterator<Item = &'a Named<f64>>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in systems {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}
