use candle_core::Device;

use super::*;
use crate::test_support::{TARGET, assert_close, exact, random, random_into};

/// Tables of the shape of `like`, in f32 on the device of the tests.
fn tables(shape: &[usize]) -> [Tensor; 2] {
    let angles = (exact(&random(shape)) * 3.0).unwrap();
    [angles.cos().unwrap(), angles.sin().unwrap()].map(|table| table.to_device(&TARGET.0).unwrap())
}

#[test]
fn kernel_agrees_with_the_reference() {
    for (b, s, num_heads, head_dim) in [(1, 1, 1, 2), (2, 7, 3, 10), (3, 77, 2, 64), (1, 130, 4, 128), (1, 3, 2, 300)] {
        let half = head_dim / 2;
        let x = random(&[b, s, num_heads * head_dim]);
        let packed = random(&[b, s, 3 * num_heads * head_dim]);
        let slice = packed.narrow(2, num_heads * head_dim, num_heads * head_dim).unwrap();
        let gamma = random(&[head_dim]);
        for (x, table) in [(&x, vec![s, half]), (&slice, vec![s, half]), (&x, vec![b, s, half])] {
            let [cos, sin] = tables(&table);
            for pairs in [RopePairs::Interleaved, RopePairs::Halves] {
                for norm in [None, Some((&gamma, 1e-6))] {
                    let run =
                        |out: Option<&Tensor>| rope(RopeOp { x, cos: &cos, sin: &sin, norm, num_heads, pairs }, out);
                    let (exact_x, exact_gamma) = (exact(x), exact(&gamma));
                    let op = RopeOp {
                        x: &exact_x,
                        cos: &exact(&cos),
                        sin: &exact(&sin),
                        norm: norm.map(|(_, eps)| (&exact_gamma, eps)),
                        num_heads,
                        pairs,
                    };
                    let expected = reference::forward(&op, op.check().unwrap()).unwrap();
                    assert_close(&run(None).unwrap(), &expected, 1e-5);
                    random_into(&expected, |out| run(Some(out)).unwrap(), 1e-5);
                }
            }
        }
    }
}

#[test]
fn a_quarter_turn_swaps_a_pair() {
    let x = Tensor::new(&[[[1f32, 2.0, 3.0, 4.0]]], &Device::Cpu).unwrap();
    let (cos, sin) = (Tensor::zeros((1, 2), DType::F32, &Device::Cpu), Tensor::ones((1, 2), DType::F32, &Device::Cpu));
    let (cos, sin) = (cos.unwrap(), sin.unwrap());
    for (pairs, expected) in
        [(RopePairs::Interleaved, [-2.0, 1.0, -4.0, 3.0]), (RopePairs::Halves, [-3.0, -4.0, 1.0, 2.0])]
    {
        let op = RopeOp { x: &x, cos: &cos, sin: &sin, norm: None, num_heads: 1, pairs };
        let y: Vec<f32> = rope(op, None).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(y, expected);
    }
}

#[test]
fn refuses_heads_and_tables_that_do_not_fit() {
    let x = random(&[1, 2, 12]);
    let [cos, sin] = tables(&[2, 3]);
    let message = |cos: &Tensor, num_heads: usize| {
        let op = RopeOp { x: &x, cos, sin: &sin, norm: None, num_heads, pairs: RopePairs::Halves };
        rope(op, None).unwrap_err().to_string()
    };
    assert_eq!(message(&cos, 5), "rope: 12 channels are not 5 heads with an even number of channels");
    assert_eq!(message(&cos, 4), "rope: 12 channels are not 4 heads with an even number of channels");
    assert_eq!(message(&cos, 3), "rope: cos has shape [2, 3], expected [2, 2]");
    let half = cos.to_dtype(DType::F16).unwrap();
    assert_eq!(message(&half, 2), "rope: cos is F16, expected F32; convert it first");
}
