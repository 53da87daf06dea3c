// Classifier-free guidance: two halves of a batch to one, in f32.

#include "element.cuh"

namespace {

template <typename T>
__device__ __forceinline__ void guide(const T* both, const float* scale, float* y, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float uncond = kiln::to_f32(both[i]), cond = kiln::to_f32(both[n + i]);
  y[i] = uncond + (cond - uncond) * *scale;
}

}  // namespace

#define INSTANCE(T, NAME)                                                                             \
  extern "C" __global__ void guidance_##NAME(const T* both, const float* scale, float* y, int64_t n) { \
    guide<T>(both, scale, y, n);                                                                      \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
