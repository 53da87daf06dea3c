// The operands of attention: softmax(scale q k^T + bias) v for every head. `HEAD` is the number of channels of a head.

struct Params {
    s: u32,
    t: u32,
    heads: u32,
    // Heads of queries for each head of keys.
    share: u32,
    q: u32,
    q_row: u32,
    q_image: u32,
    k: u32,
    k_row: u32,
    k_image: u32,
    v: u32,
    v_row: u32,
    v_image: u32,
    bias: u32,
    // 0 if all images have the same.
    bias_image: u32,
    limits: u32,
    y: u32,
    scale: f32,
    // The first workgroup of queries that is computed.
    first: u32,
}

@group(0) @binding(3) var<storage, read> bias: array<S>;
// The number of keys of each image, or for each key whether it is seen.
@group(0) @binding(4) var<storage, read> limits: array<f32>;
var<immediate> p: Params;

// The score of a key that is not seen.
const LEAST: f32 = -1e30;

// The keys of an image, of which queries from `first` on see so many with a causal mask.
fn keys_of(image: u32, first: u32, queries: u32) -> u32 {
    var keys = p.t;
    if HAS_LENGTHS {
        keys = u32(clamp(limits[p.limits + image], 1.0, f32(p.t)));
    }
    if CAUSAL {
        keys = min(keys, first + queries);
    }
    return keys;
}

