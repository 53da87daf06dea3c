// y = softmax(scale x) of each row of `columns` elements. A workgroup has a row. The scale is not negative.

struct Params {
    rows: u32,
    columns: u32,
    x: u32,
    y: u32,
    scale: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<Y>;
var<immediate> p: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row = group.y * groups.x + group.x;
    // Rows behind the last one are computed like the last one, so that all threads meet the barriers.
    let start = p.x + min(row, p.rows - 1u) * p.columns;
    var most = x[start];
    for (var i = lane; i < p.columns; i += THREADS) {
        most = max(most, x[start + i]);
    }
    most = maximum(lane, most);
    var sum = 0.0;
    for (var i = lane; i < p.columns; i += THREADS) {
        sum += exp((x[start + i] - most) * p.scale);
    }
    let all = total(lane, sum);
    if row >= p.rows {
        return;
    }
    for (var i = lane; i < p.columns; i += THREADS) {
        y[p.y + row * p.columns + i] = Y(exp((x[start + i] - most) * p.scale) / all);
    }
}
