// The mean of each group of channels of each image, and the reciprocal of its standard deviation or the sum of squared
// differences. A workgroup has one group.

struct Params {
    x: u32,
    y: u32,
    pixels: u32,
    c: u32,
    // Channels of a group, and groups.
    width: u32,
    groups: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<S>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<immediate> p: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let image = group.x / p.groups;
    let number = group.x % p.groups;
    let start = p.x + image * p.pixels * p.c + number * p.width;
    let count = p.pixels * p.width;
    var sum = 0.0;
    for (var i = lane; i < count; i += THREADS) {
        sum += f32(x[start + i / p.width * p.c + i % p.width]);
    }
    let mean = total(lane, sum) / f32(count);
    var squares = 0.0;
    for (var i = lane; i < count; i += THREADS) {
        let difference = f32(x[start + i / p.width * p.c + i % p.width]) - mean;
        squares += difference * difference;
    }
    let all = total(lane, squares);
    if lane == 0u {
        y[p.y + group.x * 2u] = mean;
        y[p.y + group.x * 2u + 1u] = select(all, 1.0 / sqrt(all / f32(count) + p.eps), RECIPROCAL);
    }
}
