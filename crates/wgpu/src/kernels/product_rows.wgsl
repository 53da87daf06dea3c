// As product.wgsl for matrices of few rows: a workgroup computes columns of one row, `SHARE` threads each.

@group(0) @binding(0) var<storage, read> a: array<E>;
@group(0) @binding(1) var<storage, read> w: array<E>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let column = group.x * (THREADS / SHARE) + lane / SHARE;
    let place = lane % SHARE;
    let vectors = p.k / WIDTH;
    let row = p.first + group.y;
    let at_a = p.a / WIDTH + row * vectors;
    let at_w = p.w / WIDTH + min(column, p.n - 1u) * vectors;
    var sum = 0.0;
    for (var i = place; i < vectors; i += SHARE) {
        sum += across(F(a[at_a + i]) * F(w[at_w + i]));
    }
    let all = total(lane, sum);
    if place == 0u {
        store(row, column, all);
    }
}
