// A stored matrix as numbers, row by row: a thread converts four neighbors of a row. Layouts and arithmetic are those of
// ops/src/matrix. Products of codes and scales are exact in f32, so that a driver may fuse them with the sum that follows.

struct Params {
    // Fours of all rows, and of one.
    count: u32,
    fours: u32,
    // Bytes: of the first row, and from one part to the next. A part has so many rows, one after another.
    start: u32,
    part: u32,
    stride: u32,
    row_bytes: u32,
}

@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<S>>;
var<immediate> p: Params;

// Elements `i` to `i + 3` of the row at byte `row`.
fn elements(row: u32, i: u32) -> vec4f {
    switch TYPE {
        case 0u: { return q4_0(row + i / 32u * 18u, i % 32u); }
        case 1u: { return q4_1(row + i / 32u * 20u, i % 32u); }
        case 2u: { return q5_0(row + i / 32u * 22u, i % 32u); }
        case 3u: { return q5_1(row + i / 32u * 24u, i % 32u); }
        case 4u: { return q8_0(row + i / 32u * 34u, i % 32u); }
        case 5u: { return q2_k(row + i / 256u * 84u, i % 256u); }
        case 6u: { return q3_k(row + i / 256u * 110u, i % 256u); }
        case 7u: { return q4_k(row + i / 256u * 144u, i % 256u); }
        case 8u: { return q5_k(row + i / 256u * 176u, i % 256u); }
        case 9u: { return q6_k(row + i / 256u * 210u, i % 256u); }
        case 10u: { return iq4_nl(row + i / 32u * 18u, i % 32u); }
        case 11u: { return iq4_xs(row + i / 256u * 136u, i % 256u); }
        case 12u: { return nf4(row + i / 64u * 36u, i % 64u); }
        case 13u: { return fp4(row + i / 64u * 36u, i % 64u); }
        case 14u: { return f8_e4m3(row, i); }
        case 15u: { return f8_e5m2(row, i); }
        case 16u: { return int8(row, i); }
        case 17u: { return halves(two_words_at(row + 2u * i)); }
        default: { return upper_halves(two_words_at(row + 2u * i)); }
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let index = (group.y * groups.x + group.x) * 256u + lane;
    if index >= p.count {
        return;
    }
    let row = index / p.fours;
    let at = p.start + row / p.part * p.stride + row % p.part * p.row_bytes;
    y[index] = vec4<S>(elements(at, index % p.fours * 4u));
}
