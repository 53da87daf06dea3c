// As product.wgsl, for operands that are read by four elements: k, the channels of a convolution and their offsets are multiples of
// four. A workgroup computes `TILE_ROWS` rows by `TILE_COLUMNS` columns, a thread `THREAD_ROWS` by `THREAD_COLUMNS` of them, sixteen
// apart, which it keeps in registers. The next elements are read while the last ones are multiplied.

@group(0) @binding(0) var<storage, read> a: array<vec4<S>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<S>>;

// Threads in both directions.
const SIDE: u32 = 16u;
// Vectors of a row in workgroup memory: one is padding against conflicts of banks.
const ROW: u32 = DEPTH_VECTORS + 1u;
// Rows of a tile that the workgroup reads at once.
const LOAD_ROWS: u32 = SIDE * SIDE / DEPTH_VECTORS;

var<workgroup> tile_a: array<vec4f, TILE_ROWS * ROW>;
var<workgroup> tile_w: array<vec4f, TILE_COLUMNS * ROW>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let first_row = (p.first + group.z * 65535u + group.y) * TILE_ROWS;
    let first_column = group.x * TILE_COLUMNS;
    let load_row = lane / DEPTH_VECTORS;
    let load_depth = lane % DEPTH_VECTORS * 4u;
    let begin = 0u;
    let end = p.k;
/*starts*/
    var next_a: array<vec4<S>, LOADS_A>;
    var next_w: array<vec4<S>, LOADS_W>;
    var is_inside = 0u;
    var sums: array<f32, SUMS>;
    {
        let depth = begin + load_depth;
/*fetch*/
    }
    for (var start = begin; start < end; start += DEPTH) {
        workgroupBarrier();
        /*unroll*/ for (var i = 0u; i < LOADS_A; i++) {
            let is_seen = !CONVOLUTION || (is_inside & (1u << i)) != 0u;
            tile_a[(load_row + i * LOAD_ROWS) * ROW + load_depth / 4u] = select(vec4f(), vec4f(next_a[i]), is_seen);
        }
        /*unroll*/ for (var i = 0u; i < LOADS_W; i++) {
            tile_w[(load_row + i * LOAD_ROWS) * ROW + load_depth / 4u] = vec4f(next_w[i]);
        }
        workgroupBarrier();
        let depth = start + DEPTH + load_depth;
/*fetch*/
        /*unroll*/ for (var d = 0u; d < DEPTH_VECTORS; d++) {
            var rows: array<vec4f, THREAD_ROWS>;
            /*unroll*/ for (var i = 0u; i < THREAD_ROWS; i++) {
                rows[i] = tile_a[(lane / SIDE + i * SIDE) * ROW + d];
            }
            /*unroll*/ for (var j = 0u; j < THREAD_COLUMNS; j++) {
                let column = tile_w[(lane % SIDE + j * SIDE) * ROW + d];
                /*unroll*/ for (var i = 0u; i < THREAD_ROWS; i++) {
                    let at = i * THREAD_COLUMNS + j;
                    let first = fma(rows[i].y, column.y, fma(rows[i].x, column.x, sums[at]));
                    sums[at] = fma(rows[i].w, column.w, fma(rows[i].z, column.z, first));
                }
            }
        }
    }
    /*unroll*/ for (var i = 0u; i < THREAD_ROWS; i++) {
        /*unroll*/ for (var j = 0u; j < THREAD_COLUMNS; j++) {
            let row = first_row + lane / SIDE + i * SIDE;
            store(row, first_column + lane % SIDE + j * SIDE, sums[i * THREAD_COLUMNS + j]);
        }
    }
}
