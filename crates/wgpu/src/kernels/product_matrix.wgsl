// As product.wgsl in f16, by cooperative matrices of `SIDE` x `SIDE`: a workgroup computes `TILE_ROWS` rows by `TILE_COLUMNS` columns,
// a subgroup of `LANES` threads `SUB_ROWS` by `SUB_COLUMNS`. Operands are staged in workgroup memory, and the next ones are read from
// the buffers meanwhile. Sums are f32. Elements are read by eight and written by four: k, the channels of a convolution, n and all
// offsets are multiples of them. If `PARTS` is more than 1, each part of k has its own sums, and product_parts.wgsl adds them.

@group(0) @binding(0) var<storage, read> a: array<vec4<S>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<S>>;

const SUBGROUPS: u32 = TILE_ROWS / SUB_ROWS * (TILE_COLUMNS / SUB_COLUMNS);
const THREADS: u32 = SUBGROUPS * LANES;
// Elements that a thread reads at once, of which a row of a tile has `CHUNKS`.
const CHUNK: u32 = 8u;
const CHUNKS: u32 = DEPTH / CHUNK;
// Rows of a tile that the workgroup reads at once.
const LOAD_ROWS: u32 = THREADS / CHUNKS;
// Vectors of a row in workgroup memory: those of padding keep rows in different banks, at multiples of 16 bytes.
const ROW: u32 = DEPTH / 4u + 2u;
// Vectors of a matrix of sums, and of its rows.
const STAGE: u32 = SIDE * SIDE / 4u;
const STAGE_ROW: u32 = SIDE / 4u;

var<workgroup> tile_a: array<vec4<S>, TILE_ROWS * ROW>;
var<workgroup> tile_w: array<vec4<S>, TILE_COLUMNS * ROW>;
var<workgroup> stage: array<vec4f, SUBGROUPS * STAGE>;

// The next elements of the tiles.
var<private> next_a: array<vec4<S>, LOADS_A * 2u>;
var<private> next_w: array<vec4<S>, LOADS_W * 2u>;
// Which elements of `next_a` are within the feature map, by bits.
var<private> is_inside: u32;
// The rows of the tiles that this thread reads: of a matrix, where they begin in units of a chunk; of a convolution, the first row of
// the image, and the row and column of the window's first pixel.
var<private> start_a: array<u32, LOADS_A>;
var<private> start_w: array<u32, LOADS_W>;
var<private> window_row: array<i32, LOADS_A>;
var<private> window_column: array<i32, LOADS_A>;
// The pixel of the window, and the channel, of the next elements.
var<private> tap_row: i32;
var<private> tap_column: i32;
var<private> channel: u32;

// Begins at element `depth` of the windows.
fn seek(depth: u32) {
    let tap = depth / p.channels;
    tap_row = i32(tap / p.kernel_width);
    tap_column = i32(tap % p.kernel_width);
    channel = depth % p.channels;
}

fn advance() {
    channel += DEPTH;
    while channel >= p.channels {
        channel -= p.channels;
        tap_column++;
        if tap_column == i32(p.kernel_width) {
            tap_column = 0;
            tap_row++;
        }
    }
}

// Reads this thread's chunk of each row at element `depth`; zeros from `end` on.
fn fetch(depth: u32, end: u32) {
    is_inside = 0u;
    let exists = depth < end;
    /*unroll*/ for (var i = 0u; i < LOADS_A; i++) {
        var at = start_a[i] + depth / CHUNK;
        var is_seen = exists;
        if CONVOLUTION {
            let row = window_row[i] + tap_row;
            let column = window_column[i] + tap_column;
            is_seen = exists && row >= 0 && column >= 0 && row < i32(p.height) && column < i32(p.width);
            at = (p.a + ((start_a[i] + u32(row)) * p.width + u32(column)) * p.channels + channel) / CHUNK;
        }
        // Without branches, so that all reads begin before the first one is waited for.
        at = select(0u, at * 2u, is_seen);
        next_a[i * 2u] = a[at];
        next_a[i * 2u + 1u] = a[at + 1u];
        is_inside |= select(0u, 1u << i, is_seen);
    }
    /*unroll*/ for (var i = 0u; i < LOADS_W; i++) {
        let at = select(0u, (start_w[i] + depth / CHUNK) * 2u, exists);
        next_w[i * 2u] = w[at];
        next_w[i * 2u + 1u] = w[at + 1u];
    }
    if CONVOLUTION {
        advance();
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let first_row = (group.z * 65535u + group.y) * TILE_ROWS;
    let tiles = (p.n + TILE_COLUMNS - 1u) / TILE_COLUMNS;
    let first_column = group.x % tiles * TILE_COLUMNS;
    let part = group.x / tiles;
    let subgroup = lane / LANES;
    let sub_row = subgroup / (TILE_COLUMNS / SUB_COLUMNS) * SUB_ROWS;
    let sub_column = subgroup % (TILE_COLUMNS / SUB_COLUMNS) * SUB_COLUMNS;
    let load_row = lane / CHUNKS;
    let load_depth = lane % CHUNKS * CHUNK;
    // Elements of k of this part.
    let steps = (p.k + DEPTH - 1u) / DEPTH;
    let begin = steps * part / PARTS * DEPTH;
    let end = min(p.k, steps * (part + 1u) / PARTS * DEPTH);
    /*unroll*/ for (var i = 0u; i < LOADS_A; i++) {
        let row = min(first_row + load_row + i * LOAD_ROWS, p.m - 1u);
        start_a[i] = (p.a + row * p.k) / CHUNK;
        if CONVOLUTION {
            let pixel = row % p.rows;
            start_a[i] = row / p.rows * p.height;
            window_row[i] = i32(pixel / p.width_out * p.stride) - i32(p.pad_top);
            window_column[i] = i32(pixel % p.width_out * p.stride) - i32(p.pad_left);
        }
    }
    /*unroll*/ for (var i = 0u; i < LOADS_W; i++) {
        start_w[i] = (p.w + min(first_column + load_row + i * LOAD_ROWS, p.n - 1u) * p.k) / CHUNK;
    }
    if CONVOLUTION {
        seek(begin + load_depth);
    }
    var sums: array<MatrixC, ROWS_OF_MATRICES * COLUMNS_OF_MATRICES>;
    fetch(begin + load_depth, end);
    for (var depth = begin; depth < end; depth += DEPTH) {
        workgroupBarrier();
        let exists = depth + load_depth < end;
        /*unroll*/ for (var i = 0u; i < LOADS_A; i++) {
            let place = (load_row + i * LOAD_ROWS) * ROW + load_depth / 4u;
            let is_seen = (is_inside & (1u << i)) != 0u;
            tile_a[place] = select(vec4<S>(), next_a[i * 2u], is_seen);
            tile_a[place + 1u] = select(vec4<S>(), next_a[i * 2u + 1u], is_seen);
        }
        /*unroll*/ for (var i = 0u; i < LOADS_W; i++) {
            let place = (load_row + i * LOAD_ROWS) * ROW + load_depth / 4u;
            tile_w[place] = select(vec4<S>(), next_w[i * 2u], exists);
            tile_w[place + 1u] = select(vec4<S>(), next_w[i * 2u + 1u], exists);
        }
        workgroupBarrier();
        fetch(depth + DEPTH + load_depth, end);
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
