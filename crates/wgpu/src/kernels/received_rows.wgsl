// For each image, head and query the largest score, and the sum of the powers of all scores less it. A thread has one query.

@group(0) @binding(2) var<storage, read_write> y: array<vec2f>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let index = (group.y * groups.x + group.x) * 64u + lane;
    if index >= p.count {
        return;
    }
    let query = index % p.s;
    let head = index / p.s % p.heads;
    let image = index / p.s / p.heads;
    var most = scaled_product(image, head, query, 0u);
    var sum = 1.0;
    for (var key = 1u; key < p.t; key++) {
        let found = scaled_product(image, head, query, key);
        let larger = max(most, found);
        sum = sum * exp(most - larger) + exp(found - larger);
        most = larger;
    }
    y[index] = vec2f(most, sum);
}
