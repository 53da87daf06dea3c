//! The order that a client has given its own tasks: they have places ([`super::Control::set_place`]), lower ones first.
//!
//! A task comes no earlier than the tasks of its client with lower places would. So a place never brings a task before one of another
//! client: it only has tasks wait for others of their client.

use std::cmp::Reverse;

use super::policy::Candidate;

/// The ranks of a candidate among others: lower ones come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Among all candidates: the priority, and the least work.
    pub(super) by_work: (Reverse<i32>, usize, u64),
    /// Among the candidates of a client.
    pub(super) by_arrival: u64,
    /// The place that the client gave it; 0 is none.
    pub(super) place: u64,
}

/// The ranks of all candidates: each has at least those of its client's candidates with lower places.
pub(super) fn ranks(all: &[Candidate<'_>]) -> Vec<Rank> {
    let own = |one: &Candidate<'_>| Rank {
        by_work: (Reverse(one.priority), one.remaining, one.arrived),
        by_arrival: one.arrived,
        place: one.place,
    };
    let mut ranks: Vec<Rank> = all.iter().map(own).collect();
    let mut placed: Vec<(&Candidate<'_>, usize)> =
        all.iter().enumerate().filter(|(_, one)| one.place > 0).map(|(i, one)| (one, i)).collect();
    placed.sort_by_key(|(one, _)| (one.client, one.place));
    for pair in placed.windows(2) {
        let [(before, first), (one, second)] = pair else { continue };
        if before.client == one.client {
            let least = ranks[*first];
            let rank = &mut ranks[*second];
            rank.by_work = rank.by_work.max(least.by_work);
            rank.by_arrival = rank.by_arrival.max(least.by_arrival);
        }
    }
    ranks
}

/// The order of tasks that wait, given by their clients and places: by their numbers. Those of a client that have places change among
/// themselves alone.
pub(super) fn in_order(waiting: &[(&str, u64)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..waiting.len()).collect();
    let mut numbers: Vec<usize> = order.iter().copied().filter(|i| waiting[*i].1 > 0).collect();
    numbers.sort_by_key(|i| (waiting[*i].0, *i));
    for of_client in numbers.chunk_by(|a, b| waiting[*a].0 == waiting[*b].0) {
        let mut sorted = of_client.to_vec();
        sorted.sort_by_key(|i| waiting[*i].1);
        of_client.iter().zip(sorted).for_each(|(slot, task)| order[*slot] = task);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_change_the_order_of_one_client_alone() {
        assert_eq!(in_order(&[("a", 0), ("b", 0), ("a", 0)]), [0, 1, 2]);
        assert_eq!(in_order(&[("a", 2), ("b", 0), ("a", 1)]), [2, 1, 0]);
        assert_eq!(in_order(&[("a", 3), ("b", 9), ("a", 1), ("b", 8), ("a", 2), ("a", 0)]), [2, 3, 4, 1, 0, 5]);
    }

    #[test]
    fn a_task_has_at_least_the_ranks_of_those_before_it() {
        let one = |client, place, arrived, remaining| Candidate {
            client,
            priority: 0,
            arrived,
            remaining,
            images: 1,
            kind: (0, [64, 64]),
            is_running: false,
            has_started: false,
            place,
        };
        let all = [one("a", 3, 0, 1), one("a", 1, 5, 90), one("b", 2, 1, 4), one("a", 2, 2, 8), one("a", 0, 3, 2)];
        let found: Vec<(usize, u64)> = ranks(&all).iter().map(|rank| (rank.by_work.1, rank.by_arrival)).collect();
        assert_eq!(found, [(90, 5), (90, 5), (4, 1), (90, 5), (2, 3)]);
        let urgent = [Candidate { priority: 1, ..one("a", 2, 0, 1) }, one("a", 1, 5, 9)];
        assert_eq!(ranks(&urgent)[0].by_work.0, Reverse(0), "also a lower priority is taken over");
    }
}
