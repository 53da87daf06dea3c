// Products of few rows: y[r, column] = sum over i of x[r, i] weight[column, i], + bias[column] + residual[r, column].
// A warp sums one column of all rows, so every weight is read once.
#include "element.cuh"

namespace {

constexpr int ROWS = 4;

template <typename T, int N>
__device__ __forceinline__ void sum(const T* x, const T* weight, int m, int k, int lane, float (&sums)[ROWS]) {
  using kiln::Vector;
#pragma unroll 8  // up to 2,048 elements of a row are on their way at once
  for (int i = lane * N; i < k; i += 32 * N) {
    const auto w = Vector<T, N>::load(weight + i);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      if (row >= m) break;
      const auto v = Vector<T, N>::load(x + static_cast<size_t>(row) * k + i);
#pragma unroll
      for (int j = 0; j < N; j++) sums[row] += w.get(j) * v.get(j);
    }
  }
}

template <typename T>
__device__ void few_rows(const T* x, const T* weight, const T* bias, const T* residual, T* y, int m, int n, int k,
                         int vectored) {
  const int lane = threadIdx.x % 32;
  const int column = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (column >= n) return;
  const T* weights = weight + static_cast<size_t>(column) * k;
  float sums[ROWS] = {};
  if (vectored) {
    sum<T, kiln::LANES<T>>(x, weights, m, k, lane, sums);
  } else {
    sum<T, 1>(x, weights, m, k, lane, sums);
  }
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    float value = sums[row];
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (lane == row && row < m) {
      const size_t at = static_cast<size_t>(row) * n + column;
      if (bias) value += kiln::to_f32(bias[column]);
      if (residual) value += kiln::to_f32(residual[at]);
      y[at] = kiln::from_f32<T>(value);
    }
  }
}

}  // namespace

#define INSTANCE(T, NAME)                                                                                          \
  extern "C" __global__ void linear_few_rows_##NAME(const T* x, const T* weight, const T* bias, const T* residual, \
                                                    T* y, int m, int n, int k, int vectored) {                     \
    few_rows<T>(x, weight, bias, residual, y, m, n, k, vectored);                                                  \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
