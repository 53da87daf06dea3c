// y = x + gate branch for images of `image` elements with c channels, limited to the range of the type.

struct Params {
    count: u32,
    image: u32,
    c: u32,
    x: u32,
    gate: u32,
    // 0 if all images have the same gate.
    gate_row: u32,
    branch: u32,
    y: u32,
    limit: f32,
}

@group(0) @binding(0) var<storage, read> x: array<S>;
@group(0) @binding(1) var<storage, read> gate: array<S>;
@group(0) @binding(2) var<storage, read> branch: array<S>;
@group(0) @binding(3) var<storage, read_write> y: array<S>;
var<immediate> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.count {
        return;
    }
    let g = f32(gate[p.gate + (i / p.image) * p.gate_row + i % p.c]);
    let sum = f32(x[p.x + i]) + g * f32(branch[p.branch + i]);
    y[p.y + i] = S(clamp(sum, -p.limit, p.limit));
}
