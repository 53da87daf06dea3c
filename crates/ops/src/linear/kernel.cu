// Products of few rows: y[r, column] = sum over i of x[r, i] weight[column, i], + bias[column] + residual[r, column]. A
// warp sums one column of all rows, so every weight is read once.
#include "element.cuh"

namespace {

constexpr int ROWS = 4;
// Loads that a thread has in flight: 5 x 32 x 8 = 1,280 elements of 16 bits, a time embedding.
constexpr int BATCH = 5;

template <typename T, int N>
__device__ __forceinline__ void sum(const T* x, const T* weight, int m, int k, int lane, float (&sums)[ROWS]) {
  using kiln::Vector;
  for (int first = lane * N; first < k; first += BATCH * 32 * N) {
    Vector<T, N> w[BATCH];
#pragma unroll
    for (int part = 0; part < BATCH; part++) {
      const int i = first + part * 32 * N;
      if (i < k) w[part] = Vector<T, N>::load(weight + i);
    }
#pragma unroll
    for (int part = 0; part < BATCH; part++) {
      const int i = first + part * 32 * N;
      if (i >= k) break;
#pragma unroll
      for (int row = 0; row < ROWS; row++) {
        if (row >= m) break;
        const auto v = Vector<T, N>::load(x + static_cast<size_t>(row) * k + i);
#pragma unroll
        for (int j = 0; j < N; j++) sums[row] += w[part].get(j) * v.get(j);
      }
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
    float value = kiln::warp_sum(sums[row]);
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
