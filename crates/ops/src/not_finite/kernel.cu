// Values that are infinite or NaN. A block counts those of its threads, which stride over the elements.

#include <cstdint>

extern "C" __global__ void count_not_finite(const float* x, uint32_t* counts, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t count = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    count += isfinite(x[i]) ? 0 : 1;
  }
  __shared__ uint32_t total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  if (count > 0) atomicAdd(&total, count);
  __syncthreads();
  if (threadIdx.x == 0) counts[blockIdx.x] = total;
}
