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
    // The first of the workgroups' rows that is computed.
    first: u32,
}

var<immediate> p: Params;

