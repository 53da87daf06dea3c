// GEGLU: rows of n values and n gates to rows of n results.

#include "element.cuh"

namespace {

// A thread processes N neighbors of a row; N divides n.
template <typename T, int N>
__device__ __forceinline__ void geglu(const T* x, T* y, unsigned total, unsigned n) {
  using V = kiln::Vector<T, N>;
  const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * N;
  if (first >= total) return;
  const unsigned row = first / n;
  const T* values = x + first + static_cast<size_t>(row) * n;
  V value = V::load(values);
  const V gate = V::load(values + n);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = gate.get(i);
    value.set(i, value.get(i) * (sizeof(T) == 2 ? kiln::gelu_erf_16(g) : kiln::gelu_erf(g)));
  }
  value.store(y + first);
}

}  // namespace

#define INSTANCE(T, NAME)                                                                           \
  extern "C" __global__ void geglu_##NAME(const T* x, T* y, unsigned total, unsigned n) {           \
    geglu<T, 1>(x, y, total, n);                                                                    \
  }                                                                                                 \
  extern "C" __global__ void geglu_vectors_##NAME(const T* x, T* y, unsigned total, unsigned n) {   \
    geglu<T, kiln::LANES<T>>(x, y, total, n);                                                       \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
