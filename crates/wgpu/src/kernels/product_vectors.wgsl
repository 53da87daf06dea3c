// The operands that a product adds, and its result, four elements at a time: n and all offsets are multiples of four. `Y` is the type
// of the result.

@group(0) @binding(2) var<storage, read> bias: array<vec4<S>>;
@group(0) @binding(3) var<storage, read> image_bias: array<vec4<S>>;
@group(0) @binding(4) var<storage, read> residual: array<vec4<S>>;
@group(0) @binding(5) var<storage, read_write> y: array<vec4<Y>>;

// Columns `c` to `c + 3` of row `r` of the result.
fn finished(r: u32, c: u32, sums: vec4f) -> vec4f {
    var value = sums;
    if HAS_BIAS {
        value += vec4f(bias[(p.bias + c) / 4u]);
    }
    if HAS_IMAGE_BIAS {
        value += vec4f(image_bias[(p.image_bias + r / p.rows * p.image_bias_row + c) / 4u]);
    }
    if HAS_RESIDUAL {
        value += vec4f(residual[(p.residual + r * p.n + c) / 4u]);
    }
    for (var i = 0u; i < 4u; i++) {
        value[i] = function(value[i], 0.0, 0.0);
    }
    return value;
}
