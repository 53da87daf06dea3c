// y = function(a, b), element by element, with strides of 0 where b is repeated.

struct Params {
    count: u32,
    a: u32,
    b: u32,
    y: u32,
    d1: u32, d2: u32, d3: u32, d4: u32,
    s0: u32, s1: u32, s2: u32, s3: u32, s4: u32,
}

@group(0) @binding(0) var<storage, read> a: array<S>;
@group(0) @binding(1) var<storage, read> b: array<S>;
@group(0) @binding(2) var<storage, read_write> y: array<S>;
var<immediate> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.count {
        return;
    }
    let at = coordinates(i, vec4u(p.d1, p.d2, p.d3, p.d4));
    let other = p.b + at[0] * p.s0 + at[1] * p.s1 + at[2] * p.s2 + at[3] * p.s3 + at[4] * p.s4;
    y[p.y + i] = S(function(f32(a[p.a + i]), f32(b[other])));
}
