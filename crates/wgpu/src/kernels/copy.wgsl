// y[..] = x[..] for views of one shape, whose types may differ.

struct Params {
    count: u32,
    from_start: u32,
    to_start: u32,
    // Sizes of the last four dimensions; the first one is what remains.
    d1: u32, d2: u32, d3: u32, d4: u32,
    f0: u32, f1: u32, f2: u32, f3: u32, f4: u32,
    t0: u32, t1: u32, t2: u32, t3: u32, t4: u32,
}

@group(0) @binding(0) var<storage, read> x: array<X>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;
var<immediate> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.count {
        return;
    }
    let at = coordinates(i, vec4u(p.d1, p.d2, p.d3, p.d4));
    let source = p.from_start + at[0] * p.f0 + at[1] * p.f1 + at[2] * p.f2 + at[3] * p.f3 + at[4] * p.f4;
    let target_index = p.to_start + at[0] * p.t0 + at[1] * p.t1 + at[2] * p.t2 + at[3] * p.t3 + at[4] * p.t4;
    y[target_index] = Y(x[source]);
}
