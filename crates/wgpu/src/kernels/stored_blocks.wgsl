// Elements `i` to `i + 3` of the block at byte `block`: ggml's layouts with linear codes.

// The codes of 4 bits of 32 elements in 16 bytes: the low halves are those of the first 16.
fn nibbles(codes: u32, i: u32) -> vec4u {
    return (bytes_of(word_at(codes + i % 16u)) >> vec4u(i / 16u * 4u)) & vec4u(15u);
}

// The fifth bits of the codes of 32 elements.
fn fifths(bits: u32, i: u32) -> vec4u {
    return ((vec4u(bits >> i) >> vec4u(0u, 1u, 2u, 3u)) & vec4u(1u)) << vec4u(4u);
}

fn q4_0(block: u32, i: u32) -> vec4f {
    return vec4f(vec4i(nibbles(block + 2u, i)) - vec4i(8)) * half_at(block);
}

fn q4_1(block: u32, i: u32) -> vec4f {
    return vec4f(nibbles(block + 4u, i)) * half_at(block) + half_at(block + 2u);
}

fn q5_0(block: u32, i: u32) -> vec4f {
    let codes = nibbles(block + 6u, i) | fifths(word_at(block + 2u), i);
    return vec4f(vec4i(codes) - vec4i(16)) * half_at(block);
}

fn q5_1(block: u32, i: u32) -> vec4f {
    let codes = nibbles(block + 8u, i) | fifths(word_at(block + 4u), i);
    return vec4f(codes) * half_at(block) + half_at(block + 2u);
}

fn q8_0(block: u32, i: u32) -> vec4f {
    return vec4f(signed_bytes_of(word_at(block + 2u + i))) * half_at(block);
}

// Of 256 elements 16 groups, each with a scale and a minimum of 4 bits.
fn q2_k(block: u32, i: u32) -> vec4f {
    let group = i / 16u;
    let scales = byte_at(block + group);
    let d = half_at(block + 80u) * f32(scales & 15u);
    let minimum = half_at(block + 82u) * f32(scales >> 4u);
    let bytes = bytes_of(word_at(block + 16u + group / 8u * 32u + i % 32u));
    return d * vec4f((bytes >> vec4u(group % 8u / 2u * 2u)) & vec4u(3u)) - minimum;
}

fn q3_k(block: u32, i: u32) -> vec4f {
    let group = i / 16u;
    let scales = block + 96u;
    let low = (byte_at(scales + group % 8u) >> (group / 8u * 4u)) & 15u;
    let high = (byte_at(scales + 8u + group % 4u) >> (group / 4u * 2u)) & 3u;
    let d = half_at(block + 108u) * f32(i32(low | (high << 4u)) - 32);
    let bytes = bytes_of(word_at(block + 32u + group / 8u * 32u + i % 32u));
    let codes = (bytes >> vec4u(group % 8u / 2u * 2u)) & vec4u(3u);
    let thirds = (bytes_of(word_at(block + i % 32u)) >> vec4u(group / 2u)) & vec4u(1u);
    return d * vec4f(vec4i(codes | (thirds << vec4u(2u))) - vec4i(4));
}

// The scale and the minimum of one of 8 groups, of 6 bits each, in 12 bytes.
fn scale_and_minimum(packed: u32, group: u32) -> vec2f {
    if group < 4u {
        return vec2f(f32(byte_at(packed + group) & 63u), f32(byte_at(packed + group + 4u) & 63u));
    }
    let low = byte_at(packed + group + 4u);
    let scale = (low & 15u) | ((byte_at(packed + group - 4u) >> 6u) << 4u);
    let minimum = (low >> 4u) | ((byte_at(packed + group) >> 6u) << 4u);
    return vec2f(f32(scale), f32(minimum));
}

fn q4_k(block: u32, i: u32) -> vec4f {
    let group = i / 32u;
    let factors = scale_and_minimum(block + 4u, group) * vec2f(half_at(block), half_at(block + 2u));
    let bytes = bytes_of(word_at(block + 16u + group / 2u * 32u + i % 32u));
    return factors.x * vec4f((bytes >> vec4u(group % 2u * 4u)) & vec4u(15u)) - factors.y;
}

fn q5_k(block: u32, i: u32) -> vec4f {
    let group = i / 32u;
    let factors = scale_and_minimum(block + 4u, group) * vec2f(half_at(block), half_at(block + 2u));
    let bytes = bytes_of(word_at(block + 48u + group / 2u * 32u + i % 32u));
    let fifth = ((bytes_of(word_at(block + 16u + i % 32u)) >> vec4u(group)) & vec4u(1u)) << vec4u(4u);
    return factors.x * vec4f(((bytes >> vec4u(group % 2u * 4u)) & vec4u(15u)) | fifth) - factors.y;
}

fn q6_k(block: u32, i: u32) -> vec4f {
    let part = i / 128u;
    let row = i % 128u / 32u;
    let scale = signed_byte_at(block + 192u + i / 16u);
    let low = (bytes_of(word_at(block + part * 64u + row % 2u * 32u + i % 32u)) >> vec4u(row / 2u * 4u)) & vec4u(15u);
    let high = (bytes_of(word_at(block + 128u + part * 32u + i % 32u)) >> vec4u(row * 2u)) & vec4u(3u);
    return half_at(block + 208u) * f32(scale) * vec4f(vec4i(low | (high << vec4u(4u))) - vec4i(32));
}
