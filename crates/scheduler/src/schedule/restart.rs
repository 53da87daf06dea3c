//! Restart sampling: arXiv 2306.14878, algorithm 1, with the restarts that AUTOMATIC1111 chooses.

use super::Schedule;
use crate::Result;
use crate::point::Point;
use crate::spacing::karras;

/// The noise level after which latents are raised again, and the level to which they are raised: `restart_list` in
/// AUTOMATIC1111's sd_samplers_extra.py.
const BETWEEN: (f64, f64) = (0.1, 2.0);

impl Schedule {
    /// Computes the steps of Restart from `levels`, the noisiest first and without the end: fewer steps down to the
    /// end, and some steps at low noise repeated once or twice.
    pub(super) fn fill_restart(&mut self, levels: &[f64]) -> Result<()> {
        let steps = levels.len();
        let (again, times) = match steps {
            0..20 => (0, 0),
            20..36 => (9, 1),
            _ => (steps / 4, 2),
        };
        let levels = match (times, levels) {
            (1.., [first, .., last]) => karras(*first, *last, steps - again * times, 7.0),
            _ => levels.to_vec(),
        };
        let point = |sigma: f64| Point::exploding(f64::from(self.timestep_at(sigma) as f32), f64::from(sigma as f32));
        let points: Vec<Point> = levels.iter().map(|&sigma| point(sigma)).chain([Point::exploding(0.0, 0.0)]).collect();
        let nearest = |wanted: f64| {
            let distance = |i: &usize| (points[*i].sigma - wanted).abs();
            (0..points.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or_default()
        };
        let (low, high) = (nearest(BETWEEN.0), nearest(BETWEEN.1));
        let raised: Vec<Point> = if times > 0 && high < low {
            karras(points[high].sigma, points[low].sigma, again + 1, 7.0).into_iter().map(point).collect()
        } else {
            Vec::new()
        };
        self.set_chain(points.clone())?;
        // The repeated steps follow the step that ends at the lower level.
        let steps_again = raised.windows(2).map(|pair| (pair[0], pair[1]));
        let mut pairs: Vec<(Point, Point)> = points.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let more: Vec<_> = std::iter::repeat_n(steps_again.collect::<Vec<_>>(), times).flatten().collect();
        pairs.splice(low..low, more);
        self.arrivals = pairs.iter().take(1).map(|pair| pair.0).chain(pairs.iter().map(|pair| pair.1)).collect();
        self.arrivals.pop();
        (self.points, self.targets) = pairs.into_iter().unzip();
        self.step_starts = (0..self.points.len()).collect();
        self.steps = self.points.len();
        Ok(())
    }
}
