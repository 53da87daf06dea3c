// Elements `i` to `i + 3` of the block at byte `block`: layouts whose codes of 4 bits are indices of a table.

fn iq4_value(code: u32) -> f32 {
    var table = array<f32, 16>(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return table[code];
}

// Quantiles of a normal distribution.
fn nf4_value(code: u32) -> f32 {
    var table = array<f32, 16>(
        -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
    );
    return table[code];
}

// A sign, two bits of exponent and one of mantissa, over the largest value.
fn fp4_value(code: u32) -> f32 {
    var table = array<f32, 8>(0.0, 0.0625 / 12.0, 8.0 / 12.0, 1.0, 4.0 / 12.0, 0.5, 2.0 / 12.0, 0.25);
    return select(table[code % 8u], -table[code % 8u], code >= 8u);
}

// The values of 32 elements whose codes are in 16 bytes.
fn iq4_values(codes: u32, i: u32) -> vec4f {
    let four = nibbles(codes, i);
    return vec4f(iq4_value(four.x), iq4_value(four.y), iq4_value(four.z), iq4_value(four.w));
}

fn iq4_nl(block: u32, i: u32) -> vec4f {
    return half_at(block) * iq4_values(block + 2u, i);
}

fn iq4_xs(block: u32, i: u32) -> vec4f {
    let group = i / 32u;
    let low = (byte_at(block + 4u + group / 2u) >> (group % 2u * 4u)) & 15u;
    let high = ((word_at(block) >> 16u) >> (group * 2u)) & 3u;
    return half_at(block) * f32(i32(low | (high << 4u)) - 32) * iq4_values(block + 8u + group * 16u, i % 32u);
}

// bitsandbytes' codes: two neighbors in a byte, the first one in the high half, after the scale.
fn pairs(block: u32, i: u32) -> vec4u {
    let codes = words[(block + 4u + i / 2u) / 4u] >> (i % 8u * 4u);
    return (vec4u(codes) >> vec4u(4u, 0u, 12u, 8u)) & vec4u(15u);
}

fn nf4(block: u32, i: u32) -> vec4f {
    let four = pairs(block, i);
    return vec4f(nf4_value(four.x), nf4_value(four.y), nf4_value(four.z), nf4_value(four.w)) * float_at(block);
}

fn fp4(block: u32, i: u32) -> vec4f {
    let four = pairs(block, i);
    return vec4f(fp4_value(four.x), fp4_value(four.y), fp4_value(four.z), fp4_value(four.w)) * float_at(block);
}
