//! Counts on the CPU.

use candle_core::{Device, Tensor};

use super::Call;
use crate::backend::{Cpu, Kernel};
use crate::cpu::f32_values;
use crate::error::Result;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, _out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let count = f32_values(self.x)?.iter().filter(|value| !value.is_finite()).count();
        Ok(Some(Tensor::new(&[count as u32], &Device::Cpu)?))
    }
}
