// Shared parts of the attention kernels: arguments, the softmax of a tile of scores, and the output of results.
//
// A tile of scores or results has the register layout of tensor cores: of each 16 rows by 8 columns, thread `lane`
// holds row lane / 4, columns 2 (lane % 4) and the next, then the same columns of row lane / 4 + 8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "element.cuh"

namespace kiln::attention {

// Has the memory layout of `Arguments` in cuda.rs.
struct Arguments {
  const void* q;    // (b, s, num_heads, head_dim)
  const void* k;    // (b, t, num_heads, head_dim)
  const void* v;    // as k
  void* out;        // (b, s, num_heads * head_dim), contiguous
  int64_t q_row, q_batch;  // strides in elements; multiples of 8, as are the addresses / 2
  int64_t k_row, k_batch;
  int64_t v_row, v_batch;
  int s, t;
  int head_dim;     // a multiple of 8
  int causal;
  float scale;      // the scale of the scores for powers of two: log2(e) / sqrt(head_dim)
  const float* lengths;  // the keys that each image has, the first ones: (b), or null for all

  // With the keys of the block's image as `t`.
  __device__ __forceinline__ Arguments of_image() const {
    Arguments own = *this;
    if (lengths) own.t = min(max(static_cast<int>(lengths[blockIdx.z]), 1), t);
    return own;
  }
};
static_assert(sizeof(Arguments) == 112 && alignof(Arguments) == 8, "cuda.rs has another layout");
static_assert(offsetof(Arguments, q_row) == 32 && offsetof(Arguments, s) == 80, "cuda.rs has another layout");
static_assert(offsetof(Arguments, scale) == 96 && offsetof(Arguments, lengths) == 104, "cuda.rs has another layout");

// Groups of heads and a bias. Has the memory layout of `Grouping` in cuda/grouped.rs.
struct Grouping {
  const void* bias;    // (b, num_heads, s, t), or null
  int64_t bias_batch;  // elements from an image's bias to the next one's, 0 for one of all images
  int bias_row;        // elements from a row of the bias to the next one: t of all images
  float bias_factor;   // of the bias, before scores are multiplied by their scale
  int group;           // heads of queries for each head of keys and values
};
static_assert(sizeof(Grouping) == 32 && offsetof(Grouping, bias_factor) == 20, "cuda/grouped.rs has another layout");

// The head of a block, with the ranges that the block reads and writes. Grid: (query tiles, heads, batch).
template <typename T> struct Head {
  const T *q, *k, *v;
  T* out;
  int out_row;

  // `group` heads of queries share a head of keys and values.
  __device__ explicit Head(const Arguments& x, int group = 1) {
    const int64_t head = int64_t(blockIdx.y) * x.head_dim, b = blockIdx.z;
    const int64_t shared = int64_t(blockIdx.y / group) * x.head_dim;
    q = static_cast<const T*>(x.q) + b * x.q_batch + head;
    k = static_cast<const T*>(x.k) + b * x.k_batch + shared;
    v = static_cast<const T*>(x.v) + b * x.v_batch + shared;
    out_row = gridDim.y * x.head_dim;
    out = static_cast<T*>(x.out) + b * x.s * out_row + head;
  }
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers as a pair of T, the first in the low half.
template <typename T> __device__ __forceinline__ uint32_t pack(float a, float b);
template <> __device__ __forceinline__ uint32_t pack<__half>(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Reduces over the four threads that share a row.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Sets masked scores to minus infinity. `row` and `key` are those of the thread's first score.
template <int N> __device__ __forceinline__ void mask(float (&scores)[N][4], int row, int key, const Arguments& x) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = key + n * 8 + i % 2;
      if (at >= x.t || (x.causal && at > row + i / 2 * 8)) scores[n][i] = -INFINITY;
    }
  }
}
// Adds a bias to scores. `row` and `key` are those of the thread's first score.
template <typename T, int N>
__device__ __forceinline__ void add_bias(float (&scores)[N][4], int row, int key, const Arguments& x,
                                         const Grouping& more) {
  const int64_t head = blockIdx.z * more.bias_batch + static_cast<int64_t>(blockIdx.y) * x.s * more.bias_row;
  const T* bias = static_cast<const T*>(more.bias) + head;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = row + i / 2 * 8, at = key + n * 8 + i % 2;
      if (query < x.s && at < x.t) {
        scores[n][i] += more.bias_factor * to_f32(bias[static_cast<int64_t>(query) * more.bias_row + at]);
      }
    }
  }
}

