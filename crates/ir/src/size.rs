//! Sizes that depend on bounded run-time dimensions.
//!
//! A size is built from constants, dims, sums, products, ceiling divisions by a constant, minima
//! and maxima only. Each of these grows with its parts, so a size is **monotone**: its value at
//! the dims' maxima bounds every smaller run, and a plan made there holds for all of them with
//! the same offsets. All arithmetic is checked; overflow is `None`, never a wrapped number.

use crate::ids::DimId;

/// A monotone expression over dims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// A fixed number.
    Const(u64),
    /// The current value of a dim.
    Dim(DimId),
    /// The sum of its parts.
    Add(Vec<Size>),
    /// The product of its parts.
    Mul(Vec<Size>),
    /// A part divided by a constant above zero, rounded up.
    CeilDiv(Box<Size>, u64),
    /// The least of its parts.
    Min(Vec<Size>),
    /// The greatest of its parts.
    Max(Vec<Size>),
}

impl Size {
    /// The value at the given dims, `None` on overflow, an unknown dim or a zero divisor.
    #[must_use]
    pub fn value(&self, dims: &[u64]) -> Option<u64> {
        match self {
            Size::Const(value) => Some(*value),
            Size::Dim(dim) => dims.get(dim.index()).copied(),
            Size::Add(parts) => {
                parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.value(dims)?))
            }
            Size::Mul(parts) => {
                parts.iter().try_fold(1u64, |product, part| product.checked_mul(part.value(dims)?))
            }
            Size::CeilDiv(part, divisor) => {
                if *divisor == 0 {
                    return None;
                }
                Some(part.value(dims)?.div_ceil(*divisor))
            }
            Size::Min(parts) => fold(parts, dims, u64::min),
            Size::Max(parts) => fold(parts, dims, u64::max),
        }
    }

    /// This size times a constant.
    #[must_use]
    pub fn times(&self, factor: u64) -> Size {
        match (self, factor) {
            (size, 1) => size.clone(),
            (Size::Const(value), factor) if value.checked_mul(factor).is_some() => {
                Size::Const(value * factor)
            }
            (Size::Mul(parts), factor) => {
                let mut parts = parts.clone();
                match parts.last_mut() {
                    Some(Size::Const(last)) if last.checked_mul(factor).is_some() => {
                        *last *= factor;
                    }
                    _ => parts.push(Size::Const(factor)),
                }
                Size::Mul(parts)
            }
            (size, factor) => Size::Mul(vec![size.clone(), Size::Const(factor)]),
        }
    }

    /// The product of several sizes, constants folded into one factor at the end.
    #[must_use]
    pub fn product(parts: &[Size]) -> Size {
        let mut factor = 1u64;
        let mut rest = Vec::new();
        for part in parts {
            match part {
                Size::Const(value) if factor.checked_mul(*value).is_some() => factor *= value,
                other => rest.push(other.clone()),
            }
        }
        match (rest.len(), factor) {
            (0, factor) => Size::Const(factor),
            (1, 1) => rest.remove(0),
            (_, 1) => Size::Mul(rest),
            (_, factor) => {
                rest.push(Size::Const(factor));
                Size::Mul(rest)
            }
        }
    }

    /// The same expression over other dims.
    #[must_use]
    pub fn over(&self, dims: &impl Fn(DimId) -> DimId) -> Size {
        let all = |parts: &[Size]| parts.iter().map(|part| part.over(dims)).collect();
        match self {
            Size::Const(value) => Size::Const(*value),
            Size::Dim(dim) => Size::Dim(dims(*dim)),
            Size::Add(parts) => Size::Add(all(parts)),
            Size::Mul(parts) => Size::Mul(all(parts)),
            Size::CeilDiv(part, divisor) => Size::CeilDiv(Box::new(part.over(dims)), *divisor),
            Size::Min(parts) => Size::Min(all(parts)),
            Size::Max(parts) => Size::Max(all(parts)),
        }
    }

    /// How deep the expression nests.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Size::Const(_) | Size::Dim(_) => 1,
            Size::CeilDiv(part, _) => 1 + part.depth(),
            Size::Add(parts) | Size::Mul(parts) | Size::Min(parts) | Size::Max(parts) => {
                1 + parts.iter().map(Size::depth).max().unwrap_or(0)
            }
        }
    }
}

fn fold(parts: &[Size], dims: &[u64], pick: fn(u64, u64) -> u64) -> Option<u64> {
    let mut result: Option<u64> = None;
    for part in parts {
        let value = part.value(dims)?;
        result = Some(result.map_or(value, |so_far| pick(so_far, value)));
    }
    result
}

impl From<u64> for Size {
    fn from(value: u64) -> Self {
        Size::Const(value)
    }
}

impl From<DimId> for Size {
    fn from(dim: DimId) -> Self {
        Size::Dim(dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let tokens = Size::Dim(DimId(0));
        assert_eq!(tokens.times(576).times(4).value(&[256]), Some(256 * 576 * 4));
        assert_eq!(Size::CeilDiv(Box::new(tokens.clone()), 64).value(&[65]), Some(2));
        assert_eq!(tokens.times(u64::MAX).value(&[2]), None);
        assert_eq!(Size::Dim(DimId(3)).value(&[2]), None);
        assert_eq!(Size::CeilDiv(Box::new(Size::Const(1)), 0).value(&[]), None);
        assert_eq!(Size::Min(vec![]).value(&[]), None);
        assert_eq!(Size::Max(vec![Size::Const(3), tokens]).value(&[7]), Some(7));
    }

    #[test]
    fn products_fold_constants() {
        let size = Size::product(&[Size::Const(4), Size::Dim(DimId(0)), Size::Const(576)]);
        assert_eq!(size, Size::Mul(vec![Size::Dim(DimId(0)), Size::Const(2304)]));
        assert_eq!(Size::product(&[Size::Const(4), Size::Const(2)]), Size::Const(8));
    }
}
