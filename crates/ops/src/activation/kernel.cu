// Activations, element by element.

#include "element.cuh"

namespace {

// The order of `Activation`.
enum Function { SILU, QUICK_GELU, GELU_ERF, RELU };

__device__ __forceinline__ float apply(int function, float x) {
  switch (function) {
    case SILU: return kiln::silu(x);
    case QUICK_GELU: return x / (1.0f + expf(-1.702f * x));
    case GELU_ERF: return kiln::gelu_erf(x);
    default: return x < 0.0f ? 0.0f : x;  // NaN stays NaN
  }
}

// A thread processes LANES neighbors. With `vectored`, memory is aligned and no thread has fewer.
template <typename T>
__device__ __forceinline__ void activation(const T* x, T* y, int64_t n, int function, int vectored) {
  using V = kiln::Vector<T, kiln::LANES<T>>;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kiln::LANES<T>;
  if (first >= n) return;
  if (vectored) {
    V v = V::load(x + first);
#pragma unroll
    for (int i = 0; i < kiln::LANES<T>; ++i) v.set(i, apply(function, v.get(i)));
    v.store(y + first);
  } else {
    for (int64_t i = first; i < min(n, first + kiln::LANES<T>); ++i) {
      y[i] = kiln::from_f32<T>(apply(function, kiln::to_f32(x[i])));
    }
  }
}

}  // namespace

#define INSTANCE(T, NAME)                                                                          \
  extern "C" __global__ void activation_##NAME(const T* x, T* y, int64_t n, int function, int vectored) { \
    activation<T>(x, y, n, function, vectored);                                                    \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
