// The transpose of the last two dimensions of (b, rows, columns), one of which is a few channels.

#include "element.cuh"

namespace {

template <typename T>
__device__ __forceinline__ void transpose(const T* x, T* y, unsigned total, unsigned rows, unsigned columns) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;  // in y, (b, columns, rows)
  if (i >= total) return;
  const unsigned row = i % rows, column = i / rows % columns, image = i / rows / columns;
  y[i] = x[(static_cast<size_t>(image) * rows + row) * columns + column];
}

}  // namespace

#define INSTANCE(T, NAME)                                                                                          \
  extern "C" __global__ void transpose_##NAME(const T* x, T* y, unsigned total, unsigned rows, unsigned columns) { \
    transpose<T>(x, y, total, rows, columns);                                                                      \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
