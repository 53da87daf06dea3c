// Merges the means and sums of squared differences of blocks of pixels (Chan et al., "Updating Formulae and a Pairwise Algorithm for
// Computing Sample Variances", 1979). A thread has one group of one image.

struct Params {
    // Groups of all images.
    groups: u32,
    blocks: u32,
    // Elements of a group in a block, and in the last block.
    count: u32,
    last: u32,
    y: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<vec2f>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<immediate> p: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if id.x >= p.groups {
        return;
    }
    var merged = x[id.x * p.blocks];
    var count = f32(p.count);
    for (var block = 1u; block < p.blocks; block++) {
        let found = x[id.x * p.blocks + block];
        let added = f32(select(p.count, p.last, block + 1u == p.blocks));
        let difference = found.x - merged.x;
        let all = count + added;
        merged += vec2f(difference * added / all, found.y + difference * difference * count * added / all);
        count = all;
    }
    y[p.y + id.x * 2u] = merged.x;
    y[p.y + id.x * 2u + 1u] = select(merged.y, 1.0 / sqrt(merged.y / count + p.eps), RECIPROCAL);
}
