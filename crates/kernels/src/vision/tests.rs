//! Each function against its definition, element by element, and in shards.

use super::*;
use crate::half::f32_to_f16;
use crate::packed::{PackedKind, PackedTiles};
use crate::simd::Operand;
use crate::testing::{Random, assert_close, assert_same_bits};

/// Feature and token of a tile-major activation.
fn at(x: &[f32], tokens: usize, feature: usize, token: usize) -> f32 {
    x[(feature / 16 * tokens + token) * 16 + feature % 16]
}

#[test]
fn patches_are_channels_rows_columns() {
    let mut random = Random(31);
    let windows = PatchOrder::Windows { square: 2, window: 2 };
    let grids = [(1, 1, 4), (3, 2, 14), (2, 5, 16), (4, 4, 7)].map(|grid| (grid, PatchOrder::Rows));
    for ((rows, columns, side), order) in grids.into_iter().chain([((6, 10, 4), windows)]) {
        let (mean, deviation) = ([0.5, 0.25, 0.125], [0.5, 0.229, 2.0]);
        let grid = Grid { rows, columns };
        let patches = Patches { grid, order, side, mean, deviation };
        let pixels: Vec<u8> = (0..patches.pixel_bytes()).map(|_| random.below(256) as u8).collect();
        let (tokens, tiles) = (rows * columns, patches.features().div_ceil(16));
        let mut out = vec![f32::NAN; tiles * 16 * tokens];
        let cut = tiles / 2;
        let (low, high) = out.split_at_mut(cut * 16 * tokens);
        patchify(&pixels, &patches, 0..cut, low);
        patchify(&pixels, &patches, cut..tiles, high);
        for (token, (row, column)) in order.patches(grid).enumerate() {
            for feature in 0..tiles * 16 {
                let (channel, dy, dx) =
                    (feature / side / side, feature / side % side, feature % side);
                let (y, x) = (row * side + dy, column * side + dx);
                let want = match channel {
                    0..3 => {
                        let byte = pixels[(y * columns * side + x) * 3 + channel];
                        (f32::from(byte) / 255.0 - mean[channel]) / deviation[channel]
                    }
                    _ => 0.0,
                };
                assert_eq!(at(&out, tokens, feature, token), want, "{feature} of {token}");
            }
        }
    }
}

#[test]
fn squares_are_rows_columns_channels() {
    let mut random = Random(32);
    let windows = PatchOrder::Windows { square: 2, window: 2 };
    let grids = [(2, 2, 2, 16), (4, 6, 2, 48), (4, 8, 4, 32)].map(|grid| (grid, PatchOrder::Rows));
    for ((rows, columns, factor, width), order) in
        grids.into_iter().chain([((6, 10, 2, 16), windows)])
    {
        let grid = Grid { rows, columns };
        let x = random.normals(grid.len() * width);
        let tiles = width / 16 * factor * factor;
        let tokens = grid.len() / factor / factor;
        let mut out = vec![f32::NAN; tiles * 16 * tokens];
        let cut = tiles / 3;
        let (low, high) = out.split_at_mut(cut * 16 * tokens);
        merge_patches(&x, (grid, order), factor, 0..cut, low);
        merge_patches(&x, (grid, order), factor, cut..tiles, high);
        for token in 0..tokens {
            let (ty, tx) = (token / (columns / factor), token % (columns / factor));
            for feature in 0..width * factor * factor {
                let (dy, dx) = (feature / width / factor, feature / width % factor);
                let patch = order.token(grid, (ty * factor + dy, tx * factor + dx));
                let want = at(&x, grid.len(), feature % width, patch);
                assert_eq!(at(&out, tokens, feature, token), want, "{feature} of {token}");
            }
        }
    }
}

/// A packed table of positions in f32 or f16 with its rows.
fn table(random: &mut Random, kind: PackedKind, side: usize, width: usize) -> (Vec<u8>, Vec<f32>) {
    let rows: Vec<f32> =
        (0..side * side * width).map(|_| random.below(512) as f32 / 64.0 - 4.0).collect();
    let mut raw = Vec::new();
    for value in &rows {
        match kind {
            PackedKind::F16 => raw.extend(f32_to_f16(*value).to_le_bytes()),
            _ => raw.extend(value.to_le_bytes()),
        }
    }
    let row_bytes = raw.len() / (side * side);
    let tile_bytes = kind.tile_bytes(width).expect("floats");
    let mut packed = vec![0; (side * side).div_ceil(16) * tile_bytes];
    for (raw, packed) in raw.chunks(16 * row_bytes).zip(packed.chunks_mut(tile_bytes)) {
        crate::pack::pack_rows(kind, width, raw, packed);
    }
    (packed, rows)
}

