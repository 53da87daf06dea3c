//! The search for the fastest batch size, from the times of a set's own batches.
//!
//! The search begins at a size and doubles it as long as that gains [`WORTH`] of the time for an image. Where the first doubling gains
//! less it halves the size in the same way. Where launches count, `n` images at once take about `b + a / n` for each, where caches or
//! memory count about `b + c n`: in both, once a doubling (or halving) gains less than [`WORTH`], all that would follow gain less
//! than that together. So the fastest of the sizes that were tried is within [`WORTH`] of the best.

use std::collections::BTreeMap;
use std::time::Duration;

/// The gain for which a search goes on, as a fraction of the time for an image.
const WORTH: f64 = 0.02;
/// Batches of a size whose times are compared, by their median: at least, and where batches are short at most.
const BATCHES: [usize; 2] = [3, 9];
/// The time that short batches of a size take together.
const ENOUGH: Duration = Duration::from_millis(500);
/// The largest size that is tried.
pub(super) const MOST: usize = 256;
/// A size is tried where so many batches of it are left, so that most images are made after the search.
const LEFT: usize = 8;
/// A second size is tried only where the images that are left take at least so long. A new size costs some tenths of a second, whatever
/// comes of it: a GPU records its steps again, and the images of the size before are decoded with no step in parallel.
const PAYS: Duration = Duration::from_secs(10);
/// The first size leaves so many batches: those of the last one are decoded when no step is left to run in parallel with that.
const FIRST_BATCHES: usize = 16;
/// The first size is not made smaller than this for that: smaller batches lose more to launches than the last decoding takes.
const FIRST_LEAST: usize = 16;

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// To run so many batches of a size, and to say how long they took.
    Try { size: usize, batches: usize },
    /// To go on with the size that was found, at so many images per second.
    Found { size: usize, speed: f64 },
    /// To make the rest in this size: too few images are left for a search.
    TooFew { size: usize },
}

/// The search for one device and images of one kind.
#[derive(Debug, Clone, Default)]
pub(super) struct SizeSearch {
    /// The first size.
    start: usize,
    /// The times of whole batches of each size. The first one of a size after another size does not count: a GPU records its steps,
    /// and memory is arranged.
    times: BTreeMap<usize, Vec<Duration>>,
    /// The images of the last batch.
    last: Option<usize>,
    /// The smallest size for which memory was out.
    no_room: Option<usize>,
}

impl SizeSearch {
    /// Begins with batches of `planned` images, or fewer where only `left` images are left.
    pub(super) fn new(planned: usize, left: usize) -> Self {
        let start = planned.min((left / FIRST_BATCHES).max(FIRST_LEAST));
        Self { start: start.clamp(1, MOST), ..Self::default() }
    }

    /// Says that a batch of `images` took so long.
    pub(super) fn took(&mut self, images: usize, time: Duration) {
        if self.last.replace(images) == Some(images) {
            self.times.entry(images).or_default().push(time);
        }
    }

    /// Says that memory was out for a batch of `images`: no larger one is tried from now on.
    pub(super) fn no_room(&mut self, images: usize) {
        self.no_room = Some(self.no_room.map_or(images, |known| known.min(images)).max(2));
        self.last = None;
    }

    /// The most images that may run at once: half of those for which memory was out.
    pub(super) fn most(&self) -> usize {
        self.no_room.map_or(usize::MAX, |images| images / 2)
    }

    /// The next action if `left` images are left. `has_room` returns whether the memory plan has room for a size.
    pub(super) fn next(&self, left: usize, has_room: &mut dyn FnMut(usize) -> bool) -> Next {
        let start = self.start.min(self.most());
        if let Some(next) = self.missing(start, left) {
            return next;
        }
        let ways: [fn(usize) -> usize; 2] = [|size| 2 * size, |size| size / 2];
        for way in ways {
            let mut at = start;
            loop {
                let next = way(at);
                let is_allowed = (1..=MOST.min(self.most())).contains(&next);
                if !is_allowed || (next > start && !self.is_known(next) && !has_room(next)) {
                    break;
                }
                if let Some(missing) = self.missing(next, left) {
                    return missing;
                }
                if self.median(next) > (1.0 - WORTH) * self.median(at) {
                    break;
                }
                at = next;
            }
            if at != start {
                break; // the other way is slower
            }
        }
        let size = self.best();
        Next::Found { size, speed: 1.0 / self.median(size) }
    }

    /// The next action before the time of a size is known.
    fn missing(&self, size: usize, left: usize) -> Option<Next> {
        if self.is_known(size) {
            return None;
        }
        let known = self.times.get(&size).map_or(0, Vec::len);
        let needed = if known == 0 { LEFT * size } else { size };
        let each = self.median(self.nearest(size));
        if left < needed || (known == 0 && left as f64 * each < PAYS.as_secs_f64()) {
            return Some(Next::TooFew { size: self.best() });
        }
        let first = usize::from(self.last != Some(size));
        // Batches that are taken together overlap. So the search asks for all that it will need, estimated from the times it has.
        let [least, most] = BATCHES;
        let batch = size as f64 * each;
        let needed = if batch > 0.0 { (ENOUGH.as_secs_f64() / batch).ceil() as usize } else { least };
        Some(Next::Try { size, batches: first + needed.clamp(least, most).saturating_sub(known).max(1) })
    }

