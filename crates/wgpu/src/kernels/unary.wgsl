// y = function(x), element by element. `FUNCTION` is defined before this.

struct Params {
    count: u32,
    x: u32,
    y: u32,
    a: f32,
    b: f32,
}

@group(0) @binding(0) var<storage, read> x: array<S>;
@group(0) @binding(1) var<storage, read_write> y: array<S>;
var<immediate> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i < p.count {
        y[p.y + i] = S(function(f32(x[p.x + i]), p.a, p.b));
    }
}