#[test]
fn equal_grids_keep_their_positions() {
    let mut random = Random(33);
    for kind in [PackedKind::F32, PackedKind::F16] {
        let (side, width) = (5, 48);
        let (packed, rows) = table(&mut random, kind, side, width);
        let packed = PackedTiles::new(kind, width, &packed);
        let grid = Grid { rows: side, columns: side };
        let x = random.normals(side * side * width);
        let mut out = x.clone();
        let (low, high) = out.split_at_mut(16 * grid.len());
        add_positions(Operand::InPlace, packed, side, grid, 0..1, low);
        add_positions(Operand::At(&x[16 * grid.len()..]), packed, side, grid, 1..3, high);
        for token in 0..grid.len() {
            for feature in 0..width {
                let want = at(&x, grid.len(), feature, token) + rows[token * width + feature];
                assert_eq!(at(&out, grid.len(), feature, token), want);
            }
        }
    }
}

#[test]
fn resized_positions_are_weighted_means() {
    let mut random = Random(34);
    for (side, rows, columns) in [(4, 7, 3), (16, 5, 9), (3, 3, 8), (8, 1, 1)] {
        let (packed, points) = table(&mut random, PackedKind::F32, side, 16);
        let packed = PackedTiles::new(PackedKind::F32, 16, &packed);
        let grid = Grid { rows, columns };
        let mut out = vec![0.0; grid.len() * 16];
        add_positions(Operand::InPlace, packed, side, grid, 0..1, &mut out);
        // The definition in f64, with no early end.
        let axis = |index: usize, wanted: usize| -> Vec<f64> {
            let scale = side as f64 / wanted as f64;
            let centre = scale * (index as f64 + 0.5);
            let weight = |j| 1.0 - ((f64::from(j) - centre + 0.5) / scale.max(1.0)).abs();
            let weights: Vec<f64> = (0..side as u32).map(|j| weight(j).max(0.0)).collect();
            let total: f64 = weights.iter().sum();
            weights.iter().map(|weight| weight / total).collect()
        };
        let mut want = Vec::new();
        for token in 0..grid.len() {
            let (wy, wx) = (axis(token / columns, rows), axis(token % columns, columns));
            for feature in 0..16 {
                let mut sum = 0.0;
                for (y, wy) in wy.iter().enumerate() {
                    for (x, wx) in wx.iter().enumerate() {
                        sum += wy * wx * f64::from(points[(y * side + x) * 16 + feature]);
                    }
                }
                want.push(sum);
            }
        }
        assert_close(&out, &want, 1e-5, 1e-5, "positions");
    }
}

#[test]
fn rows_are_placed_and_spliced() {
    let mut random = Random(35);
    let (features, capacity, tokens) = (48, 9, 4);
    let before = random.normals(features * capacity);
    let x = random.normals(features * tokens);
    let mut rows = before.clone();
    place_rows(&x, tokens, 3, capacity, &mut rows);
    for row in 0..capacity {
        for feature in 0..features {
            let want = match row {
                3..7 => at(&x, tokens, feature, row - 3),
                _ => at(&before, capacity, feature, row),
            };
            assert_eq!(at(&rows, capacity, feature, row), want);
        }
    }
    let indices = [0, 4, 0, 9, 1];
    let text = random.normals(features * indices.len());
    let mut out = text.clone();
    splice_rows(&rows, capacity, &indices, &mut out);
    for (token, index) in indices.iter().enumerate() {
        for feature in 0..features {
            let want = match index {
                0 => at(&text, indices.len(), feature, token),
                row => at(&rows, capacity, feature, *row as usize - 1),
            };
            assert_same_bits(&[at(&out, indices.len(), feature, token)], &[want], "spliced");
        }
    }
}
