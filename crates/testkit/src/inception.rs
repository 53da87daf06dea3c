//! The network of FID with random weights, as pytorch-fid's `fid_inception_v3()` names its tensors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;

use crate::control::write_tensors;
use crate::hashed::hashed_weights;

/// The names of the convolutions, with the shapes of their weights. A normalization `bn` follows each.
#[rustfmt::skip]
const CONVOLUTIONS: [(&str, [usize; 4]); 94] = [
    ("Conv2d_1a_3x3", [32, 3, 3, 3]),
    ("Conv2d_2a_3x3", [32, 32, 3, 3]),
    ("Conv2d_2b_3x3", [64, 32, 3, 3]),
    ("Conv2d_3b_1x1", [80, 64, 1, 1]),
    ("Conv2d_4a_3x3", [192, 80, 3, 3]),
    ("Mixed_5b.branch1x1", [64, 192, 1, 1]),
    ("Mixed_5b.branch5x5_1", [48, 192, 1, 1]),
    ("Mixed_5b.branch5x5_2", [64, 48, 5, 5]),
    ("Mixed_5b.branch3x3dbl_1", [64, 192, 1, 1]),
    ("Mixed_5b.branch3x3dbl_2", [96, 64, 3, 3]),
    ("Mixed_5b.branch3x3dbl_3", [96, 96, 3, 3]),
    ("Mixed_5b.branch_pool", [32, 192, 1, 1]),
    ("Mixed_5c.branch1x1", [64, 256, 1, 1]),
    ("Mixed_5c.branch5x5_1", [48, 256, 1, 1]),
    ("Mixed_5c.branch5x5_2", [64, 48, 5, 5]),
    ("Mixed_5c.branch3x3dbl_1", [64, 256, 1, 1]),
    ("Mixed_5c.branch3x3dbl_2", [96, 64, 3, 3]),
    ("Mixed_5c.branch3x3dbl_3", [96, 96, 3, 3]),
    ("Mixed_5c.branch_pool", [64, 256, 1, 1]),
    ("Mixed_5d.branch1x1", [64, 288, 1, 1]),
    ("Mixed_5d.branch5x5_1", [48, 288, 1, 1]),
    ("Mixed_5d.branch5x5_2", [64, 48, 5, 5]),
    ("Mixed_5d.branch3x3dbl_1", [64, 288, 1, 1]),
    ("Mixed_5d.branch3x3dbl_2", [96, 64, 3, 3]),
    ("Mixed_5d.branch3x3dbl_3", [96, 96, 3, 3]),
    ("Mixed_5d.branch_pool", [64, 288, 1, 1]),
    ("Mixed_6a.branch3x3", [384, 288, 3, 3]),
    ("Mixed_6a.branch3x3dbl_1", [64, 288, 1, 1]),
    ("Mixed_6a.branch3x3dbl_2", [96, 64, 3, 3]),
    ("Mixed_6a.branch3x3dbl_3", [96, 96, 3, 3]),
    ("Mixed_6b.branch1x1", [192, 768, 1, 1]),
    ("Mixed_6b.branch7x7_1", [128, 768, 1, 1]),
    ("Mixed_6b.branch7x7_2", [128, 128, 1, 7]),
    ("Mixed_6b.branch7x7_3", [192, 128, 7, 1]),
    ("Mixed_6b.branch7x7dbl_1", [128, 768, 1, 1]),
    ("Mixed_6b.branch7x7dbl_2", [128, 128, 7, 1]),
    ("Mixed_6b.branch7x7dbl_3", [128, 128, 1, 7]),
    ("Mixed_6b.branch7x7dbl_4", [128, 128, 7, 1]),
    ("Mixed_6b.branch7x7dbl_5", [192, 128, 1, 7]),
    ("Mixed_6b.branch_pool", [192, 768, 1, 1]),
    ("Mixed_6c.branch1x1", [192, 768, 1, 1]),
    ("Mixed_6c.branch7x7_1", [160, 768, 1, 1]),
    ("Mixed_6c.branch7x7_2", [160, 160, 1, 7]),
    ("Mixed_6c.branch7x7_3", [192, 160, 7, 1]),
    ("Mixed_6c.branch7x7dbl_1", [160, 768, 1, 1]),
    ("Mixed_6c.branch7x7dbl_2", [160, 160, 7, 1]),
    ("Mixed_6c.branch7x7dbl_3", [160, 160, 1, 7]),
    ("Mixed_6c.branch7x7dbl_4", [160, 160, 7, 1]),
    ("Mixed_6c.branch7x7dbl_5", [192, 160, 1, 7]),
    ("Mixed_6c.branch_pool", [192, 768, 1, 1]),
    ("Mixed_6d.branch1x1", [192, 768, 1, 1]),
    ("Mixed_6d.branch7x7_1", [160, 768, 1, 1]),
    ("Mixed_6d.branch7x7_2", [160, 160, 1, 7]),
    ("Mixed_6d.branch7x7_3", [192, 160, 7, 1]),
    ("Mixed_6d.branch7x7dbl_1", [160, 768, 1, 1]),
    ("Mixed_6d.branch7x7dbl_2", [160, 160, 7, 1]),
    ("Mixed_6d.branch7x7dbl_3", [160, 160, 1, 7]),
    ("Mixed_6d.branch7x7dbl_4", [160, 160, 7, 1]),
    ("Mixed_6d.branch7x7dbl_5", [192, 160, 1, 7]),
    ("Mixed_6d.branch_pool", [192, 768, 1, 1]),
    ("Mixed_6e.branch1x1", [192, 768, 1, 1]),
    ("Mixed_6e.branch7x7_1", [192, 768, 1, 1]),
    ("Mixed_6e.branch7x7_2", [192, 192, 1, 7]),
    ("Mixed_6e.branch7x7_3", [192, 192, 7, 1]),
    ("Mixed_6e.branch7x7dbl_1", [192, 768, 1, 1]),
    ("Mixed_6e.branch7x7dbl_2", [192, 192, 7, 1]),
    ("Mixed_6e.branch7x7dbl_3", [192, 192, 1, 7]),
    ("Mixed_6e.branch7x7dbl_4", [192, 192, 7, 1]),
    ("Mixed_6e.branch7x7dbl_5", [192, 192, 1, 7]),
    ("Mixed_6e.branch_pool", [192, 768, 1, 1]),
    ("Mixed_7a.branch3x3_1", [192, 768, 1, 1]),
    ("Mixed_7a.branch3x3_2", [320, 192, 3, 3]),
    ("Mixed_7a.branch7x7x3_1", [192, 768, 1, 1]),
    ("Mixed_7a.branch7x7x3_2", [192, 192, 1, 7]),
    ("Mixed_7a.branch7x7x3_3", [192, 192, 7, 1]),
    ("Mixed_7a.branch7x7x3_4", [192, 192, 3, 3]),
    ("Mixed_7b.branch1x1", [320, 1280, 1, 1]),
    ("Mixed_7b.branch3x3_1", [384, 1280, 1, 1]),
    ("Mixed_7b.branch3x3_2a", [384, 384, 1, 3]),
    ("Mixed_7b.branch3x3_2b", [384, 384, 3, 1]),
    ("Mixed_7b.branch3x3dbl_1", [448, 1280, 1, 1]),
    ("Mixed_7b.branch3x3dbl_2", [384, 448, 3, 3]),
    ("Mixed_7b.branch3x3dbl_3a", [384, 384, 1, 3]),
    ("Mixed_7b.branch3x3dbl_3b", [384, 384, 3, 1]),
    ("Mixed_7b.branch_pool", [192, 1280, 1, 1]),
    ("Mixed_7c.branch1x1", [320, 2048, 1, 1]),
    ("Mixed_7c.branch3x3_1", [384, 2048, 1, 1]),
    ("Mixed_7c.branch3x3_2a", [384, 384, 1, 3]),
    ("Mixed_7c.branch3x3_2b", [384, 384, 3, 1]),
    ("Mixed_7c.branch3x3dbl_1", [448, 2048, 1, 1]),
    ("Mixed_7c.branch3x3dbl_2", [384, 448, 3, 3]),
    ("Mixed_7c.branch3x3dbl_3a", [384, 384, 1, 3]),
    ("Mixed_7c.branch3x3dbl_3b", [384, 384, 3, 1]),
    ("Mixed_7c.branch_pool", [192, 2048, 1, 1]),
];

/// The state dict, in f32, with the last layer for 1008 classes.
pub fn inception_tensors() -> BTreeMap<String, Tensor> {
    let mut shapes: Vec<(String, Vec<usize>)> = Vec::new();
    for (name, shape) in CONVOLUTIONS {
        shapes.push((format!("{name}.conv.weight"), shape.to_vec()));
        let of_channels = ["weight", "bias", "running_mean", "running_var"];
        shapes.extend(of_channels.map(|kind| (format!("{name}.bn.{kind}"), vec![shape[0]])));
    }
    shapes.extend([("fc.weight".to_string(), vec![1008, 2048]), ("fc.bias".to_string(), vec![1008])]);
    shapes.into_iter().map(|(name, shape)| (name.clone(), hashed_weights(&name, &shape))).collect()
}

/// Writes [`inception_tensors`] as a safetensors file of 96 MB.
#[track_caller]
pub fn write_inception(path: &Path) {
    write_tensors(&inception_tensors(), path);
}
