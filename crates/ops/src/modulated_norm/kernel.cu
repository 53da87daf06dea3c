// Modulated normalizations with one warp for each row.

#include "element.cuh"

namespace {

// The operands. `gamma`, `scale` and `shift` may be null. Rows `tokens i .. tokens (i + 1)` belong to image i.
template <typename T> struct Operands {
  const T *x, *gamma, *scale, *shift;
  T* y;
  int rows, c, tokens;
  int64_t scale_stride, shift_stride;
  float eps;
  int rms;
};

// The vectors of a row's image.
template <typename T> struct Vectors {
  const T *gamma, *scale, *shift;

  __device__ __forceinline__ Vectors(const Operands<T>& o, int row) {
    const int64_t image = row / o.tokens;
    gamma = o.gamma;
    scale = o.scale ? o.scale + image * o.scale_stride : nullptr;
    shift = o.shift ? o.shift + image * o.shift_stride : nullptr;
  }
};

// The results of a vector of a row.
template <typename T, typename V>
__device__ __forceinline__ V scaled(const Operands<T>& o, const Vectors<T>& vectors, const V& value, float mean, float inverse,
                                    int channel) {
  constexpr int N = kiln::LANES<T>;
  float results[N];
#pragma unroll
  for (int i = 0; i < N; ++i) results[i] = (value.get(i) - mean) * inverse;
  if (vectors.gamma) {
    const V by = V::load(vectors.gamma + channel);
#pragma unroll
    for (int i = 0; i < N; ++i) results[i] *= by.get(i);
  }
  if (vectors.scale) {
    const V by = V::load(vectors.scale + channel);
#pragma unroll
    for (int i = 0; i < N; ++i) results[i] *= 1.0f + by.get(i);
  }
  if (vectors.shift) {
    const V by = V::load(vectors.shift + channel);
#pragma unroll
    for (int i = 0; i < N; ++i) results[i] += by.get(i);
  }
  V rounded;
#pragma unroll
  for (int i = 0; i < N; ++i) rounded.set(i, results[i]);
  return rounded;
}

// Rows of at most MAX vectors a lane: read once, kept in registers.
template <typename T, int MAX> __device__ __forceinline__ void kept(const Operands<T>& o) {
  constexpr int N = kiln::LANES<T>;
  using V = kiln::Vector<T, N>;
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= o.rows) return;
  const size_t start = static_cast<size_t>(row) * o.c;
  V values[MAX];
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    const int channel = (lane + 32 * j) * N;
    if (channel >= o.c) continue;
    values[j] = V::load(o.x + start + channel);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += values[j].get(i);
  }
  const float mean = o.rms ? 0.0f : kiln::warp_sum(sum) / o.c;
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    if ((lane + 32 * j) * N >= o.c) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float d = values[j].get(i) - mean;
      squares += d * d;
    }
  }
  const float inverse = 1.0f / sqrtf(kiln::warp_sum(squares) / o.c + o.eps);
  const Vectors<T> vectors(o, row);
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    const int channel = (lane + 32 * j) * N;
    if (channel < o.c) scaled(o, vectors, values[j], mean, inverse, channel).store(o.y + start + channel);
  }
}

// Rows of 2^bits vectors, at most 32: one vector for each thread, so that a warp has 32 >> bits rows.
template <typename T> __device__ __forceinline__ void narrow(const Operands<T>& o, int bits) {
  constexpr int N = kiln::LANES<T>;
  using V = kiln::Vector<T, N>;
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  const bool has_row = thread >> bits < o.rows; // all threads take part in the sums of their warp
  const int row = has_row ? thread >> bits : 0, channel = (thread & ((1 << bits) - 1)) * N;
  const size_t start = static_cast<size_t>(row) * o.c + channel;
  const auto sum_of_row = [&](float sum) {
    for (int offset = 1 << bits >> 1; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    return sum;
  };
  const V value = V::load(o.x + start);
  float sum = 0.0f, squares = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += value.get(i);
  const float mean = o.rms ? 0.0f : sum_of_row(sum) / o.c;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float d = value.get(i) - mean;
    squares += d * d;
  }
  const float inverse = 1.0f / sqrtf(sum_of_row(squares) / o.c + o.eps);
  if (has_row) scaled(o, Vectors<T>(o, row), value, mean, inverse, channel).store(o.y + start);
}

// Rows of any length and alignment.
template <typename T> __device__ __forceinline__ void any(const Operands<T>& o) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= o.rows) return;
  const T* x = o.x + static_cast<size_t>(row) * o.c;
  T* y = o.y + static_cast<size_t>(row) * o.c;
  float sum = 0.0f, squares = 0.0f;
  if (!o.rms) {
    for (int i = lane; i < o.c; i += 32) sum += kiln::to_f32(x[i]);
  }
  const float mean = kiln::warp_sum(sum) / o.c;  // 0 without a mean
  for (int i = lane; i < o.c; i += 32) {
    const float d = kiln::to_f32(x[i]) - mean;
    squares += d * d;
  }
  const float inverse = 1.0f / sqrtf(kiln::warp_sum(squares) / o.c + o.eps);
  const Vectors<T> vectors(o, row);
  for (int i = lane; i < o.c; i += 32) {
    float result = (kiln::to_f32(x[i]) - mean) * inverse;
    if (vectors.gamma) result *= kiln::to_f32(vectors.gamma[i]);
    if (vectors.scale) result *= 1.0f + kiln::to_f32(vectors.scale[i]);
    if (vectors.shift) result += kiln::to_f32(vectors.shift[i]);
    y[i] = kiln::from_f32<T>(result);
  }
}

}  // namespace

#define PARAMETERS(T)                                                                                        \
  const T *x, const T *gamma, const T *scale, const T *shift, T *y, int rows, int c, int tokens,            \
      int64_t scale_stride, int64_t shift_stride, float eps, int rms
#define OPERANDS(T) \
  Operands<T> { x, gamma, scale, shift, y, rows, c, tokens, scale_stride, shift_stride, eps, rms }
#define KEPT(T, NAME, MAX) \
  extern "C" __global__ void modulated_norm_##MAX##_##NAME(PARAMETERS(T)) { kept<T, MAX>(OPERANDS(T)); }
#define INSTANCE(T, NAME)                                                                            \
  extern "C" __global__ void modulated_norm_any_##NAME(PARAMETERS(T)) { any<T>(OPERANDS(T)); }       \
  extern "C" __global__ void modulated_norm_narrow_##NAME(PARAMETERS(T), int bits) {                 \
    narrow<T>(OPERANDS(T), bits);                                                                    \
  }                                                                                                  \
  KEPT(T, NAME, 1)                                                                                   \
  KEPT(T, NAME, 4)                                                                                   \
  KEPT(T, NAME, 8)                                                                                   \
  KEPT(T, NAME, 12)                                                                                  \
  KEPT(T, NAME, 16)
KILN_FOR_EVERY_TYPE(INSTANCE)
