//! Gated activations on GPUs.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda::cudarc::driver::PushKernelArg;

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("gated_activation");
const THREADS: u32 = 256;

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { function, gate, values } = *self;
        let (dtype, shape) = (gate.dtype(), self.shape()?);
        let n = shape.last().copied().unwrap_or(1);
        // Slices of a wider product are read in place.
        let distance = cuda::row_distance(gate).filter(|_| values.is_none());
        let gates = if distance.is_some() { gate.clone() } else { cuda::operand(gate, dtype)? };
        let factors = values.map(|values| cuda::operand(values, dtype)).transpose()?;
        let inputs: Vec<&Tensor> = [Some(gate), values].into_iter().flatten().collect();
        let y = cuda::output(OP, out, &shape, dtype, &inputs, device)?;
        let size = dtype.size_in_bytes();
        let (by, to) = (cuda::start(&gates)?, cuda::address(&y)?);
        // The values of a row follow its gates, or are in rows of their own.
        let (from, row) = match &factors {
            Some(factors) => (cuda::address(factors)?, n as i64),
            None => (by + (n * size) as u64, distance.unwrap_or(2 * n) as i64),
        };
        let rows_fit = (row as usize * size).is_multiple_of(16);
        let (name, lanes) = if rows_fit && cuda::is_vectored(&[by, from, to], n, size) {
            ("gated_activation_vectors", 16 / size)
        } else {
            ("gated_activation", 1)
        };
        let kernel = KERNELS.typed(device, name, dtype)?;
        let total = y.elem_count();
        let (count, columns, function) = (total as i64, n.max(1) as i64, function.number());
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&by).arg(&from).arg(&to).arg(&count).arg(&columns).arg(&row).arg(&function);
        // SAFETY: the arguments match the kernel's parameters. It reads rows of `n` elements at distances of `row` from both
        // addresses and writes `total` elements, rows of `n`; all tensors outlive the launch. Vectors are used only if rows
        // and addresses are multiples of them.
        unsafe { launch.launch(cuda::grid(total.div_ceil(THREADS as usize * lanes), THREADS)?) }
            .map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
