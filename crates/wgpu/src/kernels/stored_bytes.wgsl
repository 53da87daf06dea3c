// Bytes of a stored matrix. Addresses are those of bytes.

fn byte_at(at: u32) -> u32 {
    return (words[at / 4u] >> (at % 4u * 8u)) & 255u;
}

// The byte as an integer with a sign.
fn signed_byte_at(at: u32) -> i32 {
    return i32(byte_at(at) << 24u) >> 24u;
}

// Four bytes from an even address on.
fn word_at(at: u32) -> u32 {
    let first = words[at / 4u];
    if at % 4u == 0u {
        return first;
    }
    return (first >> 16u) | (words[at / 4u + 1u] << 16u);
}

// Eight bytes from a multiple of four on.
fn two_words_at(at: u32) -> vec2u {
    return vec2u(words[at / 4u], words[at / 4u + 1u]);
}

// The f16 at an even address.
fn half_at(at: u32) -> f32 {
    return half_of((words[at / 4u] >> (at % 4u * 8u)) & 0xffffu);
}

// The f32 at a multiple of four.
fn float_at(at: u32) -> f32 {
    return bitcast<f32>(words[at / 4u]);
}

// The value of the bits of an f16. GPUs without f16 have no other way, and others may read the smallest ones as 0.
fn half_of(bits: u32) -> f32 {
    let magnitude = bits & 0x7fffu;
    var value = bitcast<u32>(f32(magnitude) * 0x1p-24);
    if magnitude >= 0x400u {
        // The biases of the exponents are 15 and 127.
        value = (magnitude << 13u) + (112u << 23u);
    }
    if magnitude >= 0x7c00u {
        value = (magnitude << 13u) | (255u << 23u);
    }
    return bitcast<f32>(value | ((bits & 0x8000u) << 16u));
}

// The bytes of a word, the first one in the low bits.
fn bytes_of(word: u32) -> vec4u {
    return (vec4u(word) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(255u);
}

// The same as integers with a sign.
fn signed_bytes_of(word: u32) -> vec4i {
    return bitcast<vec4i>(vec4u(word) << vec4u(24u, 16u, 8u, 0u)) >> vec4u(24u);
}
