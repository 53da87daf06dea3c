// Sinusoidal embeddings with CUDA's exact functions: the error of the fast ones would exceed whole turns.

#include "element.cuh"

namespace {

template <typename T>
__device__ __forceinline__ void embed(const float* values, T* y, int n, int dim, float spacing, int cosines_first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n * dim) return;
  const int half = dim / 2, column = i % dim;
  float result = 0.0f;  // the last column of an odd width
  if (column < 2 * half) {
    const float frequency = expf(-9.210340371976184f * static_cast<float>(column % half) / spacing);  // ln(10000)
    const float angle = values[i / dim] * frequency;
    result = (column < half) == (cosines_first != 0) ? cosf(angle) : sinf(angle);
  }
  y[i] = kiln::from_f32<T>(result);
}

}  // namespace

#define INSTANCE(T, NAME)                                                                                         \
  extern "C" __global__ void timestep_embedding_##NAME(const float* values, T* y, int n, int dim, float spacing, \
                                                       int cosines_first) {                                      \
    embed<T>(values, y, n, dim, spacing, cosines_first);                                                         \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
