// As product_matrix.wgsl, by cooperative matrices of a whole workgroup (VK_NV_cooperative_matrix2), which computes `TILE_ROWS` rows by
// `TILE_COLUMNS` columns. Elements are read by eight: k, the channels of a convolution, n and all offsets are multiples of eight.
// `WIDE` results are f32. If `PARTS` is more than 1, each part of k has its own sums, and product_parts.wgsl adds them.
// scripts/spirv.sh compiles it.
#version 460
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint TILE_ROWS = 128;
layout(constant_id = 2) const uint TILE_COLUMNS = 128;
layout(constant_id = 3) const uint DEPTH = 64;
layout(constant_id = 4) const uint PARTS = 1;
layout(constant_id = 5) const bool CONVOLUTION = false;
layout(constant_id = 6) const bool HAS_BIAS = false;
layout(constant_id = 7) const bool HAS_IMAGE_BIAS = false;
layout(constant_id = 8) const bool HAS_RESIDUAL = false;
layout(constant_id = 9) const bool WIDE = false;

layout(set = 0, binding = 0) readonly buffer A { uvec4 a[]; };
layout(set = 0, binding = 1) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Bias { float16_t bias[]; };
layout(set = 0, binding = 3) readonly buffer ImageBias { float16_t image_bias[]; };
layout(set = 0, binding = 4) readonly buffer Residual { float16_t residual[]; };
layout(set = 0, binding = 5) buffer Y { float16_t y[]; };
layout(set = 0, binding = 5) buffer WideY { float wide_y[]; };

// The numbers of product_params.wgsl.
layout(push_constant) uniform Params {
    uint m, n, k, a, w, bias, image_bias, image_bias_row, residual, y, rows;
    uint height, width, channels, kernel_width, stride, pad_top, pad_left, width_out, first;
} p;

// Chunks of eight elements of a row of a tile, and of a row in workgroup memory: one is padding against conflicts of banks.
const uint CHUNKS = DEPTH / 8;
const uint ROW = CHUNKS + 1;
// Rows of a tile that the workgroup reads at once, and the loads of a thread.
const uint LOAD_ROWS = THREADS / CHUNKS;
const uint LOADS_A = TILE_ROWS / LOAD_ROWS;
const uint LOADS_W = TILE_COLUMNS / LOAD_ROWS;

shared uvec4 tile_a[TILE_ROWS * ROW];
shared uvec4 tile_w[TILE_COLUMNS * ROW];

#define MATRIX(TYPE, ROWS, COLUMNS, USE) coopmat<TYPE, gl_ScopeWorkgroup, ROWS, COLUMNS, gl_MatrixUse##USE>
#define CLAMPED gl_CooperativeMatrixClampModeConstantNV

// The rows of the tiles that this thread reads: of a matrix, the chunk with which it begins; of a convolution, the first row of the
// image, and the row and column of the window's first pixel.
uint start_a[LOADS_A];
uint start_w[LOADS_W];
ivec2 window[LOADS_A];
// The pixel of the windows, and the channel, of the next elements.
int tap_row = 0;
int tap_column = 0;
uint channel = 0;
// The next elements of the tiles.
uvec4 next_a[LOADS_A];
uvec4 next_w[LOADS_W];

// Reads this thread's chunks of the tiles at element `depth` of k, and moves to the windows' next elements. A is zero from `end` on, W
// may have any values there.
void fetch(const in uint depth, const in uint end) {
    const bool exists = depth < end;
    [[unroll]] for (uint i = 0; i < LOADS_A; i++) {
        next_a[i] = uvec4(0);
        if (CONVOLUTION) {
            const int row = window[i].x + tap_row;
            const int column = window[i].y + tap_column;
            if (exists && row >= 0 && column >= 0 && row < int(p.height) && column < int(p.width)) {
                next_a[i] = a[(p.a + ((start_a[i] + row) * p.width + column) * p.channels + channel) / 8];
            }
        } else if (exists) {
            next_a[i] = a[start_a[i] + depth / 8];
        }
    }
    [[unroll]] for (uint i = 0; i < LOADS_W; i++) {
        next_w[i] = w[exists ? start_w[i] + depth / 8 : 0];
    }
    if (CONVOLUTION) {
        channel += DEPTH;
        while (channel >= p.channels) {
            channel -= p.channels;
            tap_column++;
            if (tap_column == int(p.kernel_width)) {
                tap_column = 0;
                tap_row++;
            }
        }
    }
}

