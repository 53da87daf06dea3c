//! Who takes part in the next step.
//!
//! Tasks of the highest priority come first, and of these the ones with the least work left, which gives the least mean time (shortest remaining processing time). Alone, that
//! rule would leave long tasks behind for ever, and one client could keep all others out. So every [`FAIR_TURN`]th step is led
//! by the oldest task of the client whose turn was longest ago. A client may give its own tasks another order ([`super::order`]).

use std::collections::HashMap;

use super::order::{Rank, ranks};

/// One of so many steps belongs to the oldest task of a client.
const FAIR_TURN: u64 = 4;

/// Images that may take part in a step: those of a running batch, or the next batch of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The task's client.
    pub client: &'a str,
    /// Higher ones come first.
    pub priority: i32,
    /// The task's place in the order of arrival.
    pub arrived: u64,
    /// The work that the whole task still needs: calls of the denoiser, times images, times pixels.
    pub remaining: usize,
    /// Images that run at once.
    pub images: usize,
    /// The properties that candidates of one step share: the networks in memory, and the size of the images.
    pub kind: (usize, [usize; 2]),
    /// Whether the images are in the running batch already.
    pub is_running: bool,
    /// Whether the task has any images in the running batch.
    pub has_started: bool,
    /// The place of the task in the order that its client gave its own ones; 0 is none.
    pub place: u64,
}

/// The most images of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MostImages {
    /// So many of any size.
    Count(usize),
    /// At least one, and as many as have so many pixels. So a step takes about as long with images of any size, and small ones fill
    /// a GPU, too.
    Pixels(usize),
}

/// More images share no step, however small they are: noise and samplers are computed image by image.
const MOST_IMAGES: usize = 32;

impl MostImages {
    /// The most images of this width and height.
    pub fn of_size(self, [width, height]: [usize; 2]) -> usize {
        match self {
            Self::Count(count) => count.max(1),
            Self::Pixels(pixels) => (pixels / (width * height).max(1)).clamp(1, MOST_IMAGES),
        }
    }
}

/// Chooses by the rules above.
#[derive(Debug)]
pub struct Policy {
    max_images: MostImages,
    /// The most tasks of one client that have started, where others wait; 0 is for no limit.
    max_per_client: usize,
    steps: u64,
    /// The last fair turn of each client that has tasks.
    turns: HashMap<String, u64>,
}

impl Policy {
    /// A policy with steps of at most `max_images` images.
    pub fn new(max_images: MostImages, max_per_client: usize) -> Self {
        Self { max_images, max_per_client, steps: 0, turns: HashMap::new() }
    }

    /// The most images of one step.
    pub fn max_images(&self) -> MostImages {
        self.max_images
    }

    /// The candidates of the next step, of which there are at most `room` images beyond the first candidate: by their places
    /// in `all`, the leader first. They are of one kind.
    pub fn choose(&mut self, all: &[Candidate<'_>], room: Option<usize>) -> Vec<usize> {
        self.steps += 1;
        let mut order: Vec<usize> = (0..all.len()).filter(|i| self.may_run(&all[*i], all)).collect();
        let ranks = ranks(all);
        order.sort_by_key(|i| (ranks[*i].by_work, ranks[*i].place, !all[*i].is_running, *i));
        let fair = self.steps.is_multiple_of(FAIR_TURN).then(|| self.fair(&order, all, &ranks)).flatten();
        let Some(leader) = fair.or(order.first().copied()) else { return Vec::new() };
        let most = self.max_images.of_size(all[leader].kind.1).min(room.unwrap_or(usize::MAX));
        let mut chosen = vec![leader];
        let mut images = all[leader].images;
        for i in order.into_iter().filter(|i| *i != leader && all[*i].kind == all[leader].kind) {
            if images + all[i].images <= most {
                images += all[i].images;
                chosen.push(i);
            }
        }
        chosen
    }

    /// Whether the client's share lets a candidate run: what has started goes on.
    fn may_run(&self, one: &Candidate<'_>, all: &[Candidate<'_>]) -> bool {
        if one.has_started || self.max_per_client == 0 {
            return true;
        }
        let others_wait = all.iter().any(|other| other.client != one.client && !other.has_started);
        let mut started: Vec<u64> =
            all.iter().filter(|c| c.client == one.client && c.has_started).map(|c| c.arrived).collect();
        started.sort_unstable();
        started.dedup();
        !others_wait || started.len() < self.max_per_client
    }

