// Concatenates rows of m units and rows of n units. A unit is the largest power of two of bytes that divides both.

#include "element.cuh"

namespace {

template <typename Unit>
__device__ __forceinline__ void concat(const Unit* a, const Unit* b, Unit* y, unsigned total, unsigned m, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= total) return;
  const unsigned row = i / (m + n), column = i % (m + n);
  y[i] = column < m ? a[static_cast<size_t>(row) * m + column] : b[static_cast<size_t>(row) * n + column - m];
}

}  // namespace

#define INSTANCE(UNIT, BYTES)                                                                                     \
  extern "C" __global__ void concat_channels_##BYTES(const UNIT* a, const UNIT* b, UNIT* y, unsigned total, unsigned m, \
                                                     unsigned n) {                                                \
    concat<UNIT>(a, b, y, total, m, n);                                                                           \
  }
INSTANCE(uint4, 16)
INSTANCE(uint2, 8)
INSTANCE(unsigned, 4)
INSTANCE(unsigned short, 2)
