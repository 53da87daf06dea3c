// Copies of rows of heads to shared memory, on all GPUs since compute capability 7.5.
#pragma once

#include "operands.cuh"
#include "tile_copy.cuh"
#include "tile_product.cuh"

namespace kiln::attention {

// Copies `ROWS` rows of a head from `first` on to shared memory. Rows past `count` and channels past head_dim become
// zeros. `place` returns the offset of a chunk in bytes.
template <int ROWS, int D, int THREADS, typename T, typename Place>
__device__ __forceinline__ void copy_rows(uint32_t to, const T* from, int64_t stride, int first, int count,
                                          int head_dim, Place place) {
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
    const int row = i / (D / 8), chunk = i % (D / 8);
    const bool inside = first + row < count && chunk * 8 < head_dim;
    copy_async(to + place(row, chunk), inside ? from + (first + row) * stride + chunk * 8 : from, inside);
  }
}

}  // namespace kiln::attention
