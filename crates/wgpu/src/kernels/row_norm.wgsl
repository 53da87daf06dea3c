// y = norm(x) gamma (1 + scale) + shift for rows of c vectors. `SHARE` threads have a row; sizes and offsets are in vectors.

struct Params {
    rows: u32,
    c: u32,
    // Rows of an image.
    rows_of_image: u32,
    x: u32,
    gamma: u32,
    beta: u32,
    scale: u32,
    scale_row: u32,
    shift: u32,
    shift_row: u32,
    y: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<E>;
@group(0) @binding(1) var<storage, read> gamma: array<E>;
@group(0) @binding(2) var<storage, read> beta: array<E>;
@group(0) @binding(3) var<storage, read> scale: array<E>;
@group(0) @binding(4) var<storage, read> shift: array<E>;
@group(0) @binding(5) var<storage, read_write> y: array<E>;
var<immediate> p: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row = (group.y * groups.x + group.x) * (THREADS / SHARE) + lane / SHARE;
    let place = lane % SHARE;
    // Rows behind the last one are computed like the last one, so that all threads meet the barriers.
    let start = p.x + min(row, p.rows - 1u) * p.c;
    var mean = 0.0;
    if !RMS {
        var sum = 0.0;
        for (var i = place; i < p.c; i += SHARE) {
            sum += across(F(x[start + i]));
        }
        mean = total(lane, sum) / f32(p.c * WIDTH);
    }
    var squares = 0.0;
    for (var i = place; i < p.c; i += SHARE) {
        let difference = F(x[start + i]) - mean;
        squares += across(difference * difference);
    }
    let factor = 1.0 / sqrt(total(lane, squares) / f32(p.c * WIDTH) + p.eps);
    if row >= p.rows {
        return;
    }
    let image = row / p.rows_of_image;
    for (var i = place; i < p.c; i += SHARE) {
        var value = (F(x[start + i]) - mean) * factor;
        if HAS_GAMMA {
            value *= F(gamma[p.gamma + i]);
        }
        if HAS_BETA {
            value += F(beta[p.beta + i]);
        }
        if HAS_SCALE {
            value *= 1.0 + F(scale[p.scale + image * p.scale_row + i]);
        }
        if HAS_SHIFT {
            value += F(shift[p.shift + image * p.shift_row + i]);
        }
        y[p.y + row * p.c + i] = E(value);
    }
}