template <int N> __device__ __forceinline__ float tile_max(const float (&scores)[N][4], int half) {
  float a = scores[0][half * 2], b = scores[0][half * 2 + 1];
#pragma unroll
  for (int n = 1; n < N; ++n) {
    a = fmaxf(a, scores[n][half * 2]);
    b = fmaxf(b, scores[n][half * 2 + 1]);
  }
  return fmaxf(a, b);
}

// Converts scores to 2^(scale score - shift). Returns this thread's part of the sum of a row.
template <int N>
__device__ __forceinline__ float exponentials(float (&scores)[N][4], int half, float scale, float shift) {
  float a = 0, b = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    a += scores[n][half * 2] = exp2_fast(fmaf(scores[n][half * 2], scale, -shift));
    b += scores[n][half * 2 + 1] = exp2_fast(fmaf(scores[n][half * 2 + 1], scale, -shift));
  }
  return a + b;
}

// The softmax's state of a thread's two rows (Milakov and Gimelshein, arXiv 1805.02867): the maximum score so far, and
// this thread's part of the sum of exponentials relative to it.
struct Softmax {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};

  // Adds a tile of scores, which become exponentials. The earlier sums are scaled by `shrink`. Returns whether any row
  // of the warp is scaled.
  template <int N> __device__ __forceinline__ bool take(float (&scores)[N][4], float scale, float (&shrink)[2]) {
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top = row_max(fmaxf(max[half], tile_max(scores, half)));
      grown |= top != max[half];
      shrink[half] = exp2_fast((max[half] - top) * scale);
      max[half] = top;
      sum[half] = sum[half] * shrink[half] + exponentials(scores, half, scale, top * scale);
    }
    return __any_sync(~0u, grown);
  }

  // The factor of the results at the end.
  __device__ __forceinline__ void normalizers(float (&by)[2]) const {
    by[0] = 1.0f / row_sum(sum[0]);
    by[1] = 1.0f / row_sum(sum[1]);
  }
};

template <int N> __device__ __forceinline__ void scale_rows(float (&tile)[N][4], const float (&by)[2]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    tile[n][0] *= by[0], tile[n][1] *= by[0];
    tile[n][2] *= by[1], tile[n][3] *= by[1];
  }
}

// Exponentials 16 k .. 16 k + 15 as the left operand of a product.
template <typename T, int N>
__device__ __forceinline__ void left_operand(uint32_t (&a)[4], const float (&tile)[N][4], int k) {
  a[0] = pack<T>(tile[2 * k][0], tile[2 * k][1]);
  a[1] = pack<T>(tile[2 * k][2], tile[2 * k][3]);
  a[2] = pack<T>(tile[2 * k + 1][0], tile[2 * k + 1][1]);
  a[3] = pack<T>(tile[2 * k + 1][2], tile[2 * k + 1][3]);
}

// The order of a row's 16-byte chunks in shared memory depends on the row, so that chunks of the same number in eight
// rows are in different banks. `ROW` is the length of a row in bytes, a multiple of 128.
template <int ROW> __device__ __forceinline__ int swizzled(int row, int chunk) {
  return row * ROW + ((chunk ^ (row & 7)) << 4);
}

// Stores a warp's tile of 16 rows to shared memory, swizzled. `chunk` is the tile's first chunk.
template <typename T, int ROW, int N>
__device__ __forceinline__ void stage(unsigned char* shared, const float (&tile)[N][4], int first_row, int chunk) {
  const int lane = threadIdx.x % 32, row = first_row + lane / 4;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    unsigned char* at = shared + lane % 4 * 4;
    *reinterpret_cast<uint32_t*>(at + swizzled<ROW>(row, chunk + n)) = pack<T>(tile[n][0], tile[n][1]);
    *reinterpret_cast<uint32_t*>(at + swizzled<ROW>(row + 8, chunk + n)) = pack<T>(tile[n][2], tile[n][3]);
  }
}

// Copies `rows` staged rows, from `first_row` on, to the rows of the result from `token` on, with `threads` threads.
template <typename T, int ROW>
__device__ __forceinline__ void unstage(const unsigned char* shared, const Head<T>& head, const Arguments& x,
                                        int first_row, int rows, int token, int thread, int threads) {
  const int chunks = x.head_dim / 8;
  for (int i = thread; i < rows * chunks; i += threads) {
    const int row = i / chunks, chunk = i % chunks;
    if (token + row >= x.s) break;
    *reinterpret_cast<uint4*>(head.out + int64_t(token + row) * head.out_row + chunk * 8) =
        *reinterpret_cast<const uint4*>(shared + swizzled<ROW>(first_row + row, chunk));
  }
}

}  // namespace kiln::attention
