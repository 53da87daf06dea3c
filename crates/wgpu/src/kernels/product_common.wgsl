// The numbers of a product, and its result: y = a w^T + bias + image_bias + residual. The rows of `a` are those of a matrix (m, k), or
// the windows of a convolution over a feature map (b, h, w, c), whose k is (kh, kw, c).

struct Params {
    m: u32,
    n: u32,
    k: u32,
    a: u32,
    w: u32,
    bias: u32,
    image_bias: u32,
    // 0 if all images have the same.
    image_bias_row: u32,
    residual: u32,
    y: u32,
    // Rows of the result of one image.
    rows: u32,
    height: u32,
    width: u32,
    channels: u32,
    kernel_width: u32,
    stride: u32,
    pad_top: u32,
    pad_left: u32,
    width_out: u32,
}

@group(0) @binding(2) var<storage, read> bias: array<S>;
@group(0) @binding(3) var<storage, read> image_bias: array<S>;
@group(0) @binding(4) var<storage, read> residual: array<S>;
@group(0) @binding(5) var<storage, read_write> y: array<S>;
var<immediate> p: Params;

// Writes the element of the result in row `r` and column `c`, if it has them.
fn store(r: u32, c: u32, sum: f32) {
    if r >= p.m || c >= p.n {
        return;
    }
    var value = sum;
    if HAS_BIAS {
        value += f32(bias[p.bias + c]);
    }
    if HAS_IMAGE_BIAS {
        value += f32(image_bias[p.image_bias + r / p.rows * p.image_bias_row + c]);
    }
    if HAS_RESIDUAL {
        value += f32(residual[p.residual + r * p.n + c]);
    }
    y[p.y + r * p.n + c] = S(function(value, 0.0, 0.0));
}

