// Rotary position embeddings with one warp for each head of a token.

#include "element.cuh"

namespace {

template <typename T>
__device__ __forceinline__ void rope(const T* x, int64_t x_batch, int64_t x_row, const T* gamma, const float* cos,
                                     const float* sin, T* y, int rows, int heads, int tokens, int head_dim,
                                     int by_image, int interleaved, float eps) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int head = row % heads, token = row / heads;  // of all images
  const int image = token / tokens, at = token % tokens;
  const int half = head_dim / 2;
  x += image * x_batch + at * x_row + static_cast<int64_t>(head) * head_dim;
  y += static_cast<int64_t>(row) * head_dim;
  const int64_t table = static_cast<int64_t>(by_image ? token : at) * half;
  float inverse = 1.0f;
  if (gamma) {
    float squares = 0.0f;
    for (int i = lane; i < head_dim; i += 32) {
      const float value = kiln::to_f32(x[i]);
      squares += value * value;
    }
    inverse = 1.0f / sqrtf(kiln::warp_sum(squares) / head_dim + eps);
  }
  for (int i = lane; i < half; i += 32) {
    const int first = interleaved ? 2 * i : i;
    const int second = interleaved ? first + 1 : first + half;
    float a = kiln::to_f32(x[first]), b = kiln::to_f32(x[second]);
    if (gamma) {
      a = a * inverse * kiln::to_f32(gamma[first]);
      b = b * inverse * kiln::to_f32(gamma[second]);
    }
    const float c = cos[table + i], s = sin[table + i];
    y[first] = kiln::from_f32<T>(a * c - b * s);
    y[second] = kiln::from_f32<T>(a * s + b * c);
  }
}

}  // namespace

#define INSTANCE(T, NAME)                                                                                          \
  extern "C" __global__ void rope_##NAME(const T* x, int64_t x_batch, int64_t x_row, const T* gamma,               \
                                         const float* cos, const float* sin, T* y, int rows, int heads, int tokens, \
                                         int head_dim, int by_image, int interleaved, float eps) {                 \
    rope<T>(x, x_batch, x_row, gamma, cos, sin, y, rows, heads, tokens, head_dim, by_image, interleaved, eps);     \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
