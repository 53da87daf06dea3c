// Concatenates rows of m units and rows of n units, or writes the first m units of rows. A unit is the largest power of two of
// bytes that divides both.

#include "element.cuh"

namespace {

template <typename Unit>
__device__ __forceinline__ void concat(const Unit* a, const Unit* b, Unit* y, unsigned total, unsigned m, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= total) return;
  const unsigned row = i / (m + n), column = i % (m + n);
  y[i] = column < m ? a[static_cast<size_t>(row) * m + column] : b[static_cast<size_t>(row) * n + column - m];
}

template <typename Unit>
__device__ __forceinline__ void copy_left(const Unit* a, Unit* y, unsigned total, unsigned m, unsigned row_units) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < total) y[static_cast<size_t>(i / m) * row_units + i % m] = a[i];
}

}  // namespace

#define INSTANCE(UNIT, BYTES)                                                                                     \
  extern "C" __global__ void concat_channels_##BYTES(const UNIT* a, const UNIT* b, UNIT* y, unsigned total, unsigned m, \
                                                     unsigned n) {                                                \
    concat<UNIT>(a, b, y, total, m, n);                                                                           \
  }                                                                                                               \
  extern "C" __global__ void copy_left_##BYTES(const UNIT* a, UNIT* y, unsigned total, unsigned m, unsigned row_units) { \
    copy_left<UNIT>(a, y, total, m, row_units);                                                                   \
  }
INSTANCE(uint4, 16)
INSTANCE(uint2, 8)
INSTANCE(unsigned, 4)
INSTANCE(unsigned short, 2)
