// For each image, head and key the sum of the attention that queries give it. A thread has one key.

@group(0) @binding(2) var<storage, read> rows: array<vec2f>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let index = (group.y * groups.x + group.x) * 64u + lane;
    if index >= p.count {
        return;
    }
    let key = index % p.t;
    let head = index / p.t % p.heads;
    let image = index / p.t / p.heads;
    var sum = 0.0;
    for (var query = 0u; query < p.s; query++) {
        let row = rows[(image * p.heads + head) * p.s + query];
        sum += exp(scaled_product(image, head, query, key) - row.x) / row.y;
    }
    y[index] = sum;
}
