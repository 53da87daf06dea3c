// One number of each line (outer, length, inner) along its second dimension. A thread has one line.

struct Params {
    count: u32,
    length: u32,
    inner: u32,
    x: u32,
    y: u32,
}

@group(0) @binding(0) var<storage, read> x: array<S>;
@group(0) @binding(1) var<storage, read_write> y: array<S>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let line = (group.y * groups.x + group.x) * 64u + lane;
    if line >= p.count {
        return;
    }
    let start = p.x + line / p.inner * p.length * p.inner + line % p.inner;
    var result = f32(x[start]);
    for (var i = 1u; i < p.length; i++) {
        let value = f32(x[start + i * p.inner]);
        if KIND == 0u {
            result += value;
        } else if KIND == 1u {
            result = min(result, value);
        } else {
            result = max(result, value);
        }
    }
    if KIND == 0u {
        result /= f32(p.length);
    }
    y[p.y + line] = S(result);
}
