// The operands that a product adds, and its result, by elements.

@group(0) @binding(2) var<storage, read> bias: array<S>;
@group(0) @binding(3) var<storage, read> image_bias: array<S>;
@group(0) @binding(4) var<storage, read> residual: array<S>;
@group(0) @binding(5) var<storage, read_write> y: array<Y>;

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
    y[p.y + r * p.n + c] = Y(function(value, 0.0, 0.0));
}

