//! Series of the resident set over time: fewer points that show the same line.

use std::path::Path;

use crate::watch::Sample;

/// Most points that are kept of a call.
pub const POINTS_MAX: usize = 120;

/// Samples where the line bends: both ends of every run of equal values. Of more than
/// [`POINTS_MAX`] the first, the last, and the greatest of each stretch between them: what is left
/// out lies below.
#[must_use]
pub fn thinned(samples: &[Sample]) -> Vec<Sample> {
    let is_bend = |index: usize| {
        let same = |other: Option<&Sample>| other.is_some_and(|it| it.1 == samples[index].1);
        let before = index.checked_sub(1).and_then(|before| samples.get(before));
        !(same(before) && same(samples.get(index + 1)))
    };
    let bends: Vec<Sample> =
        (0..samples.len()).filter(|index| is_bend(*index)).map(|index| samples[index]).collect();
    if bends.len() <= POINTS_MAX {
        return bends;
    }
    let (inner, stretches) = (&bends[1..bends.len() - 1], POINTS_MAX - 2);
    let greatest = |index: usize| {
        let stretch = index * inner.len() / stretches..(index + 1) * inner.len() / stretches;
        inner[stretch].iter().copied().max_by_key(|sample| sample.1)
    };
    let ends = (bends[0], bends[bends.len() - 1]);
    let between = (0..stretches).filter_map(greatest);
    std::iter::once(ends.0).chain(between).chain([ends.1]).collect()
}

/// A kept series: whose it is, and its points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Condition, system and prompt.
    pub of: (String, String, String),
    /// Its points.
    pub samples: Vec<Sample>,
}

/// The series of a file.
#[must_use]
pub fn read(path: &Path) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split(',').collect();
        let [condition, system, prompt, ms, bytes] = fields[..] else { continue };
        let (Ok(ms), Ok(bytes)) = (ms.parse(), bytes.parse()) else { continue };
        let of = (condition.to_string(), system.to_string(), prompt.to_string());
        match all.last_mut().filter(|series| series.of == of) {
            Some(series) => series.samples.push((ms, bytes)),
            None => all.push(Series { of, samples: vec![(ms, bytes)] }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_lines_keep_their_ends_and_long_ones_are_thinned() {
        let flat: Vec<Sample> = (0..50).map(|i| (f64::from(i), 7)).collect();
        assert_eq!(thinned(&flat), [(0.0, 7), (49.0, 7)]);
        let slope: Vec<Sample> = (0..1000).map(|i| (f64::from(i), i as u64)).collect();
        let kept = thinned(&slope);
        assert_eq!(
            (kept.len(), kept[0], kept[POINTS_MAX - 1]),
            (POINTS_MAX, (0.0, 0), (999.0, 999))
        );
        // One sample above all others is kept, wherever it is.
        for at in [1, 500, 998] {
            let mut peak: Vec<Sample> = (0..1000).map(|i| (f64::from(i), i as u64 % 2)).collect();
            peak[at].1 = 9;
            let kept = thinned(&peak);
            assert!(kept.len() == POINTS_MAX && kept.contains(&peak[at]), "{at}");
        }
        assert!(thinned(&[]).is_empty());
    }
}
