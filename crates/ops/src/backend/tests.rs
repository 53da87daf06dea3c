use candle_core::{Device, Tensor};

use super::*;

/// An operator without any kernel.
struct Double<'a>(&'a Tensor);

impl Operator for Double<'_> {
    fn name(&self) -> &'static str {
        "double"
    }

    fn input(&self) -> &Tensor {
        self.0
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.0)])
    }

    fn reference(&self) -> Result<Tensor> {
        Ok((self.0 * 2.0)?)
    }
}

impl Kernel<Cpu> for Double<'_> {}
#[cfg(feature = "cuda")]
impl Kernel<Cuda> for Double<'_> {}

#[test]
fn a_missing_kernel_runs_the_reference() {
    let x = Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap();
    assert!(launch(&Double(&x), None).unwrap().is_none());
    let y = run(&Double(&x), None).unwrap();
    assert_eq!(y.to_vec1::<f32>().unwrap(), [2.0, 4.0]);
    let out = Tensor::zeros(2, candle_core::DType::F32, &Device::Cpu).unwrap();
    run(&Double(&x), Some(&out)).unwrap();
    assert_eq!(out.to_vec1::<f32>().unwrap(), [2.0, 4.0]);
}

#[test]
fn the_device_of_the_operand_selects_the_back_end() {
    let x = Tensor::new(&[1f32], &Device::Cpu).unwrap();
    assert!(Cpu::of(&x).unwrap().is_some());
    assert!(Cuda::of(&x).unwrap().is_none());
}
