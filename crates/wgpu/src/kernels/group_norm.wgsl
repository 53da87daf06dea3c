// y = (x - mean) rstd gamma + beta with the statistics of each group of channels, and SiLU. Sizes and offsets are in vectors, each of
// which is in one group.

struct Params {
    count: u32,
    // Vectors of an image.
    image: u32,
    c: u32,
    width: u32,
    groups: u32,
    x: u32,
    moments: u32,
    gamma: u32,
    beta: u32,
    y: u32,
}

@group(0) @binding(0) var<storage, read> x: array<E>;
@group(0) @binding(1) var<storage, read> moments: array<f32>;
@group(0) @binding(2) var<storage, read> gamma: array<E>;
@group(0) @binding(3) var<storage, read> beta: array<E>;
@group(0) @binding(4) var<storage, read_write> y: array<E>;
var<immediate> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.count {
        return;
    }
    let channel = i % p.c;
    let at = p.moments + ((i / p.image) * p.groups + channel / p.width) * 2u;
    let normed = (F(x[p.x + i]) - moments[at]) * moments[at + 1u];
    let value = normed * F(gamma[p.gamma + channel]) + F(beta[p.beta + channel]);
    y[p.y + i] = E(each(value));
}
