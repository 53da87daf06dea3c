// As product.wgsl in f16, by cooperative matrices of 16 x 16: a workgroup computes 128 rows by 128 columns in four subgroups of 64
// by 64. Operands are staged in workgroup memory, so that windows and edges are filled there. Sums are f32. k, and the channels of a
// convolution, are multiples of 4.

@group(0) @binding(0) var<storage, read> a: array<vec4<S>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<S>>;

const TILE: u32 = 128u;
const DEPTH: u32 = 32u;
// Elements of a row of a tile in workgroup memory.
const ROW: u32 = 40u;

var<workgroup> tile_a: array<S, 5120>;
var<workgroup> tile_w: array<S, 5120>;
// A matrix of sums of each subgroup.
var<workgroup> stage: array<f32, 1024>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let first_row = (group.z * 65535u + group.y) * TILE;
    let first_column = group.x * TILE;
    let subgroup = lane / 32u;
    let sub_row = (subgroup / 2u) * 64u;
    let sub_column = (subgroup % 2u) * 64u;
    // A thread loads four elements of eight rows of each tile.
    let load_row = lane / 8u;
    let load_depth = (lane % 8u) * 4u;
    var window_start: array<u32, 8>;
    var window_row: array<i32, 8>;
    var window_column: array<i32, 8>;
    if CONVOLUTION {
        for (var i = 0u; i < 8u; i++) {
            let row = min(first_row + load_row + i * 16u, p.m - 1u);
            let pixel = row % p.rows;
            window_start[i] = row / p.rows * p.height;
            window_row[i] = i32(pixel / p.width_out * p.stride) - i32(p.pad_top);
            window_column[i] = i32(pixel % p.width_out * p.stride) - i32(p.pad_left);
        }
    }
    var sums: array<coop_mat16x16<f32, C>, 16>;
    for (var start = 0u; start < p.k; start += DEPTH) {
        let depth = start + load_depth;
        var tap_row = 0;
        var tap_column = 0;
        var channel = 0u;
        if CONVOLUTION {
            let tap = depth / p.channels;
            tap_row = i32(tap / p.kernel_width);
            tap_column = i32(tap % p.kernel_width);
            channel = depth % p.channels;
        }
        for (var i = 0u; i < 8u; i++) {
            let row = load_row + i * 16u;
            var value_a = vec4<S>();
            var value_w = vec4<S>();
            if depth < p.k {
                if CONVOLUTION {
                    let from_y = window_row[i] + tap_row;
                    let from_x = window_column[i] + tap_column;
                    if from_y >= 0 && from_x >= 0 && from_y < i32(p.height) && from_x < i32(p.width) {
                        let pixel = (window_start[i] + u32(from_y)) * p.width + u32(from_x);
                        value_a = a[(p.a + pixel * p.channels + channel) / 4u];
                    }
                } else if first_row + row < p.m {
                    value_a = a[(p.a + (first_row + row) * p.k + depth) / 4u];
                }
                if first_column + row < p.n {
                    value_w = w[(p.w + (first_column + row) * p.k + depth) / 4u];
                }
            }
            let place = row * ROW + load_depth;
            tile_a[place] = value_a.x;
            tile_a[place + 1u] = value_a.y;
            tile_a[place + 2u] = value_a.z;
            tile_a[place + 3u] = value_a.w;
            tile_w[place] = value_w.x;
            tile_w[place + 1u] = value_w.y;
            tile_w[place + 2u] = value_w.z;
            tile_w[place + 3u] = value_w.w;
        }
        workgroupBarrier();
        for (var d = 0u; d < DEPTH; d += 16u) {
            for (var j = 0u; j < 4u; j++) {
                let columns = coopLoad<coop_mat16x16<S, B>>(&tile_w[(sub_column + j * 16u) * ROW + d], ROW);
                for (var i = 0u; i < 4u; i++) {
                    let rows = coopLoadT<coop_mat16x16<S, A>>(&tile_a[(sub_row + i * 16u) * ROW + d], ROW);
                    sums[i * 4u + j] = coopMultiplyAdd(rows, columns, sums[i * 4u + j]);
                }
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            coopStoreT(sums[i * 4u + j], &stage[subgroup * 256u], 16u);
            workgroupBarrier();
            for (var e = 0u; e < 8u; e++) {
                let element = e * 32u + lane % 32u;
                let r = first_row + sub_row + i * 16u + element / 16u;
                let c = first_column + sub_column + j * 16u + element % 16u;
                store(r, c, stage[subgroup * 256u + element]);
            }
            workgroupBarrier();
        }
    }
}
