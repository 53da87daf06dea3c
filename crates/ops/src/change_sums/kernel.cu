// Sums of changes: a block sums one part of one image, in one fixed order.

#include "element.cuh"

namespace {

constexpr int THREADS = 256;

// A thread processes N neighbors at a time; N divides an image and a part.
template <typename T, int N>
__device__ __forceinline__ void change_sums(const T* now, const T* before, float* sums, int64_t image, int parts,
                                            int part) {
  using V = kiln::Vector<T, N>;
  const int64_t of = static_cast<int64_t>(blockIdx.x / parts) * image;
  const int64_t start = static_cast<int64_t>(blockIdx.x % parts) * part;
  const int64_t end = start + part < image ? start + part : image;
  float change = 0.0f, size = 0.0f;
  for (int64_t i = start + threadIdx.x * N; i < end; i += THREADS * N) {
    const V a = V::load(now + of + i), b = V::load(before + of + i);
#pragma unroll
    for (int lane = 0; lane < N; ++lane) {
      change += fabsf(a.get(lane) - b.get(lane));
      size += fabsf(b.get(lane));
    }
  }
  __shared__ float changes[THREADS / 32], sizes[THREADS / 32];
  change = kiln::warp_sum(change);
  size = kiln::warp_sum(size);
  if (threadIdx.x % 32 == 0) {
    changes[threadIdx.x / 32] = change;
    sizes[threadIdx.x / 32] = size;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  change = size = 0.0f;
  for (int warp = 0; warp < THREADS / 32; ++warp) {
    change += changes[warp];
    size += sizes[warp];
  }
  sums[2 * blockIdx.x] = change;
  sums[2 * blockIdx.x + 1] = size;
}

}  // namespace

#define PARAMETERS(T) const T *now, const T *before, float *sums, int64_t image, int parts, int part
#define INSTANCE(T, NAME)                                                        \
  extern "C" __global__ void change_sums_##NAME(PARAMETERS(T)) {                 \
    change_sums<T, 1>(now, before, sums, image, parts, part);                    \
  }                                                                              \
  extern "C" __global__ void change_sums_vectors_##NAME(PARAMETERS(T)) {         \
    change_sums<T, kiln::LANES<T>>(now, before, sums, image, parts, part);       \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
