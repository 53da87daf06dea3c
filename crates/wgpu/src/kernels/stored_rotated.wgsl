// As stored.wgsl for rows of integers whose groups of `GROUP` are rotated (ops/src/matrix/int8_rows.rs): a workgroup has 256 elements of
// a row, in whole groups. Sums are exact.

struct Params {
    // Workgroups of all rows, and of one.
    count: u32,
    tiles: u32,
    // See stored.wgsl.
    start: u32,
    part: u32,
    stride: u32,
    row_bytes: u32,
    // Elements of a row.
    k: u32,
}

@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<S>;
var<immediate> p: Params;

// One over the root of the size of a group.
const SCALE: f32 = select(select(0.0625, 0.125, GROUP == 64u), 0.25, GROUP == 16u);

var<workgroup> sums: array<i32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * groups.x + group.x;
    // Tiles behind the last one are computed like the last one, so that all threads meet the barriers.
    let tile = min(index, p.count - 1u);
    let row = tile / p.tiles;
    let i = tile % p.tiles * 256u + lane;
    let at = p.start + row / p.part * p.stride + row % p.part * p.row_bytes;
    var own = 0;
    if i < p.k {
        own = signed_byte_at(at + 4u + i);
    }
    for (var stride = 1u; stride < GROUP; stride *= 4u) {
        sums[lane] = own;
        workgroupBarrier();
        let place = lane / stride % 4u;
        let first = lane - place * stride;
        let four = sums[first] + sums[first + stride] + sums[first + 2u * stride] + sums[first + 3u * stride];
        // Row `place` of the matrix has -1 in column 3 - place.
        own = four - 2 * sums[first + (3u - place) * stride];
        workgroupBarrier();
    }
    if i < p.k && index < p.count {
        y[row * p.k + i] = S(f32(own) * SCALE * float_at(at));
    }
}
