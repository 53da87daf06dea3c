// As product.wgsl for matrices of few rows: a workgroup computes four columns of a row, sixteen threads each.

@group(0) @binding(0) var<storage, read> a: array<E>;
@group(0) @binding(1) var<storage, read> w: array<E>;

const COLUMNS: u32 = 4u;
const SHARE: u32 = 16u;

var<workgroup> parts: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let column = group.x * COLUMNS + lane / SHARE;
    let place = lane % SHARE;
    let vectors = p.k / WIDTH;
    let at_a = p.a / WIDTH + group.y * vectors;
    let at_w = p.w / WIDTH + min(column, p.n - 1u) * vectors;
    var sum = 0.0;
    for (var i = place; i < vectors; i += SHARE) {
        sum += across(F(a[at_a + i]) * F(w[at_w + i]));
    }
    parts[lane] = sum;
    workgroupBarrier();
    for (var half = SHARE / 2u; half > 0u; half /= 2u) {
        if place < half {
            parts[lane] += parts[lane + half];
        }
        workgroupBarrier();
    }
    if place == 0u {
        store(group.y, column, parts[lane]);
    }
}
