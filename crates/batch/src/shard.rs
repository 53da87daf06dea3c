//! A shard of a set, for one of several machines without communication.

use std::str::FromStr;

/// Shard `i` of `n`: every `n`th image, starting with the `i`th.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    i: usize,
    n: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((i, n)) if (1..=n).contains(&i) => Ok(Self { i, n }),
            _ => Err("expected a shard and the number of shards, from 1/N to N/N, as in 2/8".into()),
        }
    }
}

impl Shard {
    /// Whether image `number`, from 1, is in this shard.
    pub(crate) fn has(self, number: usize) -> bool {
        (number - 1) % self.n == self.i - 1
    }

    /// The shard whose file names end in `suffix` ([`Self::suffix`]).
    pub(crate) fn of_suffix(suffix: &str) -> Option<Self> {
        let shard: Self = suffix.strip_prefix('-')?.replacen("-of-", "/", 1).parse().ok()?;
        (shard.suffix() == suffix).then_some(shard)
    }

    /// Whether two shards, possibly of different splits, may have an image in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        // i + k n = j + l m has a solution if the greatest common divisor of n and m divides the difference.
        let (mut a, mut b) = (self.n, other.n);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        self.i.abs_diff(other.i).is_multiple_of(a)
    }

    /// The suffix of this shard's own file names.
    pub(crate) fn suffix(self) -> String {
        format!("-{}-of-{}", self.i, self.n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_in_one_shard() {
        let shards = [1, 2, 3].map(|i| format!("{i}/3").parse::<Shard>().unwrap());
        for number in 1..20 {
            assert_eq!(shards.iter().filter(|shard| shard.has(number)).count(), 1);
        }
        assert_eq!((1..8).filter(|&number| shards[1].has(number)).collect::<Vec<_>>(), [2, 5]);
    }

    #[test]
    fn shards_with_a_common_image_overlap() {
        let shard = |text: &str| text.parse::<Shard>().unwrap();
        let all = (1..=6).flat_map(|n| (1..=n).map(move |i| Shard { i, n }));
        for a in all.clone() {
            assert_eq!(Shard::of_suffix(&a.suffix()), Some(a));
            for b in all.clone() {
                assert_eq!(a.overlaps(b), (1..=60).any(|number| a.has(number) && b.has(number)), "{a:?} {b:?}");
            }
        }
        assert!(shard("1/1").overlaps(shard("5/7")));
        for name in ["-notes", "-1-of-0", "-1-of-2-of-3", "1-of-2", "-01-of-2"] {
            assert_eq!(Shard::of_suffix(name), None, "{name}");
        }
    }

    #[test]
    fn invalid_shards_are_refused() {
        for text in ["0/3", "4/3", "1", "1/0", "a/b", "-1/3", ""] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
