// Rounding to e4m3 (arXiv 2209.05433) by a scale.
#pragma once

#include <cuda_fp8.h>

#include "element.cuh"

namespace kiln::e4m3 {

constexpr float MOST = 448.0f;    // the largest number
constexpr float LEAST = 1e-30f;   // as in fp8/mod.rs

// What values of at most this magnitude are multiplied by, and what undoes it.
__device__ __forceinline__ float inverse_of(float most) { return most >= LEAST ? MOST / most : 0.0f; }
__device__ __forceinline__ float scale_of(float most) { return most >= LEAST ? most / MOST : 0.0f; }

// Eight neighbors. Where the largest magnitude is infinite, `inverse` is 0 and the scale infinite: all results are NaN.
__device__ __forceinline__ void round(const float (&values)[8], float inverse, unsigned char* to) {
  uint2 packed;
  __nv_fp8x2_storage_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = make_float2(values[2 * i] * inverse, values[2 * i + 1] * inverse);
    pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
  }
  __builtin_memcpy(&packed, pairs, 8);
  *reinterpret_cast<uint2*>(to) = packed;
}
template <typename T> __device__ __forceinline__ void round(const Vector<T, 8>& v, float inverse, unsigned char* to) {
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = v.get(i);
  round(values, inverse, to);
}

__device__ __forceinline__ float most_of(const float (&values)[8], float most) {
#pragma unroll
  for (int i = 0; i < 8; ++i) most = fmaxf(most, fabsf(values[i]));
  return most;
}
template <typename T> __device__ __forceinline__ float most_of(const Vector<T, 8>& v, float most) {
#pragma unroll
  for (int i = 0; i < 8; ++i) most = fmaxf(most, fabsf(v.get(i)));
  return most;
}

__device__ __forceinline__ float warp_most(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
  return x;
}

// The largest of all threads of a block, in all of them. `of_warps` may be used again after the next barrier.
__device__ __forceinline__ float block_most(float x, float (&of_warps)[32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  x = warp_most(x);
  if (lane == 0) of_warps[warp] = x;
  __syncthreads();
  return warp_most(lane < (blockDim.x + 31) / 32 ? of_warps[lane] : 0.0f);
}

}  // namespace kiln::e4m3
