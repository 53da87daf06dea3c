// Sines and cosines of timesteps: y (n, dim).

struct Params {
    count: u32,
    dim: u32,
    values: u32,
    y: u32,
    frequencies: u32,
}

@group(0) @binding(0) var<storage, read> values: array<f32>;
@group(0) @binding(1) var<storage, read> frequencies: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<S>;
var<immediate> p: Params;

// Vulkan promises no more than 2^-11 for sines. These are the polynomials of Cephes for a quarter of a turn.
fn sine(angle: f32, is_cosine: bool) -> f32 {
    let quarters = round(angle * 0.6366197723675814);
    // pi / 2 in three parts.
    let r = ((angle - quarters * 1.5703125) - quarters * 4.837512969970703e-4) - quarters * 7.549789948768648e-8;
    let z = r * r;
    let sin_r = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
    let cos_r = ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0;
    let quadrant = (u32(i32(quarters)) + select(0u, 1u, is_cosine)) & 3u;
    let value = select(sin_r, cos_r, (quadrant & 1u) == 1u);
    return select(value, -value, quadrant >= 2u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.count {
        return;
    }
    let half = p.dim / 2u;
    let column = i % p.dim;
    let is_cosine = (column < half) == COSINES_FIRST;
    let angle = values[p.values + i / p.dim] * frequencies[p.frequencies + column % half];
    let value = sine(angle, is_cosine);
    y[p.y + i] = S(select(value, 0.0, column >= 2u * half));
}
