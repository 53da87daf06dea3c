//! A Brownian path that depends on its seed alone: torchsde's `BrownianTree`, as k-diffusion uses it.
//!
//! The path is a function of the noise level, and a step gets the increment of the path between its two levels. Another
//! number of steps therefore samples the same path at other points, and the image stays nearly the same.
//!
//! The value of the path is computed at the ends of its range and at the midpoint of each interval that a query splits.
//! At a midpoint it is the mean of both ends plus normal noise from the interval's own seed (Levy's construction).
//! Levels are rounded to six decimals, where the halving ends. The order of the sums and their rounding are torchsde's.

mod seed_sequence;

use crate::noise::{NoisePart, normals};
use crate::rng::{Rng, RngKind};
use seed_sequence::first_seed;
use std::collections::HashMap;
use std::sync::Arc;

/// The key of a node of the tree: its index within its depth, and the depth.
type Key = (u64, u64);

/// A Brownian path over the noise levels between the two ends.
#[derive(Debug, Clone)]
pub(crate) struct BrownianTree {
    seed: u64,
    kind: RngKind,
    /// The number of values, and their part of each draw.
    values: (usize, Option<NoisePart>),
    whole: Node,
    /// The increments of the nodes that the previous query visited. The next query visits many of them again.
    cache: HashMap<Key, Arc<[f32]>>,
    visited: HashMap<Key, Arc<[f32]>>,
}

/// An interval of the range, with the increment of the path over it.
#[derive(Debug, Clone)]
struct Node {
    start: f64,
    end: f64,
    key: Key,
    increment: Arc<[f32]>,
}

impl BrownianTree {
    /// A path of so many values, which are a part of those of a batch or all of them. It starts at `start` and ends at `end`.
    pub fn new(seed: u64, kind: RngKind, values: (usize, Option<NoisePart>), start: f64, end: f64) -> Self {
        let scale = (end - start).sqrt() as f32;
        let first = normals(values.1, &mut Rng::new(kind, u64::from(first_seed(seed, &[]))), values.0);
        let increment = first.into_iter().map(|value| value * scale).collect();
        let whole = Node { start: rounded(start), end: rounded(end), key: (0, 0), increment };
        Self { seed, kind, values, whole, cache: HashMap::new(), visited: HashMap::new() }
    }

    /// Unit normal values for a step between two noise levels: the path's increment there divided by the square root of
    /// the distance, with its sign flipped where the step goes down. `from` and `to` must differ.
    pub fn normals(&mut self, from: f64, to: f64) -> Vec<f32> {
        let clamped = |level: f64| rounded(level.clamp(self.whole.start, self.whole.end));
        let (low, high) = (clamped(from.min(to)), clamped(from.max(to)));
        let mut sum = vec![0.0; self.values.0];
        if low < high {
            let whole = self.whole.clone();
            self.add(&whole, low, high, &mut sum);
        }
        self.cache = std::mem::take(&mut self.visited);
        let scale = if from > to { -1.0 } else { 1.0 } / ((to as f32 - from as f32).abs()).sqrt();
        sum.iter_mut().for_each(|value| *value *= scale);
        sum
    }

    /// Adds the path's increment from `low` to `high`, both within `node`.
    fn add(&mut self, node: &Node, low: f64, high: f64, sum: &mut [f32]) {
        if low == node.start && high == node.end {
            sum.iter_mut().zip(node.increment.iter()).for_each(|(sum, value)| *sum += value);
            return;
        }
        let [left, right] = self.halves(node);
        if low < left.end {
            self.add(&left, low, high.min(left.end), sum);
        }
        if high > right.start {
            self.add(&right, low.max(right.start), high, sum);
        }
    }

    /// Both halves of an interval.
    fn halves(&mut self, node: &Node) -> [Node; 2] {
        let (number, depth) = node.key;
        let keys = [(2 * number, depth + 1), (2 * number + 1, depth + 1)];
        let middle = rounded(0.5 * (node.end + node.start));
        let increments = match keys.map(|key| self.cache.get(&key).cloned()) {
            [Some(left), Some(right)] => [left, right],
            _ => {
                let (left, right) = (middle - node.start, node.end - middle);
                let reciprocal = 1.0 / (node.end - node.start);
                let deviation = (left * right * reciprocal).sqrt() as f32;
                let seed = first_seed(self.seed, &[number, depth]);
                let (count, part) = self.values;
                let noise = normals(part, &mut Rng::new(self.kind, u64::from(seed)), count);
                let parts = node.increment.iter().zip(noise);
                let left: Arc<[f32]> =
                    parts.map(|(&whole, noise)| left as f32 * whole * reciprocal as f32 + deviation * noise).collect();
                let right = node.increment.iter().zip(left.iter()).map(|(whole, left)| whole - left).collect();
                [left, right]
            }
        };
        let [left, right] = increments;
        let halves = [
            Node { start: node.start, end: middle, key: keys[0], increment: left },
            Node { start: middle, end: node.end, key: keys[1], increment: right },
        ];
        self.visited.extend(halves.iter().map(|half| (half.key, half.increment.clone())));
        halves
    }
}

/// Rounds to six decimals. Formatting rounds the exact value half to even, as Python's `round` does.
fn rounded(level: f64) -> f64 {
    format!("{level:.6}").parse().unwrap_or(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(seed: u64) -> BrownianTree {
        BrownianTree::new(seed, RngKind::Cpu, (64, None), 0.0291675, 14.614641)
    }

    fn increment(tree: &mut BrownianTree, from: f64, to: f64) -> Vec<f64> {
        let scale = f64::from((to as f32 - from as f32).abs()).sqrt();
        tree.normals(from, to).into_iter().map(|value| f64::from(value) * scale).collect()
    }

    /// The path is the same with one step or two, and independent of earlier queries and their order.
    #[test]
    fn the_path_does_not_depend_on_the_steps() {
        let whole = increment(&mut tree(7), 9.0, 1.5);
        let mut other = tree(7);
        other.normals(0.1, 0.2);
        let second = increment(&mut other, 3.25, 1.5);
        let first = increment(&mut other, 9.0, 3.25);
        for ((whole, first), second) in whole.iter().zip(first).zip(second) {
            assert!((whole - first - second).abs() < 2e-6, "{whole} for {first} + {second}");
        }
        assert_ne!(whole, increment(&mut tree(8), 9.0, 1.5));
    }

    #[test]
    fn steps_are_unit_normal_and_independent() {
        let mut tree = BrownianTree::new(3, RngKind::Cpu, (20_000, None), 0.03, 14.6);
        let (a, b) = (tree.normals(7.0, 3.0), tree.normals(3.0, 1.0));
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / 20_000.0;
        for values in [&a, &b] {
            assert!(mean(&mut values.iter().map(|&v| f64::from(v))).abs() < 0.02);
            assert!((mean(&mut values.iter().map(|&v| f64::from(v * v))) - 1.0).abs() < 0.03);
        }
        assert!(mean(&mut a.iter().zip(&b).map(|(a, b)| f64::from(a * b))).abs() < 0.02);
    }
}
