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
    let i4 = i % p.d4;
    var rest = i / p.d4;
    let i3 = rest % p.d3;
    rest /= p.d3;
    let i2 = rest % p.d2;
    rest /= p.d2;
    let i1 = rest % p.d1;
    let i0 = rest / p.d1;
    let source = p.from_start + i0 * p.f0 + i1 * p.f1 + i2 * p.f2 + i3 * p.f3 + i4 * p.f4;
    let target_index = p.to_start + i0 * p.t0 + i1 * p.t1 + i2 * p.t2 + i3 * p.t3 + i4 * p.t4;
    y[target_index] = Y(x[source]);
}
