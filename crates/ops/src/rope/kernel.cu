// Rotary position embeddings: 16 bytes of a head for each thread, or one warp for each head of a token.

#include "element.cuh"

namespace {

// The operands of a call. `gamma` may be null.
template <typename T> struct Operands {
  const T* x;
  int64_t x_batch, x_row;
  const T* gamma;
  const float *cos, *sin;
  T* y;
  int rows, heads, tokens, head_dim, by_image, interleaved;
  float eps;
};

// The places of a row, which is a head of a token.
template <typename T> struct Row {
  const T* x;
  T* y;
  int64_t table;

  __device__ __forceinline__ Row(const Operands<T>& o, int row) {
    const int head = row % o.heads, token = row / o.heads;  // of all images
    const int image = token / o.tokens, at = token % o.tokens;
    x = o.x + image * o.x_batch + at * o.x_row + static_cast<int64_t>(head) * o.head_dim;
    y = o.y + static_cast<int64_t>(row) * o.head_dim;
    table = static_cast<int64_t>(o.by_image ? token : at) * (o.head_dim / 2);
  }
};

// Heads of `2^bits` accesses of 16 bytes, at most a warp's, each by a thread.
template <typename T> __device__ __forceinline__ void vectored(const Operands<T>& o, int bits) {
  constexpr int N = kiln::LANES<T>;
  using V = kiln::Vector<T, N>;
  using Angles = kiln::Vector<float, N / 2>;
  if (o.rows == 0) return;
  const int lanes = 1 << bits;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t of = thread >> bits;
  const bool active = of < o.rows;  // others take part in the exchange
  const int lane = static_cast<int>(thread) & (lanes - 1);
  const Row<T> row(o, active ? static_cast<int>(of) : 0);
  const V loaded = V::load(row.x + lane * N);
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = loaded.get(i);
  if (o.gamma) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) squares += values[i] * values[i];
    for (int distance = lanes / 2; distance > 0; distance /= 2) squares += __shfl_xor_sync(~0u, squares, distance);
    const float inverse = 1.0f / sqrtf(squares / o.head_dim + o.eps);
    const V gamma = V::load(o.gamma + lane * N);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = values[i] * inverse * gamma.get(i);
  }
  V rotated;
  if (o.interleaved) {
    const int64_t at = row.table + lane * (N / 2);
    const Angles cos = Angles::load(o.cos + at), sin = Angles::load(o.sin + at);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float a = values[2 * i], b = values[2 * i + 1], c = cos.get(i), s = sin.get(i);
      rotated.set(2 * i, a * c - b * s);
      rotated.set(2 * i + 1, a * s + b * c);
    }
  } else {
    const bool is_first = lane < lanes / 2;
    const int64_t at = row.table + (lane & (lanes / 2 - 1)) * N;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Angles cos = Angles::load(o.cos + at + j * (N / 2)), sin = Angles::load(o.sin + at + j * (N / 2));
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const float own = values[j * (N / 2) + i], other = __shfl_xor_sync(~0u, own, lanes / 2);
        const float c = cos.get(i), s = sin.get(i);
        rotated.set(j * (N / 2) + i, is_first ? own * c - other * s : other * s + own * c);
      }
    }
  }
  if (active) rotated.store(row.y + lane * N);
}

// Heads of any width and alignment, with one warp for each.
template <typename T> __device__ __forceinline__ void any(const Operands<T>& o) {
  const int number = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (number >= o.rows) return;
  const Row<T> row(o, number);
  const int half = o.head_dim / 2;
  float inverse = 1.0f;
  if (o.gamma) {
    float squares = 0.0f;
    for (int i = lane; i < o.head_dim; i += 32) {
      const float value = kiln::to_f32(row.x[i]);
      squares += value * value;
    }
    inverse = 1.0f / sqrtf(kiln::warp_sum(squares) / o.head_dim + o.eps);
  }
  for (int i = lane; i < half; i += 32) {
    const int first = o.interleaved ? 2 * i : i;
    const int second = o.interleaved ? first + 1 : first + half;
    float a = kiln::to_f32(row.x[first]), b = kiln::to_f32(row.x[second]);
    if (o.gamma) {
      a = a * inverse * kiln::to_f32(o.gamma[first]);
      b = b * inverse * kiln::to_f32(o.gamma[second]);
    }
    const float c = o.cos[row.table + i], s = o.sin[row.table + i];
    row.y[first] = kiln::from_f32<T>(a * c - b * s);
    row.y[second] = kiln::from_f32<T>(a * s + b * c);
  }
}

}  // namespace

#define PARAMETERS(T)                                                                                        \
  const T *x, int64_t x_batch, int64_t x_row, const T *gamma, const float *cos, const float *sin, T *y,     \
      int rows, int heads, int tokens, int head_dim, int by_image, int interleaved, float eps
#define OPERANDS(T) \
  Operands<T> { x, x_batch, x_row, gamma, cos, sin, y, rows, heads, tokens, head_dim, by_image, interleaved, eps }
#define INSTANCE(T, NAME)                                                                                     \
  extern "C" __global__ void rope_any_##NAME(PARAMETERS(T), int) { any<T>(OPERANDS(T)); }                    \
  extern "C" __global__ void rope_vectored_##NAME(PARAMETERS(T), int bits) { vectored<T>(OPERANDS(T), bits); }
KILN_FOR_EVERY_TYPE(INSTANCE)
