// Gated residual connections, element by element.

#include "element.cuh"

namespace {

// A sum, limited to the finite numbers of f16 in that type; a NaN stays one.
template <typename T>
__device__ __forceinline__ float limited(float x) {
  return x;
}
template <>
__device__ __forceinline__ float limited<__half>(float x) {
  return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}

// A thread processes N neighbors of a row; N divides c.
template <typename T, int N>
__device__ __forceinline__ void gated_residual(const T* x, const T* gate, const T* y, T* result, int64_t total, int c,
                                               int64_t image, int64_t gate_stride) {
  using V = kiln::Vector<T, N>;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (first >= total) return;
  const V a = V::load(x + first), b = V::load(y + first);
  const V by = V::load(gate + first / image * gate_stride + first % c);
  V sum;
#pragma unroll
  for (int i = 0; i < N; ++i) sum.set(i, limited<T>(a.get(i) + by.get(i) * b.get(i)));
  sum.store(result + first);
}

}  // namespace

#define PARAMETERS(T) \
  const T *x, const T *gate, const T *y, T *result, int64_t total, int c, int64_t image, int64_t gate_stride
#define INSTANCE(T, NAME)                                                                     \
  extern "C" __global__ void gated_residual_##NAME(PARAMETERS(T)) {                           \
    gated_residual<T, 1>(x, gate, y, result, total, c, image, gate_stride);                   \
  }                                                                                           \
  extern "C" __global__ void gated_residual_vectors_##NAME(PARAMETERS(T)) {                   \
    gated_residual<T, kiln::LANES<T>>(x, gate, y, result, total, c, image, gate_stride);      \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
