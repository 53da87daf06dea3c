// A normalized row, in the registers of a warp: first the mean, then the squared differences from it, so that nothing cancels.
#pragma once

#include "element.cuh"

namespace kiln {

// A row of c elements: at most MAX vectors of 16 bytes a lane, read once.
template <typename T, int MAX> struct Row {
  static constexpr int N = LANES<T>;
  using V = Vector<T, N>;
  V values[MAX];
  float mean, inverse;

  __device__ __forceinline__ static int channel(int j) { return (static_cast<int>(threadIdx.x % 32) + 32 * j) * N; }
  __device__ __forceinline__ static bool has(int j, int c) { return channel(j) < c; }

  __device__ __forceinline__ Row(const T* x, int c, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < MAX; ++j) {
      if (!has(j, c)) continue;
      values[j] = V::load(x + channel(j));
#pragma unroll
      for (int i = 0; i < N; ++i) sum += values[j].get(i);
    }
    mean = warp_sum(sum) / c;
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < MAX; ++j) {
      if (!has(j, c)) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float d = values[j].get(i) - mean;
        squares += d * d;
      }
    }
    inverse = 1.0f / sqrtf(warp_sum(squares) / c + eps);
  }

  // The results of vector `j`.
  __device__ __forceinline__ void affine(int j, const T* gamma, const T* beta, float (&y)[N]) const {
    const V scale = V::load(gamma + channel(j)), shift = V::load(beta + channel(j));
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = (values[j].get(i) - mean) * inverse * scale.get(i) + shift.get(i);
  }
};

}  // namespace kiln
