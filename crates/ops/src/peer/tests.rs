use candle_core::{DType, Device, Tensor};

use super::*;
use crate::test_support::{assert_close, exact};
use crate::{Activation, activation};

#[test]
fn a_tensor_is_not_copied_to_its_own_device() {
    let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(to_device(&x, &Device::Cpu).unwrap().id(), x.id());
}

// Scripts run the tests with this prefix only if there are two GPUs.
#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_copy_in_order_with_the_work_of_both() {
    let devices = [0, 1].map(|number| crate::device::open_gpu(number).unwrap());
    let host = Tensor::rand(-1f32, 1.0, (512, 1024), &Device::Cpu).unwrap();
    let mut x = to_device(&host, &devices[0]).unwrap();
    for round in 0..20 {
        // Work before the copy, on both, and a source that is dropped right after it.
        let y = activation(&x, Activation::Relu, None).unwrap();
        x = to_device(&y, &devices[(round + 1) % 2]).unwrap();
    }
    assert_eq!(x.device().location(), devices[0].location());
    assert_close(&x, &exact(&host).relu().unwrap(), 0.0);
    let part = to_device(&x.narrow(1, 3, 5).unwrap(), &devices[1]).unwrap();
    assert_close(&part, &exact(&host).relu().unwrap().narrow(1, 3, 5).unwrap(), 0.0);
}
