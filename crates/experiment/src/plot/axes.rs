//! Axes: from data to places in a figure, with ticks at round numbers.

use super::{Anchor, FAINT, Figure, INK};

/// How values become lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In proportion.
    Linear,
    /// By their logarithm; values are above zero.
    Log,
}

/// One direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    pub scale: Scale,
    pub low: f64,
    pub high: f64,
}

impl Axis {
    /// An axis for values from `low` to `high`, with some room, or from zero.
    pub fn linear(low: f64, high: f64) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        Axis { scale: Scale::Linear, low, high: high + (high - low) * 0.05 }
    }

    /// A logarithmic axis.
    pub fn log(low: f64, high: f64) -> Axis {
        let low = low.max(1e-12);
        Axis { scale: Scale::Log, low: low / 1.15, high: high.max(low) * 1.15 }
    }

    /// Share of the axis at a value: 0 at its beginning, 1 at its end.
    pub fn share(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(1e-12) / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    /// Round values on it.
    pub fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = round_step((self.high - self.low) / 6.0);
                let first = (self.low / step).ceil() as i64;
                let ticks = (first..).map(|index| index as f64 * step);
                ticks.take_while(|tick| *tick <= self.high).collect()
            }
            Scale::Log => {
                let first = self.low.log10().floor() as i32;
                let last = self.high.log10().ceil() as i32;
                let decades = (first..=last)
                    .flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10f64.powi(power)));
                decades.filter(|tick| (self.low..=self.high).contains(tick)).collect()
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, about as large as asked.
fn round_step(about: f64) -> f64 {
    let power = 10f64.powf(about.max(1e-300).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= about * 0.999).unwrap_or(10.0 * power)
}

/// A tick as text.
pub fn label(value: f64) -> String {
    let text = match value.abs() {
        0.0 => "0".to_string(),
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

/// The place of the data in a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
    pub x: Axis,
    pub y: Axis,
}

impl Frame {
    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let right = self.left + self.x.share(x).clamp(0.0, 1.0) * self.width;
        let down = self.top + (1.0 - self.y.share(y).clamp(-0.02, 1.02)) * self.height;
        (right, down)
    }

    /// Grid, ticks of y and its name.
    pub fn draw_y(&self, figure: &mut Figure, name: &str) {
        for tick in self.y.ticks() {
            let down = self.at(self.x.low, tick).1;
            figure.line((self.left, down), (self.left + self.width, down), FAINT, 1.0);
            figure.text((self.left - 6.0, down + 4.0), &label(tick), Anchor::End, INK);
        }
        figure.text((self.left, self.top - 10.0), name, Anchor::Start, INK);
        let bottom = self.top + self.height;
        figure.line((self.left, self.top), (self.left, bottom), INK, 1.0);
        figure.line((self.left, bottom), (self.left + self.width, bottom), INK, 1.0);
    }

    /// Ticks of x and its name.
    pub fn draw_x(&self, figure: &mut Figure, name: &str) {
        let bottom = self.top + self.height;
        for tick in self.x.ticks() {
            let right = self.at(tick, self.y.low).0;
            figure.line((right, bottom), (right, bottom + 4.0), INK, 1.0);
            figure.text((right, bottom + 18.0), &label(tick), Anchor::Middle, INK);
        }
        let middle = self.left + self.width / 2.0;
        figure.text((middle, bottom + 36.0), name, Anchor::Middle, INK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let ticks = Axis::linear(0.0, 10.0).ticks();
        assert_eq!(ticks, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Axis::log(10.0, 100.0).ticks(), [10.0, 20.0, 50.0, 100.0]);
        for (value, text) in [(0.0, "0"), (250.0, "250"), (1.5, "1.5"), (0.02, "0.02")] {
            assert_eq!(label(value), text);
        }
    }

    #[test]
    fn shares_run_from_end_to_end() {
        let axis = Axis { scale: Scale::Log, low: 1.0, high: 100.0 };
        assert!((axis.share(10.0) - 0.5).abs() < 1e-12);
        let axis = Axis { scale: Scale::Linear, low: 5.0, high: 7.0 };
        assert_eq!((axis.share(5.0), axis.share(6.0), axis.share(7.0)), (0.0, 0.5, 1.0));
    }
}
