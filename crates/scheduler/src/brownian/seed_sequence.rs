//! NumPy's `SeedSequence` (M. E. O'Neill's `seed_seq_fe` with a spawn key): seeds for the nodes of a tree.

/// The pool size in 32-bit words, with which torchsde's Brownian tree creates its `SeedSequence`.
const POOL: usize = 24;

const INIT_A: u32 = 0x43b0_d7e5;
const MULT_A: u32 = 0x931e_8875;
const INIT_B: u32 = 0x8b51_f9dd;
const MULT_B: u32 = 0x58f3_8ded;
const MIX_L: u32 = 0xca01_f9dd;
const MIX_R: u32 = 0x4973_f715;

/// The first word of `SeedSequence(entropy, spawn_key=spawn_key, pool_size=24).generate_state(n)`, for any `n`.
pub(super) fn first_seed(entropy: u64, spawn_key: &[u64]) -> u32 {
    let mut input = words(entropy);
    if !spawn_key.is_empty() {
        // This padding keeps a key from being mistaken for a longer entropy.
        input.resize(POOL.max(input.len()), 0);
        input.extend(spawn_key.iter().flat_map(|&key| words(key)));
    }
    let mut hash = Hash { constant: INIT_A, multiplier: MULT_A };
    let mut pool: Vec<u32> = (0..POOL).map(|i| hash.next(input.get(i).copied().unwrap_or(0))).collect();
    for source in 0..POOL {
        for target in 0..POOL {
            if source != target {
                pool[target] = mix(pool[target], hash.next(pool[source]));
            }
        }
    }
    for &word in input.iter().skip(POOL) {
        for value in &mut pool {
            *value = mix(*value, hash.next(word));
        }
    }
    Hash { constant: INIT_B, multiplier: MULT_B }.next(pool[0])
}

/// A hash whose constant changes with each value.
struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn next(&mut self, value: u32) -> u32 {
        let value = value ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        let value = value.wrapping_mul(self.constant);
        value ^ (value >> 16)
    }
}

fn mix(x: u32, y: u32) -> u32 {
    let mixed = x.wrapping_mul(MIX_L).wrapping_sub(y.wrapping_mul(MIX_R));
    mixed ^ (mixed >> 16)
}

/// The 32-bit words of a number, lowest first, without leading zeros (but at least one word).
fn words(value: u64) -> Vec<u32> {
    let high = (value >> 32) as u32;
    if high == 0 { vec![value as u32] } else { vec![value as u32, high] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.random.SeedSequence(entropy, spawn_key=key, pool_size=24).generate_state(4)[0]`, NumPy 2.4.6.
    #[test]
    fn seeds_are_numpys() {
        for (entropy, key, seed) in SEEDS {
            assert_eq!(first_seed(*entropy, key), *seed, "{entropy} {key:?}");
        }
    }

    #[rustfmt::skip]
    const SEEDS: &[(u64, &[u64], u32)] = &[
        (0, &[], 4025752534),
        (42, &[], 387750627),
        (123456789012, &[], 1158997532),
        (42, &[0, 0], 2102017995),
        (42, &[1, 1], 1058881542),
        (7, &[5, 3], 1167487741),
        (18446744073709551615, &[12345678, 24], 2433295184),
        (4294967296, &[0, 1], 711595697),
    ];
}
