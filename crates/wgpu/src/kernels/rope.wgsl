// Rotary position embedding of (b, s, heads head_dim), after an optional normalization of each head to mean square 1. A thread
// has one head of one token.

struct Params {
    count: u32,
    s: u32,
    heads: u32,
    head_dim: u32,
    x: u32,
    cos: u32,
    sin: u32,
    // Elements of an image's table; 0 if all images have the same.
    table_image: u32,
    gamma: u32,
    y: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<S>;
@group(0) @binding(1) var<storage, read> cosines: array<f32>;
@group(0) @binding(2) var<storage, read> sines: array<f32>;
@group(0) @binding(3) var<storage, read> gamma: array<S>;
@group(0) @binding(4) var<storage, read_write> y: array<S>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let number = (group.y * groups.x + group.x) * 64u + lane;
    if number >= p.count {
        return;
    }
    let start = number * p.head_dim;
    var factor = 1.0;
    if HAS_NORM {
        var squares = 0.0;
        for (var i = 0u; i < p.head_dim; i++) {
            let value = f32(x[p.x + start + i]);
            squares += value * value;
        }
        factor = 1.0 / sqrt(squares / f32(p.head_dim) + p.eps);
    }
    let half = p.head_dim / 2u;
    let token = number / p.heads;
    let table = token / p.s * p.table_image + token % p.s * half;
    for (var i = 0u; i < half; i++) {
        var first = i;
        var second = i + half;
        if INTERLEAVED {
            first = 2u * i;
            second = 2u * i + 1u;
        }
        var a = f32(x[p.x + start + first]) * factor;
        var b = f32(x[p.x + start + second]) * factor;
        if HAS_NORM {
            a *= f32(gamma[p.gamma + first]);
            b *= f32(gamma[p.gamma + second]);
        }
        let cosine = cosines[p.cos + table + i];
        let sine = sines[p.sin + table + i];
        y[p.y + start + first] = S(a * cosine - b * sine);
        y[p.y + start + second] = S(a * sine + b * cosine);
    }
}
