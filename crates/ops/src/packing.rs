//! The layouts in which operators want their weights.

/// How a parameter is laid out for its operator. Weights are constant, so they are packed once, on their way from the
/// checkpoint into the slab (`kiln-weights`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// As the checkpoint has it.
    AsStored,
    /// A convolution's kernel, from `(c_out, c_in, kh, kw)` to `(c_out, kh, kw, c_in)`: the order in which a
    /// channels-last image patch lies in memory.
    Ohwi,
}

impl Packing {
    /// The shape of the packed parameter. Shapes that the packing does not know stay as they are.
    pub fn shape(self, stored: &[usize]) -> Vec<usize> {
        match (self, stored) {
            (Self::Ohwi, &[c_out, c_in, kh, kw]) => vec![c_out, kh, kw, c_in],
            _ => stored.to_vec(),
        }
    }

    /// Writes the packed parameter: `value(i)` is element `i` of the stored one in row-major order.
    ///
    /// `packed` has as many elements as `stored` has.
    pub fn pack<T>(self, stored: &[usize], value: impl Fn(usize) -> T, packed: &mut [T]) {
        match (self, stored) {
            (Self::Ohwi, &[_, c_in, kh, kw]) if kh * kw > 1 && c_in > 0 => {
                let taps = kh * kw;
                for (o, filter) in packed.chunks_exact_mut(taps * c_in).enumerate() {
                    for (tap, channels) in filter.chunks_exact_mut(c_in).enumerate() {
                        for (i, packed) in channels.iter_mut().enumerate() {
                            *packed = value((o * c_in + i) * taps + tap);
                        }
                    }
                }
            }
            _ => packed.iter_mut().enumerate().for_each(|(i, packed)| *packed = value(i)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ohwi_moves_input_channels_last() {
        let stored = [2, 3, 1, 2]; // (o, i, kh, kw)
        let mut packed = vec![0; 12];
        Packing::Ohwi.pack(&stored, |i| i, &mut packed);
        assert_eq!(Packing::Ohwi.shape(&stored), [2, 1, 2, 3]);
        assert_eq!(packed, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }
}
