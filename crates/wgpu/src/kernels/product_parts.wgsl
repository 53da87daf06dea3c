// Adds the sums of the `PARTS` parts of k, (parts, m, n), and writes the result of the product: a thread has four columns of a row.

@group(0) @binding(0) var<storage, read> sums: array<vec4f>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let index = id.y * groups.x * 256u + id.x;
    let count = p.m * p.n / 4u;
    if index >= count {
        return;
    }
    var sum = sums[index];
    for (var part = 1u; part < PARTS; part++) {
        sum += sums[part * count + index];
    }
    y[p.y / 4u + index] = vec4<Y>(finished(index / (p.n / 4u), index % (p.n / 4u) * 4u, sum));
}