// An element with what is added to its row and column.
float with_biases(const in uint row, const in uint column, const in float sum, const in uint first_row, const in uint first_column) {
    const uint c = min(first_column + column, p.n - 1);
    float value = sum;
    if (HAS_BIAS) {
        value += float(bias[p.bias + c]);
    }
    if (HAS_IMAGE_BIAS) {
        const uint image = min(first_row + row, p.m - 1) / p.rows;
        value += float(image_bias[p.image_bias + image * p.image_bias_row + c]);
    }
    return value;
}

void main() {
    const uint lane = gl_LocalInvocationIndex;
    const uint first_row = (p.first + gl_WorkGroupID.z * 65535 + gl_WorkGroupID.y) * TILE_ROWS;
    const uint tiles = (p.n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const uint first_column = gl_WorkGroupID.x % tiles * TILE_COLUMNS;
    const uint part = gl_WorkGroupID.x / tiles;
    const uint load_row = lane / CHUNKS;
    const uint load_depth = lane % CHUNKS * 8;
    // The elements of k of this part.
    const uint steps = (p.k + DEPTH - 1) / DEPTH;
    const uint begin = steps * part / PARTS * DEPTH;
    const uint end = min(p.k, steps * (part + 1) / PARTS * DEPTH);
    [[unroll]] for (uint i = 0; i < LOADS_A; i++) {
        const uint row = min(first_row + load_row + i * LOAD_ROWS, p.m - 1);
        start_a[i] = (p.a + row * p.k) / 8;
        if (CONVOLUTION) {
            const uint pixel = row % p.rows;
            start_a[i] = row / p.rows * p.height;
            window[i] = ivec2(pixel / p.width_out * p.stride - p.pad_top, pixel % p.width_out * p.stride - p.pad_left);
        }
    }
    [[unroll]] for (uint i = 0; i < LOADS_W; i++) {
        start_w[i] = (p.w + min(first_column + load_row + i * LOAD_ROWS, p.n - 1) * p.k) / 8;
    }
    if (CONVOLUTION) {
        const uint tap = (begin + load_depth) / p.channels;
        tap_row = int(tap / p.kernel_width);
        tap_column = int(tap % p.kernel_width);
        channel = (begin + load_depth) % p.channels;
    }
    MATRIX(float, TILE_ROWS, TILE_COLUMNS, Accumulator) sums = MATRIX(float, TILE_ROWS, TILE_COLUMNS, Accumulator)(0.0);
    fetch(begin + load_depth, end);
    [[dont_unroll]] for (uint depth = begin; depth < end; depth += DEPTH) {
        barrier();
        [[unroll]] for (uint i = 0; i < LOADS_A; i++) {
            tile_a[(load_row + i * LOAD_ROWS) * ROW + load_depth / 8] = next_a[i];
        }
        [[unroll]] for (uint i = 0; i < LOADS_W; i++) {
            tile_w[(load_row + i * LOAD_ROWS) * ROW + load_depth / 8] = next_w[i];
        }
        barrier();
        fetch(depth + DEPTH + load_depth, end);
        MATRIX(float16_t, TILE_ROWS, DEPTH, A) rows;
        MATRIX(float16_t, DEPTH, TILE_COLUMNS, B) columns;
        coopMatLoad(rows, tile_a, 0, ROW, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(columns, tile_w, 0, ROW, gl_CooperativeMatrixLayoutColumnMajor);
        sums = coopMatMulAdd(rows, columns, sums);
    }
    // Compilers write eight elements at once if they see that rows begin at multiples of eight.
    const uint n = p.n & ~7u;
    const uint at_y = (p.y + part * p.m * p.n) & ~7u;
    tensorLayoutNV<2, CLAMPED> result = createTensorLayoutNV(2, CLAMPED);
    result = setTensorLayoutDimensionNV(result, p.m, n);
    result = setTensorLayoutStrideNV(result, n, 1);
    result = sliceTensorLayoutNV(result, first_row, TILE_ROWS, first_column, TILE_COLUMNS);
    if (PARTS == 1 && (HAS_BIAS || HAS_IMAGE_BIAS)) {
        coopMatPerElementNV(sums, sums, with_biases, first_row, first_column);
    }
    if (PARTS == 1 && HAS_RESIDUAL) {
        MATRIX(float16_t, TILE_ROWS, TILE_COLUMNS, Accumulator) added;
        coopMatLoadTensorNV(added, residual, p.residual & ~7u, result);
        sums += MATRIX(float, TILE_ROWS, TILE_COLUMNS, Accumulator)(added);
    }
    if (WIDE) {
        coopMatStoreTensorNV(sums, wide_y, at_y, result);
    } else {
        coopMatStoreTensorNV(MATRIX(float16_t, TILE_ROWS, TILE_COLUMNS, Accumulator)(sums), y, at_y, result);
    }
}
