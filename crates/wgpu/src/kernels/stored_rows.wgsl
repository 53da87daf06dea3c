// Rows without blocks: numbers of 8 bits after their factor, an f32, and numbers of 16 bits.

fn e4m3(bits: u32) -> f32 {
    let exponent = (bits >> 3u) & 15u;
    let mantissa = bits & 7u;
    // The biases of the exponents are 7 and 127.
    var value = ((exponent + 120u) << 23u) | (mantissa << 20u);
    if exponent == 0u {
        value = bitcast<u32>(f32(mantissa) * 0x1p-9);
    }
    if (bits & 127u) == 127u {
        value = 0x7fc00000u;
    }
    return bitcast<f32>(value | ((bits >> 7u) << 31u));
}

fn f8_e4m3(row: u32, i: u32) -> vec4f {
    let bits = bytes_of(words[(row + 4u + i) / 4u]);
    return vec4f(e4m3(bits.x), e4m3(bits.y), e4m3(bits.z), e4m3(bits.w)) * float_at(row);
}

// The upper halves of f16.
fn f8_e5m2(row: u32, i: u32) -> vec4f {
    let bits = bytes_of(words[(row + 4u + i) / 4u]) << vec4u(8u);
    return vec4f(half_of(bits.x), half_of(bits.y), half_of(bits.z), half_of(bits.w)) * float_at(row);
}

fn int8(row: u32, i: u32) -> vec4f {
    return vec4f(signed_bytes_of(words[(row + 4u + i) / 4u])) * float_at(row);
}

// Four f16.
fn halves(pairs: vec2u) -> vec4f {
    let low = pairs & vec2u(0xffffu);
    let high = pairs >> vec2u(16u);
    return vec4f(half_of(low.x), half_of(high.x), half_of(low.y), half_of(high.y));
}

// Four bf16: the upper halves of f32.
fn upper_halves(pairs: vec2u) -> vec4f {
    let low = pairs << vec2u(16u);
    let high = pairs & vec2u(0xffff0000u);
    return bitcast<vec4f>(vec4u(low.x, high.x, low.y, high.y));
}
