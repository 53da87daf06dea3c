// Rounding to bytes by a scale: to e4m3 numbers (arXiv 2209.05433), and to signed integers.
#pragma once

#include <cuda_fp8.h>

#include "element.cuh"

namespace kiln::w8a8 {

constexpr float LEAST = 1e-30f; // as in w8a8/number.rs

struct E4m3 {
  static constexpr float MOST = 448.0f; // the largest number

  __device__ static __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }

  __device__ static __forceinline__ uint2 pack(const float (&values)[8]) {
    uint2 packed;
    __nv_fp8x2_storage_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = make_float2(values[2 * i], values[2 * i + 1]);
      pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    }
    __builtin_memcpy(&packed, pairs, 8);
    return packed;
  }
};

struct Int8 {
  static constexpr float MOST = 127.0f;

  // Of magnitudes, by their bits: a NaN is the largest. It has no byte, so that the scale has to keep it.
  __device__ static __forceinline__ float larger(float a, float b) {
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
  }

  __device__ static __forceinline__ uint2 pack(const float (&values)[8]) {
    uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i / 4] |= (__float2int_rn(values[i]) & 0xffu) << (i % 4 * 8);
    return make_uint2(words[0], words[1]);
  }
};

// What values of at most this magnitude are multiplied by, and what undoes it. Where the largest magnitude is infinite or NaN,
// the scale is, and all results are NaN.
template <typename Number> __device__ __forceinline__ float inverse_of(float most) {
  return most < LEAST ? 0.0f : Number::MOST / most;
}
template <typename Number> __device__ __forceinline__ float scale_of(float most) {
  return most < LEAST ? 0.0f : most / Number::MOST;
}

// Eight neighbors.
template <typename Number>
__device__ __forceinline__ void round(const float (&values)[8], float inverse, unsigned char* to) {
  float scaled[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) scaled[i] = values[i] * inverse;
  *reinterpret_cast<uint2*>(to) = Number::pack(scaled);
}
template <typename Number, typename T>
__device__ __forceinline__ void round(const Vector<T, 8>& v, float inverse, unsigned char* to) {
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = v.get(i);
  round<Number>(values, inverse, to);
}

template <typename Number> __device__ __forceinline__ float most_of(const float (&values)[8], float most) {
#pragma unroll
  for (int i = 0; i < 8; ++i) most = Number::larger(most, fabsf(values[i]));
  return most;
}
template <typename Number, typename T> __device__ __forceinline__ float most_of(const Vector<T, 8>& v, float most) {
#pragma unroll
  for (int i = 0; i < 8; ++i) most = Number::larger(most, fabsf(v.get(i)));
  return most;
}

template <typename Number> __device__ __forceinline__ float warp_most(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = Number::larger(x, __shfl_xor_sync(~0u, x, distance));
  return x;
}

// The largest of all threads of a block, in all of them. `of_warps` may be used again after the next barrier.
template <typename Number> __device__ __forceinline__ float block_most(float x, float (&of_warps)[32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  x = warp_most<Number>(x);
  if (lane == 0) of_warps[warp] = x;
  __syncthreads();
  return warp_most<Number>(lane < (blockDim.x + 31) / 32 ? of_warps[lane] : 0.0f);
}

}  // namespace kiln::w8a8
