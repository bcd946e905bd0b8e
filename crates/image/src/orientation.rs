//! EXIF orientation: how a stored picture is to be held.
//!
//! Believes: the EXIF standard's eight cases. Must not know: where the bytes come from.

use crate::limits::EXIF_ENTRIES_MAX;
use crate::picture::Size;

/// What must be done to a stored picture so that it stands upright.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orientation {
    /// Nothing (1).
    Upright,
    /// Left and right change places (2).
    Mirror,
    /// A half turn (3).
    HalfTurn,
    /// Top and bottom change places (4).
    Flip,
    /// Rows become columns (5).
    Transpose,
    /// A quarter turn clockwise (6).
    Clockwise,
    /// Rows become columns about the other diagonal (7).
    Transverse,
    /// A quarter turn counter-clockwise (8).
    CounterClockwise,
}

impl Orientation {
    /// From EXIF data that begins with a TIFF header; upright where it does not say.
    pub(crate) fn from_exif(exif: &[u8]) -> Orientation {
        match orientation_value(exif) {
            Some(2) => Orientation::Mirror,
            Some(3) => Orientation::HalfTurn,
            Some(4) => Orientation::Flip,
            Some(5) => Orientation::Transpose,
            Some(6) => Orientation::Clockwise,
            Some(7) => Orientation::Transverse,
            Some(8) => Orientation::CounterClockwise,
            Some(_) | None => Orientation::Upright,
        }
    }

    /// Size of the upright picture.
    pub(crate) fn size_of(self, stored: Size) -> Size {
        match self {
            Orientation::Upright
            | Orientation::Mirror
            | Orientation::HalfTurn
            | Orientation::Flip => stored,
            Orientation::Transpose
            | Orientation::Clockwise
            | Orientation::Transverse
            | Orientation::CounterClockwise => Size::new(stored.height, stored.width),
        }
    }

    /// Column and row of the stored picture that hold pixel (`x`, `y`) of the upright one.
    pub(crate) fn stored_place(self, stored: Size, x: u32, y: u32) -> (u32, u32) {
        let (right, bottom) = (stored.width - 1, stored.height - 1);
        match self {
            Orientation::Upright => (x, y),
            Orientation::Mirror => (right - x, y),
            Orientation::HalfTurn => (right - x, bottom - y),
            Orientation::Flip => (x, bottom - y),
            Orientation::Transpose => (y, x),
            Orientation::Clockwise => (y, bottom - x),
            Orientation::Transverse => (right - y, bottom - x),
            Orientation::CounterClockwise => (right - y, x),
        }
    }
}

/// The value of tag 0x0112 in the first directory, if the data is well-formed that far.
fn orientation_value(exif: &[u8]) -> Option<u16> {
    let little = match exif.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let two = |at: usize| -> Option<u16> {
        let bytes = exif.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let four = |at: usize| -> Option<u32> {
        let bytes = exif.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    const TAG_ORIENTATION: u16 = 0x0112;
    const TYPE_SHORT: u16 = 3;
    let directory = four(4)? as usize;
    let entries = two(directory)?.min(EXIF_ENTRIES_MAX);
    (0..usize::from(entries))
        .map(|entry| directory + 2 + entry * 12)
        .find(|&at| two(at) == Some(TAG_ORIENTATION))
        .filter(|&at| two(at + 2) == Some(TYPE_SHORT))
        .and_then(|at| two(at + 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_found_in_both_byte_orders() {
        let mut big = b"MM\0\x2a\0\0\0\x08\0\x02".to_vec();
        big.extend_from_slice(&[1, 0, 0, 3, 0, 0, 0, 1, 0, 9, 0, 0]);
        big.extend_from_slice(&[1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0]);
        assert_eq!(Orientation::from_exif(&big), Orientation::Clockwise);
        let mut little = b"II\x2a\0\x08\0\0\0\x01\0".to_vec();
        little.extend_from_slice(&[0x12, 1, 3, 0, 1, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(Orientation::from_exif(&little), Orientation::HalfTurn);
        for cut in 0..little.len() {
            let _ = Orientation::from_exif(&little[..cut]);
        }
        little[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Orientation::from_exif(&little), Orientation::Upright);
    }

    #[test]
    fn every_place_is_taken_once() {
        let stored = Size::new(3, 2);
        for exif in 1..=8_u8 {
            let mut data = b"II\x2a\0\x08\0\0\0\x01\0".to_vec();
            data.extend_from_slice(&[0x12, 1, 3, 0, 1, 0, 0, 0, exif, 0, 0, 0]);
            let orientation = Orientation::from_exif(&data);
            let upright = orientation.size_of(stored);
            let mut seen = [false; 6];
            for y in 0..upright.height {
                for x in 0..upright.width {
                    let (column, row) = orientation.stored_place(stored, x, y);
                    let place = (row * stored.width + column) as usize;
                    assert!(!std::mem::replace(&mut seen[place], true));
                }
            }
            assert!(seen.iter().all(|&taken| taken));
        }
    }
}
