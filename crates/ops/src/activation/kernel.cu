// Activations, element by element.

#include "activation.cuh"

namespace {

// A thread processes LANES neighbors. With `vectored`, memory is aligned and no thread has fewer.
template <typename T>
__device__ __forceinline__ void activation(const T* x, T* y, int64_t n, int function, int vectored) {
  using V = kiln::Vector<T, kiln::LANES<T>>;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kiln::LANES<T>;
  if (first >= n) return;
  if (vectored) {
    V v = V::load(x + first);
#pragma unroll
    for (int i = 0; i < kiln::LANES<T>; ++i) v.set(i, kiln::apply(function, v.get(i)));
    v.store(y + first);
  } else {
    for (int64_t i = first; i < min(n, first + kiln::LANES<T>); ++i) {
      y[i] = kiln::from_f32<T>(kiln::apply(function, kiln::to_f32(x[i])));
    }
  }
}

}  // namespace

#define INSTANCE(T, NAME)                                                                          \
  extern "C" __global__ void activation_##NAME(const T* x, T* y, int64_t n, int function, int vectored) { \
    activation<T>(x, y, n, function, vectored);                                                    \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
