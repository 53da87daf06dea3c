// Gated activations: rows of n gates and n values to rows of n results.

#include "activation.cuh"

namespace {

// A thread processes N neighbors of a row; N divides n. `row` is the distance of rows of gates, and of values.
template <typename T, int N>
__device__ __forceinline__ void gated(const T* gates, const T* values, T* y, int64_t total, int64_t n, int64_t row,
                                      int function) {
  using V = kiln::Vector<T, N>;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (first >= total) return;
  const int64_t at = first / n * row + first % n;
  const V gate = V::load(gates + at), value = V::load(values + at);
  V result;
#pragma unroll
  for (int i = 0; i < N; ++i) result.set(i, kiln::apply(function, gate.get(i)) * value.get(i));
  result.store(y + first);
}

}  // namespace

#define PARAMETERS(T) const T *gates, const T *values, T *y, int64_t total, int64_t n, int64_t row, int function
#define INSTANCE(T, NAME)                                                            \
  extern "C" __global__ void gated_activation_##NAME(PARAMETERS(T)) {                \
    gated<T, 1>(gates, values, y, total, n, row, function);                          \
  }                                                                                  \
  extern "C" __global__ void gated_activation_vectors_##NAME(PARAMETERS(T)) {        \
    gated<T, kiln::LANES<T>>(gates, values, y, total, n, row, function);             \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
