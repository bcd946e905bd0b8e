//! Tile-major layout from and to plain rows `[tokens][features]`.

/// Rows to `[features/16][tokens][16]`. Panics unless the features are a multiple of 16.
pub fn to_tile_major<T: Copy>(rows: &[T], tokens: usize) -> Vec<T> {
    let features = rows.len() / tokens;
    assert!(features.is_multiple_of(16) && rows.len() == features * tokens);
    let mut out = Vec::with_capacity(rows.len());
    for tile in 0..features / 16 {
        for token in 0..tokens {
            out.extend_from_slice(&rows[token * features + tile * 16..][..16]);
        }
    }
    out
}

/// The inverse of [`to_tile_major`].
pub fn to_rows<T: Copy>(tile_major: &[T], tokens: usize) -> Vec<T> {
    let features = tile_major.len() / tokens;
    let mut out = Vec::with_capacity(tile_major.len());
    for token in 0..tokens {
        for feature in 0..features {
            out.push(tile_major[(feature / 16 * tokens + token) * 16 + feature % 16]);
        }
    }
    out
}