    /// The oldest candidate of the client whose turn was longest ago.
    fn fair(&mut self, order: &[usize], all: &[Candidate<'_>], ranks: &[Rank]) -> Option<usize> {
        self.turns.retain(|client, _| all.iter().any(|candidate| candidate.client == client));
        let turn = |i: &usize| self.turns.get(all[*i].client).copied().unwrap_or(0);
        let key = |i: &usize| (turn(i), ranks[*i].by_arrival, ranks[*i].place, !all[*i].is_running);
        let chosen = order.iter().copied().min_by_key(key)?;
        self.turns.insert(all[chosen].client.to_string(), self.steps);
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(client: &'static str, arrived: u64, remaining: usize) -> Candidate<'static> {
        Candidate {
            client,
            priority: 0,
            arrived,
            remaining,
            images: 1,
            kind: (0, [64, 64]),
            is_running: false,
            has_started: false,
            place: 0,
        }
    }

    fn runs(client: &'static str, arrived: u64, remaining: usize) -> Candidate<'static> {
        Candidate { is_running: true, has_started: true, ..waits(client, arrived, remaining) }
    }

    /// Runs all tasks to their ends, with steps of `n` images. Gives the step after which each was done.
    fn ends(policy: &mut Policy, mut all: Vec<Candidate<'static>>) -> Vec<usize> {
        let mut ends = vec![0; all.len()];
        let mut step = 0;
        while all.iter().any(|one| one.remaining > 0) {
            step += 1;
            let places: Vec<usize> = (0..all.len()).filter(|i| all[*i].remaining > 0).collect();
            let waiting: Vec<Candidate<'_>> = places.iter().map(|i| all[*i].clone()).collect();
            for i in policy.choose(&waiting, None) {
                let one = &mut all[places[i]];
                (one.remaining, one.is_running, one.has_started) = (one.remaining - 1, true, true);
                if one.remaining == 0 {
                    ends[places[i]] = step;
                }
            }
        }
        ends
    }

    #[test]
    fn a_short_task_is_not_stuck_behind_long_ones() {
        let mut all: Vec<Candidate<'_>> = (0..50).map(|i| waits("a", i, 50)).collect();
        all.push(waits("b", 50, 4));
        for n in [1, 4] {
            let ends = ends(&mut Policy::new(MostImages::Count(n), 0), all.clone());
            assert!(ends[50] <= 8, "{} steps with {n} images", ends[50]);
            assert!(ends[..50].is_sorted() || n > 1, "those of one length are finished in their order: {ends:?}");
        }
    }

    #[test]
    fn a_client_orders_its_own_tasks_alone() {
        let at = |place, one: Candidate<'static>| Candidate { place, ..one };
        // The client "a" wants its long task before its short ones, which are shorter than that of "b".
        let all =
            || vec![at(2, waits("a", 0, 4)), at(1, waits("a", 1, 40)), waits("b", 2, 12), at(3, waits("a", 3, 2))];
        let ends = ends(&mut Policy::new(MostImages::Count(1), 0), all());
        assert!(ends[1] < ends[0] && ends[0] < ends[3], "{ends:?}");
        let plain: Vec<_> = all().into_iter().map(|one| at(0, one)).collect();
        let before = self::ends(&mut Policy::new(MostImages::Count(1), 0), plain);
        assert!(ends[2] <= before[2], "others do not wait longer: {ends:?}, {before:?}");
    }

    #[test]
    fn a_long_task_is_not_left_behind() {
        // A stream of short tasks that would keep a long one out for ever.
        let mut policy = Policy::new(MostImages::Count(1), 0);
        let mut long = waits("a", 0, 50);
        for step in 0..2000 {
            let all = [long.clone(), waits("b", step + 1, 4)];
            if policy.choose(&all, None) == [0] {
                long.remaining -= 1;
            }
            if long.remaining == 0 {
                assert!(step <= 500, "{step}");
                return;
            }
        }
        panic!("{} steps are left", long.remaining);
    }

    #[test]
    fn clients_share_the_fair_turns() {
        let mut policy = Policy::new(MostImages::Count(1), 0);
        let all = [runs("a", 0, 9), waits("a", 1, 9), waits("b", 7, 99)];
        let leaders: Vec<usize> = (0..16).map(|_| policy.choose(&all, None)[0]).collect();
        assert_eq!(leaders.iter().filter(|i| **i == 2).count(), 2, "{leaders:?}");
    }

    #[test]
    fn a_higher_priority_comes_first_and_leaves_the_fair_turns() {
        let mut policy = Policy::new(MostImages::Count(1), 0);
        let urgent = Candidate { priority: 1, ..waits("b", 7, 99) };
        let all = [runs("a", 0, 9), urgent];
        let leaders: Vec<usize> = (0..16).map(|_| policy.choose(&all, None)[0]).collect();
        assert_eq!(
            leaders.iter().filter(|i| **i == 0).count(),
            2,
            "every eighth step is the other client's: {leaders:?}"
        );
    }

    #[test]
    fn a_client_has_no_more_than_its_share_while_others_wait() {
        let mut policy = Policy::new(MostImages::Count(8), 2);
        let own = [runs("a", 0, 9), runs("a", 1, 9), waits("a", 2, 1)];
        assert_eq!(policy.choose(&own, None).len(), 3, "no one else waits");
        let all = [&own[..], &[waits("b", 3, 30)]].concat();
        let mut chosen = policy.choose(&all, None);
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 1, 3]);
    }

    #[test]
    fn images_of_one_kind_share_a_step_up_to_its_limit() {
        let other = Candidate { kind: (0, [96, 64]), ..waits("a", 1, 6) };
        let two = Candidate { images: 2, ..waits("a", 2, 7) };
        let all = [runs("a", 0, 5), other, two, waits("a", 3, 8), waits("a", 4, 9)];
        assert_eq!(Policy::new(MostImages::Count(4), 0).choose(&all, None), [0, 2, 3]);
        assert_eq!(
            Policy::new(MostImages::Count(4), 0).choose(&all, Some(2)),
            [0, 3],
            "a batch that does not fit waits"
        );
        let wide = [Candidate { images: 9, ..waits("a", 0, 9) }];
        assert_eq!(Policy::new(MostImages::Count(4), 0).choose(&wide, None), [0], "a batch of more images runs alone");
        assert_eq!(Policy::new(MostImages::Count(4), 0).choose(&[], None), [] as [usize; 0]);
    }

    #[test]
    fn small_images_share_a_step_in_larger_numbers() {
        let most = MostImages::Pixels(8 * 1024 * 1024);
        assert_eq!(
            [[1024, 1024], [512, 512], [768, 1024], [64, 64], [4096, 4096]].map(|size| most.of_size(size)),
            [8, 32, 10, 32, 1]
        );
        let mut policy = Policy::new(MostImages::Pixels(2 * 64 * 64), 0);
        let small: Vec<Candidate<'_>> = (0..9).map(|i| Candidate { kind: (0, [32, 32]), ..waits("a", i, 4) }).collect();
        assert_eq!(policy.choose(&small, None).len(), 8);
        assert_eq!(policy.choose(&small, Some(3)).len(), 3);
        let usual: Vec<Candidate<'_>> = (0..9).map(|i| waits("a", i, 4)).collect();
        assert_eq!(policy.choose(&usual, None).len(), 2);
    }
}
