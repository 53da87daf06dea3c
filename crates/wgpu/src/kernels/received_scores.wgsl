// The scores of keys: q k^T scale. `HEAD` is the number of channels of a head.

struct Params {
    s: u32,
    t: u32,
    heads: u32,
    q: u32,
    q_row: u32,
    q_image: u32,
    k: u32,
    k_row: u32,
    k_image: u32,
    // Threads that have a result.
    count: u32,
    scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<S>;
@group(0) @binding(1) var<storage, read> k: array<S>;
var<immediate> p: Params;

fn scaled_product(image: u32, head: u32, query: u32, key: u32) -> f32 {
    let at_q = p.q + image * p.q_image + query * p.q_row + head * HEAD;
    let at_k = p.k + image * p.k_image + key * p.k_row + head * HEAD;
    var sum = 0.0;
    for (var i = 0u; i < HEAD; i++) {
        sum += f32(q[at_q + i]) * f32(k[at_k + i]);
    }
    return sum * p.scale;
}

