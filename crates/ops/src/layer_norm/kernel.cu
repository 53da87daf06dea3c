// Layer normalization with one warp for each row: first the mean, then the squared differences from it, so that nothing
// cancels.

#include "element.cuh"

namespace {

// Rows of at most MAX vectors a lane: read once, kept in registers.
template <typename T, int MAX>
__device__ __forceinline__ void layer_norm(const T* x, const T* gamma, const T* beta, T* y, int rows, int c, float eps) {
  constexpr int N = kiln::LANES<T>;
  using V = kiln::Vector<T, N>;
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int vectors = c / N;
  const size_t start = static_cast<size_t>(row) * c;
  V values[MAX];
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    if (lane + 32 * j >= vectors) continue;
    values[j] = V::load(x + start + (lane + 32 * j) * N);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += values[j].get(i);
  }
  const float mean = kiln::warp_sum(sum) / c;
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    if (lane + 32 * j >= vectors) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float d = values[j].get(i) - mean;
      squares += d * d;
    }
  }
  const float inverse = 1.0f / sqrtf(kiln::warp_sum(squares) / c + eps);
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    const int channel = (lane + 32 * j) * N;
    if (lane + 32 * j >= vectors) continue;
    const V scale = V::load(gamma + channel), shift = V::load(beta + channel);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[j].set(i, (values[j].get(i) - mean) * inverse * scale.get(i) + shift.get(i));
    }
    values[j].store(y + start + channel);
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
