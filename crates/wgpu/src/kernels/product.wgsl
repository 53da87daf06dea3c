// A product: a workgroup computes 64 rows by 64 columns, a thread 4 by 4, in f32.

@group(0) @binding(0) var<storage, read> a: array<S>;
@group(0) @binding(1) var<storage, read> w: array<S>;

const TILE: u32 = 64u;
const DEPTH: u32 = 16u;
const ROW: u32 = 68u;

var<workgroup> tile_a: array<f32, 1088>;
var<workgroup> tile_w: array<f32, 1088>;

// Element `depth` of the window at `pixel` (row and column of the window's first pixel) of an image.
fn window(image: u32, row: i32, column: i32, depth: u32) -> f32 {
    let tap = depth / p.channels;
    let y = row + i32(tap / p.kernel_width);
    let x = column + i32(tap % p.kernel_width);
    if y < 0 || x < 0 || y >= i32(p.height) || x >= i32(p.width) {
        return 0.0;
    }
    return f32(a[p.a + ((image * p.height + u32(y)) * p.width + u32(x)) * p.channels + depth % p.channels]);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let first_row = (p.first + group.z * 65535u + group.y) * TILE;
    let first_column = group.x * TILE;
    // The row of both tiles that this thread loads, and the first of its four elements.
    let load_row = lane / 4u;
    let load_depth = (lane % 4u) * 4u;
    let row_a = first_row + load_row;
    let row_w = first_column + load_row;
    var image = 0u;
    var window_row = 0;
    var window_column = 0;
    if CONVOLUTION {
        image = row_a / p.rows;
        let pixel = row_a % p.rows;
        window_row = i32(pixel / p.width_out * p.stride) - i32(p.pad_top);
        window_column = i32(pixel % p.width_out * p.stride) - i32(p.pad_left);
    }
    let row = (lane / 16u) * 4u;
    let column = (lane % 16u) * 4u;
    var sums: array<vec4f, 4>;
    for (var start = 0u; start < p.k; start += DEPTH) {
        /*unroll*/ for (var i = 0u; i < 4u; i++) {
            let depth = start + load_depth + i;
            var value_a = 0.0;
            var value_w = 0.0;
            if depth < p.k {
                if row_a < p.m {
                    if CONVOLUTION {
                        value_a = window(image, window_row, window_column, depth);
                    } else {
                        value_a = f32(a[p.a + row_a * p.k + depth]);
                    }
                }
                if row_w < p.n {
                    value_w = f32(w[p.w + row_w * p.k + depth]);
                }
            }
            tile_a[(load_depth + i) * ROW + load_row] = value_a;
            tile_w[(load_depth + i) * ROW + load_row] = value_w;
        }
        workgroupBarrier();
        for (var depth = 0u; depth < DEPTH; depth++) {
            let at_a = depth * ROW + row;
            let at_w = depth * ROW + column;
            let columns = vec4f(tile_w[at_w], tile_w[at_w + 1u], tile_w[at_w + 2u], tile_w[at_w + 3u]);
            sums[0] += tile_a[at_a] * columns;
            sums[1] += tile_a[at_a + 1u] * columns;
            sums[2] += tile_a[at_a + 2u] * columns;
            sums[3] += tile_a[at_a + 3u] * columns;
        }
        workgroupBarrier();
    }
    /*unroll*/ for (var i = 0u; i < 4u; i++) {
        /*unroll*/ for (var j = 0u; j < 4u; j++) {
            store(first_row + row + i, first_column + column + j, sums[i][j]);
        }
    }
}
