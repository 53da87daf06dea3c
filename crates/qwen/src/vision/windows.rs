//! The order of patches in the vision tower: window by window, those of one size next to each other.
//!
//! The order of windows is free: their tokens do not see each other, and attention without windows has no order. Windows of one size
//! are one batch.

use super::config::VisionConfig;

/// Windows of one size, which follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowRun {
    /// The number of windows.
    pub(crate) count: usize,
    /// Patches of each.
    pub(crate) patches: usize,
}

/// The windows of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Tokens of the language model, rows first.
    grid: [usize; 2],
    /// Side in patches of the square that becomes a token.
    merged: usize,
    /// The row and the column of each token.
    order: Vec<[usize; 2]>,
    runs: Vec<WindowRun>,
}

impl Windows {
    /// The windows of an image of `grid` tokens, rows first.
    pub(crate) fn new(grid: [usize; 2], config: &VisionConfig) -> Self {
        let (side, merged) = (config.window(), config.spatial_merge_size);
        let [rows, columns] = grid;
        let mut all: Vec<Vec<[usize; 2]>> = Vec::new();
        for top in (0..rows).step_by(side) {
            for left in (0..columns).step_by(side) {
                let (bottom, right) = (rows.min(top + side), columns.min(left + side));
                all.push((top..bottom).flat_map(|row| (left..right).map(move |column| [row, column])).collect());
            }
        }
        all.sort_by_key(|window| std::cmp::Reverse(window.len()));
        let runs = all.chunk_by(|a, b| a.len() == b.len());
        let runs = runs.map(|run| WindowRun { count: run.len(), patches: run[0].len() * merged * merged }).collect();
        Self { grid, merged, order: all.concat(), runs }
    }

    /// Tokens of the language model, rows first.
    pub(crate) fn grid(&self) -> [usize; 2] {
        self.grid
    }

    /// The number of patches.
    pub(crate) fn patches(&self) -> usize {
        self.order.len() * self.merged * self.merged
    }

    /// The row and the column of each patch.
    pub(crate) fn places(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        let m = self.merged;
        let of = move |&[row, column]: &[usize; 2]| (0..m * m).map(move |i| [row * m + i / m, column * m + i % m]);
        self.order.iter().flat_map(of)
    }

    /// The windows by size.
    pub(crate) fn runs(&self) -> &[WindowRun] {
        &self.runs
    }

    /// The place in this order of each token, row by row.
    pub(crate) fn row_by_row(&self) -> Vec<u32> {
        let columns = self.grid[1];
        let mut places = vec![0; self.order.len()];
        for (place, [row, column]) in self.order.iter().enumerate() {
            places[row * columns + column] = place as u32;
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_one_size_follow_each_other() {
        // Windows of four tokens along each side: 4 x 4, 4 x 1, and 2 x 4, 2 x 1.
        let windows = Windows::new([6, 5], &VisionConfig::default());
        let runs = [(1, 64), (1, 32), (1, 16), (1, 8)].map(|(count, patches)| WindowRun { count, patches });
        assert_eq!(windows.runs(), runs);
        assert_eq!((windows.patches(), windows.places().count()), (120, 120));
        let first: Vec<_> = windows.places().take(5).collect();
        assert_eq!(first, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]);
        let places = windows.row_by_row();
        // Token (4, 0) is the first of the window below, and (0, 4) that of the one at the right.
        assert_eq!((places[20], places[4], places[29]), (16, 24, 29));
        assert_eq!(Windows::new([8, 12], &VisionConfig::default()).runs(), [WindowRun { count: 6, patches: 64 }]);
    }
}
