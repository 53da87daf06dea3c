//! The input of a control network among those of a denoiser, and what a control network adds.

use kiln_network::{Inputs, Slot};
use kiln_nn::TensorLike;

use crate::flux::trunk::Place;
use crate::tokens::repeated;

/// The latents of the control image.
const LATENTS: Slot = Slot::last("control latents");
/// The number of a control network.
const NUMBER: &str = "control network";
/// The factor of its residuals.
const SCALE: &str = "control scale";
/// The type of its image.
const MODE: &str = "control mode";

/// The input of a control network at a step.
#[derive(Debug, Clone)]
pub struct FluxControlInput<T = candle_core::Tensor> {
    /// The number of the network among those that run with the denoiser.
    pub network: usize,
    /// The latents of the control image, `(r, 16, h, w)`, shifted and scaled as those of the image are. They belong to the last `r`
    /// rows of the batch, and `r` divides the batch. The network runs for these rows, and all others get their residuals in turn:
    /// with true guidance both halves get those of the prompt, as in diffusers.
    pub latents: T,
    /// The type of the image, for a Union network.
    pub mode: Option<usize>,
    /// The factor of the residuals.
    pub scale: f32,
}

impl<T: TensorLike> FluxControlInput<T> {
    /// Adds the input to those of other control networks.
    pub fn add_to(self, inputs: &mut Inputs<T>) {
        let index = inputs.count_of(NUMBER);
        inputs.add_constant(NUMBER, index, self.network as u64);
        inputs.add_constant(SCALE, index, u64::from(self.scale.to_bits()));
        if let Some(mode) = self.mode {
            inputs.add_constant(MODE, index, mode as u64);
        }
        inputs.add(LATENTS, index, self.latents);
    }

    /// All inputs of control networks, but for those that run for none of the rows.
    pub(super) fn all(inputs: &Inputs<T>) -> Vec<Self> {
        let of = |index| {
            let latents = inputs.all_of(LATENTS, index).next()?.clone();
            let constant = |name| inputs.constants_of(name, index).next();
            Some(Self {
                network: constant(NUMBER)? as usize,
                latents,
                mode: constant(MODE).map(|mode| mode as usize),
                scale: f32::from_bits(constant(SCALE)? as u32),
            })
        };
        (0..inputs.count_of(NUMBER)).filter_map(of).collect()
    }
}

/// The values that control networks add to the image's tokens after blocks, each `(b, n, c)`.
pub(super) struct Residuals<T> {
    /// After double blocks.
    pub(super) double: Vec<T>,
    /// After single blocks.
    pub(super) single: Vec<T>,
}

impl<T: TensorLike> Residuals<T> {
    /// The sums with those of another network. If one has fewer, the others' are dropped, as in diffusers.
    pub(super) fn add(&self, other: &Self) -> kiln_nn::Result<Self> {
        let add = |a: &[T], b: &[T]| a.iter().zip(b).map(|(a, b)| a.add(b)).collect::<kiln_nn::Result<_>>();
        Ok(Self { double: add(&self.double, &other.double)?, single: add(&self.single, &other.single)? })
    }

    /// These values for all of `b` rows, a multiple of their own.
    pub(super) fn for_rows(self, b: usize) -> kiln_nn::Result<Self> {
        let each = |all: Vec<T>| {
            all.into_iter()
                .map(|one| match one.size3()?[0] {
                    1 => repeated(one, b),
                    r if r < b => T::cat(&vec![&one; b / r], 0),
                    _ => Ok(one),
                })
                .collect::<kiln_nn::Result<_>>()
        };
        Ok(Self { double: each(self.double)?, single: each(self.single)? })
    }

    /// The value for a block of a transformer with `[double, single]` blocks: each serves as many blocks in a row as are needed.
    pub(super) fn at(&self, place: Place, [double, single]: [usize; 2]) -> Option<&T> {
        let (all, i, blocks) = match place {
            Place::Double(i) => (&self.double, i, double),
            Place::Single(i) => (&self.single, i, single),
        };
        let interval = blocks.div_ceil(all.len().max(1)).max(1);
        all.get(i / interval)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;

    #[test]
    fn inputs_are_read_as_they_were_added() {
        let latents = |rows: usize| Tensor::ones((rows, 16, 2, 2), DType::F32, &Device::Cpu).unwrap();
        let mut inputs = Inputs::new();
        let input = |network, mode, rows| FluxControlInput { network, latents: latents(rows), mode, scale: 0.25 };
        input(3, None, 2).add_to(&mut inputs);
        input(1, Some(4), 1).add_to(&mut inputs);
        let found: Vec<_> = FluxControlInput::all(&inputs)
            .into_iter()
            .map(|input| (input.network, input.mode, input.scale, input.latents.dims()[0]))
            .collect();
        assert_eq!(found, [(3, None, 0.25, 2), (1, Some(4), 0.25, 1)]);
    }

    #[test]
    fn residuals_serve_blocks_in_a_row() {
        let count = |n: usize| (0..n).map(|i| Tensor::new(&[[[i as f32]]], &Device::Cpu).unwrap()).collect();
        let residuals = Residuals { double: count(5), single: count(0) };
        let at = |place| {
            let found = residuals.at(place, [19, 38]);
            found.map(|value| value.flatten_all().unwrap().to_vec1::<f32>().unwrap()[0])
        };
        assert_eq!([0, 3, 4, 18].map(|i| at(Place::Double(i))), [Some(0.0), Some(0.0), Some(1.0), Some(4.0)]);
        assert_eq!(at(Place::Single(0)), None);
        let sum = residuals.add(&Residuals { double: count(2), single: count(3) }).unwrap();
        assert_eq!((sum.double.len(), sum.single.len()), (2, 0));
        assert_eq!(sum.for_rows(4).unwrap().double[1].flatten_all().unwrap().to_vec1::<f32>().unwrap(), [2.0; 4]);
    }
}
