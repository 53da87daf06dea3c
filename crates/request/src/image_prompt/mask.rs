//! Masks of image prompts in the sizes of the U-Net's feature maps.

use kiln_media::Gray8Image;

/// The cubic's parameter in PyTorch's bicubic interpolation.
const A: f64 = -0.75;

/// The strength of a prompt with `mask` for each of `pixels` values of a feature map, row by row: 1 if the mask is white (128
/// and more), 0 if it is black, interpolated as in diffusers (`IPAdapterMaskProcessor.downsample`): bicubic without
/// antialiasing, to a height that follows from the number of values. If the sizes do not agree, the rest is 0 or cut off.
pub fn downsampled_mask(mask: &Gray8Image, pixels: usize) -> Vec<f32> {
    let (width, height) = mask.size();
    let ratio = width as f64 / height as f64;
    let rows = ((pixels as f64 / ratio).sqrt() as usize).max(1);
    let rows = rows + usize::from(!pixels.is_multiple_of(rows));
    let columns = (pixels / rows).max(1);
    let value = |x: usize, y: usize| if mask.row(y)[x] >= 128 { 1.0f64 } else { 0.0 };
    let (along_y, along_x) = (taps(rows, height), taps(columns, width));
    let mut values = Vec::with_capacity(rows * columns);
    for of_y in &along_y {
        for of_x in &along_x {
            let row = |y: usize| of_x.iter().map(|&(x, weight)| weight * value(x, y)).sum::<f64>();
            values.push(of_y.iter().map(|&(y, weight)| weight * row(y)).sum::<f64>() as f32);
        }
    }
    values.resize(pixels, 0.0);
    values
}

/// For each of `to` values the four of `from` that it is interpolated from, and their weights (`align_corners` false).
fn taps(to: usize, from: usize) -> Vec<[(usize, f64); 4]> {
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let scale = from as f64 / to as f64;
    let one = |i: usize| {
        let position = (i as f64 + 0.5) * scale - 0.5;
        let (base, t) = (position.floor(), position - position.floor());
        let index = |offset: f64| (base + offset).clamp(0.0, from as f64 - 1.0) as usize;
        [(index(-1.0), far(t + 1.0)), (index(0.0), near(t)), (index(1.0), near(1.0 - t)), (index(2.0), far(2.0 - t))]
    };
    (0..to).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A white left half in an image of 16 by 8.
    fn half() -> Gray8Image {
        let data = (0..8).flat_map(|_| (0..16).map(|x| if x < 8 { 255 } else { 0 })).collect();
        Gray8Image::new(16, 8, data).unwrap()
    }

    #[test]
    fn sizes_follow_the_number_of_values() {
        let mask = downsampled_mask(&half(), 8);
        assert_eq!(mask.len(), 8); // 2 rows of 4
        assert_eq!(mask[..4], mask[4..]);
        assert!(mask[0] > 0.9 && mask[3] < 0.1, "{mask:?}");
        // 7 values are no rectangle of this shape: 2 rows would need 8, and 7 / 2 is 3 with one left.
        assert_eq!(downsampled_mask(&half(), 7).len(), 7);
        let same = downsampled_mask(&half(), 128);
        assert!(same.iter().enumerate().all(|(i, &value)| value == if i % 16 < 8 { 1.0 } else { 0.0 }), "{same:?}");
    }
}
