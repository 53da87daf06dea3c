//! A part of a set, for one of several machines that know nothing of each other.

use std::str::FromStr;

/// Part `i` of `n`: every `n`th picture, from the `i`th on.
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
            _ => Err("expected a part and how many there are, from 1/N to N/N, as in 2/8".into()),
        }
    }
}

impl Shard {
    /// Whether picture `number`, from 1, is in this part.
    pub(crate) fn has(self, number: usize) -> bool {
        (number - 1) % self.n == self.i - 1
    }

    /// What the names of this part's own files end in.
    pub(crate) fn suffix(self) -> String {
        format!("-{}-of-{}", self.i, self.n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_is_in_one_part() {
        let shards = [1, 2, 3].map(|i| format!("{i}/3").parse::<Shard>().unwrap());
        for number in 1..20 {
            assert_eq!(shards.iter().filter(|shard| shard.has(number)).count(), 1);
        }
        assert_eq!((1..8).filter(|&number| shards[1].has(number)).collect::<Vec<_>>(), [2, 5]);
    }

    #[test]
    fn parts_that_are_not_there_are_refused() {
        for text in ["0/3", "4/3", "1", "1/0", "a/b", "-1/3", ""] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
