// Layer normalization with one warp for each row.

#include "row.cuh"

namespace {

// Rows of at most MAX vectors a lane: read once, kept in registers.
template <typename T, int MAX>
__device__ __forceinline__ void layer_norm(const T* x, const T* gamma, const T* beta, T* y, int rows, int c, float eps) {
  using Row = kiln::Row<T, MAX>;
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (row >= rows) return;
  const size_t start = static_cast<size_t>(row) * c;
  const Row normal(x + start, c, eps);
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    if (!normal.has(j, c)) continue;
    float results[Row::N];
    normal.affine(j, gamma, beta, results);
    typename Row::V rounded;
#pragma unroll
    for (int i = 0; i < Row::N; ++i) rounded.set(i, results[i]);
    rounded.store(y + start + normal.channel(j));
  }
}

// Rows of any length and alignment.
template <typename T>
__device__ __forceinline__ void any(const T* x, const T* gamma, const T* beta, T* y, int rows, int c, float eps) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += static_cast<size_t>(row) * c;
  y += static_cast<size_t>(row) * c;
  float sum = 0.0f, squares = 0.0f;
  for (int i = lane; i < c; i += 32) sum += kiln::to_f32(x[i]);
  const float mean = kiln::warp_sum(sum) / c;
  for (int i = lane; i < c; i += 32) {
    const float d = kiln::to_f32(x[i]) - mean;
    squares += d * d;
  }
  const float inverse = 1.0f / sqrtf(kiln::warp_sum(squares) / c + eps);
  for (int i = lane; i < c; i += 32) {
    const float normal = (kiln::to_f32(x[i]) - mean) * inverse;
    y[i] = kiln::from_f32<T>(normal * kiln::to_f32(gamma[i]) + kiln::to_f32(beta[i]));
  }
}

}  // namespace

#define ARGUMENTS(T) const T *x, const T *gamma, const T *beta, T *y, int rows, int c, float eps
#define INSTANCE(T, NAME)                                                                                       \
  extern "C" __global__ void layer_norm_any_##NAME(ARGUMENTS(T)) { any<T>(x, gamma, beta, y, rows, c, eps); }    \
  extern "C" __global__ void layer_norm_2_##NAME(ARGUMENTS(T)) { layer_norm<T, 2>(x, gamma, beta, y, rows, c, eps); } \
  extern "C" __global__ void layer_norm_3_##NAME(ARGUMENTS(T)) { layer_norm<T, 3>(x, gamma, beta, y, rows, c, eps); } \
  extern "C" __global__ void layer_norm_5_##NAME(ARGUMENTS(T)) { layer_norm<T, 5>(x, gamma, beta, y, rows, c, eps); } \
  extern "C" __global__ void layer_norm_10_##NAME(ARGUMENTS(T)) { layer_norm<T, 10>(x, gamma, beta, y, rows, c, eps); }
KILN_FOR_EVERY_TYPE(INSTANCE)
