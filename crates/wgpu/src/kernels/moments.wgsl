// The mean of each group of channels of each image in a block of its pixels, and the sum of squared differences from it. If there is
// one block, `RECIPROCAL` writes the reciprocal of the standard deviation in place of the sum. A workgroup has one group and block;
// sizes of channels and the offset of x are in vectors.

struct Params {
    x: u32,
    y: u32,
    pixels: u32,
    c: u32,
    // Vectors of a group, and groups.
    width: u32,
    groups: u32,
    // Pixels of a block.
    block: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<E>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<immediate> p: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let image = group.x / p.groups;
    let number = group.x % p.groups;
    let first = group.y * p.block;
    let start = p.x + (image * p.pixels + first) * p.c + number * p.width;
    let count = min(p.block, p.pixels - first) * p.width;
    var sum = 0.0;
    for (var i = lane; i < count; i += THREADS) {
        sum += across(F(x[start + i / p.width * p.c + i % p.width]));
    }
    let mean = total(lane, sum) / f32(count * WIDTH);
    var squares = 0.0;
    for (var i = lane; i < count; i += THREADS) {
        let difference = F(x[start + i / p.width * p.c + i % p.width]) - mean;
        squares += across(difference * difference);
    }
    let all = total(lane, squares);
    if lane == 0u {
        let at = p.y + (group.x * groups.y + group.y) * 2u;
        y[at] = mean;
        y[at + 1u] = select(all, 1.0 / sqrt(all / f32(count * WIDTH) + p.eps), RECIPROCAL);
    }
}
