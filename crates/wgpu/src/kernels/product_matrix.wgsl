// As product.wgsl in f16, by cooperative matrices of `SIDE` x `SIDE`: a workgroup computes `TILE_ROWS` rows by `TILE_COLUMNS` columns,
// a subgroup of `LANES` threads `SUB_ROWS` by `SUB_COLUMNS`. Operands are staged in workgroup memory, and the next ones are read from
// the buffers meanwhile. Sums are f32. Elements are read by `CHUNK` and written by four: k, the channels of a convolution, n and all
// offsets are multiples of them. If k is a multiple of `DEPTH`, `EXACT` leaves out conditions. If `PARTS` is more than 1, each part of
// k has its own sums, and product_parts.wgsl adds them.

@group(0) @binding(0) var<storage, read> a: array<vec4<S>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<S>>;

const SUBGROUPS: u32 = TILE_ROWS / SUB_ROWS * (TILE_COLUMNS / SUB_COLUMNS);
const THREADS: u32 = SUBGROUPS * LANES;
// Chunks of a row of a tile, and rows that the workgroup reads at once.
const CHUNKS: u32 = DEPTH / CHUNK;
const LOAD_ROWS: u32 = THREADS / CHUNKS;
// Vectors of a row in workgroup memory: those of padding keep rows in different banks, at multiples of 16 bytes.
const ROW: u32 = DEPTH / 4u + 2u;
// Vectors of a matrix of sums, and of its rows.
const STAGE: u32 = SIDE * SIDE / 4u;
const STAGE_ROW: u32 = SIDE / 4u;

var<workgroup> tile_a: array<vec4<S>, TILE_ROWS * ROW>;
var<workgroup> tile_w: array<vec4<S>, TILE_COLUMNS * ROW>;
var<workgroup> stage: array<vec4f, SUBGROUPS * STAGE>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let first_row = (p.first + group.z * 65535u + group.y) * TILE_ROWS;
    let tiles = (p.n + TILE_COLUMNS - 1u) / TILE_COLUMNS;
    let first_column = group.x % tiles * TILE_COLUMNS;
    let part = group.x / tiles;
    let subgroup = lane / LANES;
    let sub_row = subgroup / (TILE_COLUMNS / SUB_COLUMNS) * SUB_ROWS;
    let sub_column = subgroup % (TILE_COLUMNS / SUB_COLUMNS) * SUB_COLUMNS;
    let load_row = lane / CHUNKS;
    let load_depth = lane % CHUNKS * CHUNK;
    // The elements of k of this part.
    let steps = (p.k + DEPTH - 1u) / DEPTH;
    let begin = steps * part / PARTS * DEPTH;
    let end = min(p.k, steps * (part + 1u) / PARTS * DEPTH);
/*starts*/
    // The next elements of the tiles, and by bits which rows of a convolution have them within the feature map.
    var next_a: array<vec4<S>, LOADS_A * VECTORS>;
    var next_w: array<vec4<S>, LOADS_W * VECTORS>;
    var is_inside = 0u;
    var sums: array<MatrixC, ROWS_OF_MATRICES * COLUMNS_OF_MATRICES>;
    {
        let depth = begin + load_depth;
/*fetch*/
    }
    for (var start = begin; start < end; start += DEPTH) {
        workgroupBarrier();
        /*unroll*/ for (var i = 0u; i < LOADS_A; i++) {
            let is_seen = !CONVOLUTION || (is_inside & (1u << i)) != 0u;
            /*unroll*/ for (var e = 0u; e < VECTORS; e++) {
                let value = select(vec4<S>(), next_a[i * VECTORS + e], is_seen);
                tile_a[(load_row + i * LOAD_ROWS) * ROW + load_depth / 4u + e] = value;
            }
        }
        /*unroll*/ for (var i = 0u; i < LOADS_W; i++) {
            /*unroll*/ for (var e = 0u; e < VECTORS; e++) {
                tile_w[(load_row + i * LOAD_ROWS) * ROW + load_depth / 4u + e] = next_w[i * VECTORS + e];
            }
        }
        workgroupBarrier();
        let depth = start + DEPTH + load_depth;
/*fetch*/
        /*unroll*/ for (var d = 0u; d < DEPTH_OF_MATRICES; d++) {
            var rows: array<MatrixA, ROWS_OF_MATRICES>;
            /*unroll*/ for (var i = 0u; i < ROWS_OF_MATRICES; i++) {
                rows[i] = coopLoadT<MatrixA>(&tile_a[(sub_row + i * SIDE) * ROW + d * SIDE / 4u], ROW);
            }
            /*unroll*/ for (var j = 0u; j < COLUMNS_OF_MATRICES; j++) {
                let columns = coopLoad<MatrixB>(&tile_w[(sub_column + j * SIDE) * ROW + d * SIDE / 4u], ROW);
                /*unroll*/ for (var i = 0u; i < ROWS_OF_MATRICES; i++) {
                    let at = i * COLUMNS_OF_MATRICES + j;
                    sums[at] = coopMultiplyAdd(rows[i], columns, sums[at]);
                }
            }
        }
    }
    let thread = lane % LANES;
    /*unroll*/ for (var i = 0u; i < ROWS_OF_MATRICES; i++) {
        /*unroll*/ for (var j = 0u; j < COLUMNS_OF_MATRICES; j++) {
            coopStoreT(sums[i * COLUMNS_OF_MATRICES + j], &stage[subgroup * STAGE], STAGE_ROW);
            workgroupBarrier();
            for (var e = thread; e < STAGE; e += LANES) {
                let row = first_row + sub_row + i * SIDE + e / STAGE_ROW;
                let column = first_column + sub_column + j * SIDE + e % STAGE_ROW * 4u;
                if row < p.m && column < p.n {
                    let sums = stage[subgroup * STAGE + e];
                    if PARTS == 1u {
                        y[(p.y + row * p.n + column) / 4u] = vec4<Y>(finished(row, column, sums));
                    } else {
                        y[((part * p.m + row) * p.n + column) / 4u] = vec4<Y>(sums);
                    }
                }
            }
            workgroupBarrier();
        }
    }
}