    /// The size with known times that is next to this one.
    fn nearest(&self, size: usize) -> usize {
        self.times.keys().copied().min_by_key(|known| known.abs_diff(size)).unwrap_or(size)
    }

    /// Whether enough batches of a size were run.
    fn is_known(&self, size: usize) -> bool {
        let times = self.times.get(&size).map_or(&[][..], Vec::as_slice);
        let [least, most] = BATCHES;
        times.len() >= most || (times.len() >= least && times.iter().sum::<Duration>() >= ENOUGH)
    }

    /// The median time for an image in batches of a size, in seconds.
    fn median(&self, size: usize) -> f64 {
        let mut times = self.times.get(&size).cloned().unwrap_or_default();
        times.sort();
        let [low, high] = [times.len().saturating_sub(1) / 2, times.len() / 2];
        let time = |i: usize| times.get(i).map_or(f64::INFINITY, Duration::as_secs_f64);
        (time(low) + time(high)) / 2.0 / size as f64
    }

    /// The fastest known size; the first one if none is known.
    fn best(&self) -> usize {
        let known = self.times.keys().copied().filter(|size| *size <= self.most() && self.is_known(*size));
        known.min_by(|a, b| self.median(*a).total_cmp(&self.median(*b))).unwrap_or(self.start.min(self.most()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that takes `cost(n)` seconds for a batch of `n` images, and has memory for `room` images.
    struct Fake<'c> {
        cost: &'c dyn Fn(usize) -> f64,
        room: usize,
        /// Bytes of its memory plan.
        planned: usize,
    }

    /// The end of a run, in which all images were made once.
    struct End {
        size: usize,
        is_found: bool,
        /// Images that were made before the size was found.
        searched: usize,
        /// The sizes of the batches.
        sizes: Vec<usize>,
    }

    impl Fake<'_> {
        /// Makes `images` images, as a set does. The time of each third batch is 1.3 times as long as usual.
        fn run(&self, start: usize, images: usize) -> End {
            let (mut search, mut left, mut sizes) = (SizeSearch::new(start, images), images, Vec::new());
            loop {
                let (size, batches) = match search.next(left, &mut |size| size <= self.planned) {
                    Next::Try { size, batches } => (size, batches),
                    Next::Found { size, speed } => {
                        assert!((speed * (self.cost)(size) / size as f64 - 1.0).abs() < 0.01, "{speed}");
                        return End { size, is_found: true, searched: images - left, sizes };
                    }
                    Next::TooFew { size } => return End { size, is_found: false, searched: images - left, sizes },
                };
                assert!(batches > 0 && left > 0, "there is something to do");
                for _ in 0..batches {
                    let size = size.min(search.most()).min(left);
                    if size == 0 {
                        break;
                    }
                    if size > self.room {
                        search.no_room(size); // the same images are made in smaller batches
                        continue;
                    }
                    let noise = if sizes.len() % 3 == 2 { 1.3 } else { 1.0 };
                    search.took(size, Duration::from_secs_f64((self.cost)(size) * noise));
                    sizes.push(size);
                    left -= size;
                }
            }
        }
    }

    /// The time for an image, as a multiple of the best of all sizes that fit.
    fn slowness(cost: &dyn Fn(usize) -> f64, room: usize, size: usize) -> f64 {
        let of = |n: usize| cost(n) / n as f64;
        of(size) / (1..=room.min(MOST)).map(of).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn batches_that_a_search_needs_are_taken_together() {
        let mut search = SizeSearch::new(4, 1000);
        let mut next = |took: usize| {
            (0..took).for_each(|_| search.took(4, Duration::from_millis(100)));
            search.next(1000, &mut |_| false)
        };
        assert_eq!(next(0), Next::Try { size: 4, batches: 4 }, "the first one does not count");
        assert_eq!(next(4), Next::Try { size: 4, batches: 2 }, "five of them take long enough");
        let next = next(2);
        assert_eq!(next, Next::Try { size: 2, batches: 10 }, "they are half as long, as far as is known");
    }

    #[test]
    fn the_size_is_within_two_percent_of_the_best() {
        let launch_bound = |n: usize| 0.2f64.max(0.01 * n as f64) + 0.002 * n as f64;
        let models: [(&str, &dyn Fn(usize) -> f64); 5] = [
            ("launches", &launch_bound),
            ("launches and arithmetic", &|n| 0.3 + 0.1 * n as f64),
            ("arithmetic", &|n| 0.25 * n as f64),
            ("caches", &|n| 0.2 * n as f64 + 0.01 * (n * n) as f64),
            ("launches and caches", &|n| 0.1 + 0.2 * n as f64 + 0.002 * (n * n) as f64),
        ];
        for (name, cost) in models {
            for start in [1, 4, 28] {
                let End { size, is_found, sizes, .. } = Fake { cost, room: 1000, planned: 1000 }.run(start, 100_000);
                let slowness = slowness(cost, 1000, size);
                assert!(is_found && slowness < 1.02 + 0.005, "{name} from {start}: {size} is {slowness} of {sizes:?}");
            }
        }
    }

    #[test]
    fn noise_of_some_batches_is_no_gain() {
        let End { size, searched, .. } = Fake { cost: &|n| 0.25 * n as f64, room: 64, planned: 64 }.run(1, 1000);
        assert_eq!((size, searched), (1, 4 + 8), "arithmetic alone: one, and two for comparison");
    }

    #[test]
    fn short_batches_are_run_more_often() {
        let End { sizes, .. } = Fake { cost: &|n| 0.1 * n as f64, room: 64, planned: 64 }.run(1, 1000);
        assert_eq!(sizes.iter().filter(|size| **size == 1).count(), 1 + 5, "two of them count 0.13 s");
        let End { sizes, .. } = Fake { cost: &|n| 0.001 * n as f64, room: 64, planned: 64 }.run(1, 1000);
        assert_eq!(sizes.iter().filter(|size| **size == 1).count(), 1 + 9);
    }

    #[test]
    fn sizes_without_room_in_the_plan_are_not_tried() {
        let cost = |n: usize| 0.3 + 0.01 * n as f64;
        let End { size, is_found, sizes, .. } = Fake { cost: &cost, room: 20, planned: 20 }.run(1, 10_000);
        assert!(size == 16 && is_found && sizes.iter().all(|size| *size <= 16));
    }

    #[test]
    fn a_size_for_which_memory_is_out_gives_way_to_a_smaller_one() {
        let cost = |n: usize| 0.3 + 0.01 * n as f64;
        for (room, start, found) in [(20, 1, 16), (20, 28, 14), (5, 28, 3), (1, 28, 1), (1, 1, 1)] {
            let End { size, is_found, sizes, .. } = Fake { cost: &cost, room, planned: 1000 }.run(start, 10_000);
            assert!(size == found && is_found && sizes.iter().all(|size| *size <= room), "{start}: {size}, {sizes:?}");
        }
        let mut search = SizeSearch::new(8, 1000);
        search.no_room(8);
        assert_eq!((search.most(), search.next(100, &mut |_| true)), (4, Next::Try { size: 4, batches: 4 }));
        search.no_room(1);
        assert_eq!(search.most(), 1, "one image is always tried");
    }

    #[test]
    fn a_set_of_short_time_is_made_without_a_search() {
        let of = |seconds: f64| {
            let cost = move |n: usize| seconds * (1.0 + 0.1 * n as f64);
            let End { size, is_found, sizes, .. } = Fake { cost: &cost, room: 1000, planned: 1000 }.run(256, 4096);
            (size, is_found, sizes.iter().any(|tried| *tried != 256))
        };
        assert_eq!(of(0.005), (256, false, false), "two seconds are left after the first batches");
        assert_eq!(of(0.5), (256, true, true), "two minutes would be left");
    }

    #[test]
    fn a_small_set_is_not_made_in_few_large_batches() {
        let first = |planned, left| SizeSearch::new(planned, left).start;
        assert_eq!((first(256, 512), first(256, 4096), first(28, 512)), (32, 256, 28));
        assert_eq!((first(256, 100), first(4, 100), first(4, 1)), (16, 4, 4), "launches count for small batches");
    }

    #[test]
    fn few_images_are_made_without_a_search() {
        let cost = |n: usize| 3.0 + 0.1 * n as f64;
        let run = |start, images| {
            let End { size, is_found, searched, .. } = Fake { cost: &cost, room: 100, planned: 100 }.run(start, images);
            (size, is_found, searched)
        };
        assert_eq!(run(28, 100), (16, false, 0));
        assert_eq!(run(1, 7), (1, false, 0));
        assert_eq!(run(1, 30), (2, false, 4 + 8), "the best of what there was time for");
    }

    #[test]
    fn a_batch_after_one_of_another_size_does_not_count() {
        let mut search = SizeSearch::new(2, 1000);
        let second = Duration::from_secs(1);
        for images in [2, 1, 2, 1, 2] {
            search.took(images, second);
        }
        assert_eq!(search.next(100, &mut |_| true), Next::Try { size: 2, batches: 3 });
        (0..3).for_each(|_| search.took(2, second));
        assert_eq!(search.next(100, &mut |_| false), Next::Try { size: 1, batches: 4 });
    }
}
