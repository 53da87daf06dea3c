// Products of bytes by warps' tensor cores: linear layers and convolutions, on all GPUs since compute capability 7.5 (signed
// integers) and 8.9 (e4m3).
//
// A block computes SIDE pixels by SIDE output channels. For each tap and each 64 input channels it copies the pixels that the tap
// reads, and rows of the weight, to shared memory, two such parts ahead. Pixels and channels out of bounds are zeros. A row of a
// part is four chunks of 16 bytes, whose places depend on the row, so that the rows that a tile loads lie in different banks.
//
// The order of a sum depends on the shape alone, not on SIDE.
#pragma once

#include "byte_rounding.cuh"
#include "image_product.cuh"
#include "tile_copy.cuh"
#include "tile_product.cuh"

namespace kiln::w8a8 {

// Sums of integers are exact in 32 bits: a row has fewer than 2^17 products.
template <typename Number> struct Sum;
template <> struct Sum<E4m3> { using Type = float; static constexpr bool IS_EXACT = false; };
template <> struct Sum<Int8> { using Type = int; static constexpr bool IS_EXACT = true; };

template <typename Number, typename T, int SIDE> struct TileProduct {
  using Accumulator = typename Sum<Number>::Type;
  static constexpr bool IS_EXACT = Sum<Number>::IS_EXACT;
  static constexpr int COLUMNS = 32, ROWS = SIDE / 2;         // of a warp
  static constexpr int THREADS = 2 * (SIDE / COLUMNS) * 32;
  static constexpr int BYTES = 64, CHUNKS = BYTES / 16;       // of a row of a part
  static constexpr int PARTS = 3;
  static constexpr int ROWS_OF_THREAD = SIDE * CHUNKS / THREADS, ROW_STEP = THREADS / CHUNKS;
  static constexpr int M = ROWS / 16, N = COLUMNS / 8;        // tiles of a warp
  static constexpr int TILES_TOGETHER = 8;                    // rows of blocks that share the columns of a weight in the L2 cache

  static_assert(PARTS * 2 * SIDE * BYTES <= 48 << 10, "more than a kernel has without asking");

  struct Shared {
    alignas(128) unsigned char x[PARTS][SIDE * BYTES], weight[PARTS][SIDE * BYTES];
  };

  // The offset of a chunk.
  __device__ static __forceinline__ int place(int row, int chunk) {
    return row * BYTES + ((chunk ^ (row >> 1 & 3)) << 4);
  }

  // The part that is copied next, and the pixels and rows of this thread.
  struct Copies {
    const unsigned char *x[ROWS_OF_THREAD], *weight[ROWS_OF_THREAD];
    int pixel_x[ROWS_OF_THREAD], pixel_y[ROWS_OF_THREAD]; // far outside of the image past its last pixel
    bool has_row[ROWS_OF_THREAD];
    int dx, dy, tap, channel;

    __device__ __forceinline__ Copies(const unsigned char* from, const unsigned char* weights, const ImageProduct& p, int pixel,
                                      int column)
        : dx(-p.pad_left), dy(-p.pad_above), tap(0), channel(0) {
      const int first = threadIdx.x / CHUNKS;
#pragma unroll
      for (int i = 0; i < ROWS_OF_THREAD; ++i) {
        const int at = pixel + first + i * ROW_STEP, row = column + first + i * ROW_STEP;
        const bool inside = at < p.b * p.h * p.w;
        pixel_x[i] = inside ? at % p.w : -(1 << 20);
        pixel_y[i] = at / p.w % p.h;
        x[i] = from + static_cast<size_t>(inside ? at : 0) * p.c;
        has_row[i] = row < p.n;
        weight[i] = weights + static_cast<size_t>(has_row[i] ? row : 0) * p.taps * p.c;
      }
    }

    __device__ __forceinline__ void copy(Shared& shared, int part, const ImageProduct& p) {
      const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS, c = channel + chunk * 16;
      const int64_t shift = (static_cast<int64_t>(dy) * p.w + dx) * p.c + c;
      const bool has_channel = c < p.c && tap < p.taps;
#pragma unroll
      for (int i = 0; i < ROWS_OF_THREAD; ++i) {
        const int to = place(first + i * ROW_STEP, chunk), at_x = pixel_x[i] + dx, at_y = pixel_y[i] + dy;
        const bool inside = has_channel && at_x >= 0 && at_x < p.w && at_y >= 0 && at_y < p.h;
        copy_async(shared_address(shared.x[part] + to), inside ? x[i] + shift : x[i], inside);
        const bool is_weight = has_channel && has_row[i];
        const unsigned char* from = is_weight ? weight[i] + static_cast<size_t>(tap) * p.c + c : weight[i];
        copy_async(shared_address(shared.weight[part] + to), from, is_weight);
      }
      channel += BYTES;
      if (channel < p.c) return;
      channel = 0, ++tap, ++dx;
      if (dx == p.taps_in_row - p.pad_left) dx = -p.pad_left, ++dy;
    }
  };

  __device__ static __forceinline__ void run(const unsigned char* x, const unsigned char* weight, const T* residual, T* y,
                                             const ImageProduct& p) {
    __shared__ Shared shared;
    // Blocks that run together read few different rows and columns.
    const int of_group = TILES_TOGETHER * p.tiles_n, first_tile = blockIdx.x / of_group * TILES_TOGETHER;
    const int together = min(TILES_TOGETHER, p.tiles_x - first_tile), rest = blockIdx.x % of_group;
    const int pixel = (first_tile + rest % together) * SIDE, column = rest / together * SIDE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row_of_warp = warp % 2 * ROWS, column_of_warp = warp / 2 * COLUMNS;

    Copies copies(x, weight, p, pixel, column);
    const int parts = p.taps * ((p.c + BYTES - 1) / BYTES);
    for (int i = 0; i < PARTS - 1; ++i) {
      if (i < parts) copies.copy(shared, i, p);
      commit_copies();
    }
    Accumulator sums[M][N][4] = {};
    float totals[IS_EXACT ? 1 : M][N][4] = {};
    for (int i = 0; i < parts; ++i) {
      wait_copies<PARTS - 2>();
      __syncthreads(); // part i is here, and all threads have read part i - 1, whose place is the next one's
      if (i + PARTS - 1 < parts) copies.copy(shared, (i + PARTS - 1) % PARTS, p);
      commit_copies();
      multiply(sums, shared.x[i % PARTS], shared.weight[i % PARTS], row_of_warp, column_of_warp, lane);
      if constexpr (!IS_EXACT) {
        if (i % (PRODUCTS_OF_SUM / BYTES) == PRODUCTS_OF_SUM / BYTES - 1 || i == parts - 1) add(totals, sums);
      }
    }
    const int first_row = pixel + row_of_warp + lane / 4, first_column = column + column_of_warp + lane % 4 * 2;
    if constexpr (IS_EXACT) {
      finish(sums, residual, y, p, first_row, first_column);
    } else {
      finish(totals, residual, y, p, first_row, first_column);
    }
  }

  __device__ static __forceinline__ void multiply(Accumulator (&sums)[M][N][4], const unsigned char* x,
                                                  const unsigned char* weight, int row, int column, int lane) {
#pragma unroll
    for (int k = 0; k < CHUNKS / 2; ++k) {
      uint32_t left[M][4], right[N / 2][4];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        load_tiles(left[m], shared_address(x + place(row + m * 16 + lane % 16, k * 2 + lane / 16)));
      }
#pragma unroll
      for (int n = 0; n < N / 2; ++n) {
        const int of_lane = lane / 16 * 8 + lane % 8;
        load_tiles(right[n], shared_address(weight + place(column + n * 16 + of_lane, k * 2 + lane / 8 % 2)));
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          multiply_bytes(sums[m][n], left[m], right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
  }

  // Moves the sums to the totals.
  __device__ static __forceinline__ void add(float (&totals)[IS_EXACT ? 1 : M][N][4], Accumulator (&sums)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < (IS_EXACT ? 0 : M); ++m) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) totals[m][n][i] += sums[m][n][i], sums[m][n][i] = 0;
      }
    }
  }

  // Scales the sums, adds what is to be added, and stores the result.
  template <typename S>
  __device__ static __forceinline__ void finish(const S (&sums)[M][N][4], const T* residual, T* y, const ImageProduct& p,
                                                int first_row, int first_column) {
    using Pair = Vector<T, 2>;
    const int pixels_of_image = p.h * p.w, pixels = p.b * pixels_of_image;
    float2 scale[N], bias[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int column = first_column + n * 8; // even, as p.n is: a pair is inside or outside
      scale[n] = bias[n] = make_float2(0.0f, 0.0f);
      if (column >= p.n) continue;
      scale[n] = make_float2(p.weight_scales[column], p.weight_scales[column + 1]);
      if (p.bias != nullptr) {
        const Pair pair = Pair::load(static_cast<const T*>(p.bias) + column);
        bias[n] = make_float2(pair.get(0), pair.get(1));
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + m * 16 + half * 8;
        if (row >= pixels) continue;
        const int image = row / pixels_of_image;
        const float of_row = p.x_scales[p.scales_by_pixel ? row : image];
        const T* of_image = static_cast<const T*>(p.image_bias) + static_cast<size_t>(image) * p.image_bias_stride;
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const int column = first_column + n * 8;
          if (column >= p.n) continue;
          float2 sum = make_float2(static_cast<float>(sums[m][n][2 * half]) * of_row * scale[n].x + bias[n].x,
                                   static_cast<float>(sums[m][n][2 * half + 1]) * of_row * scale[n].y + bias[n].y);
          if (p.image_bias != nullptr) {
            const Pair pair = Pair::load(of_image + column);
            sum.x += pair.get(0), sum.y += pair.get(1);
          }
          const size_t at = static_cast<size_t>(row) * p.n + column;
          if (p.has_residual) {
            const Pair pair = Pair::load(residual + at);
            sum.x += pair.get(0), sum.y += pair.get(1);
          }
          Pair result;
          result.set(0, sum.x), result.set(1, sum.y);
          result.store(y + at);
        }
      }
    }
  }
};

}  // namespace kiln::w8a8
