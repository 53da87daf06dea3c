// Nearest-neighbor upsampling: whole pixels are copied, in units of the largest power of two of bytes that divides one.

#include "element.cuh"

namespace {

// The input index of an output index, computed as `sources` does: in f32, rounded down.
__device__ __forceinline__ unsigned source(unsigned i, unsigned size, float scale) {
  return min(static_cast<unsigned>(static_cast<float>(i) * scale), size - 1);
}

template <typename Unit>
__device__ __forceinline__ void upsample(const Unit* x, Unit* y, unsigned total, unsigned h, unsigned w, unsigned h_out,
                                         unsigned w_out, unsigned units, float row_scale, float column_scale) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= total) return;
  const unsigned pixel = i / units, unit = i % units;
  const unsigned column = pixel % w_out, row = pixel / w_out % h_out, image = pixel / w_out / h_out;
  const size_t from = (static_cast<size_t>(image) * h + source(row, h, row_scale)) * w + source(column, w, column_scale);
  y[i] = x[from * units + unit];
}

}  // namespace

#define INSTANCE(UNIT, BYTES)                                                                                       \
  extern "C" __global__ void upsample_nearest_##BYTES(const UNIT* x, UNIT* y, unsigned total, unsigned h, unsigned w, \
                                                      unsigned h_out, unsigned w_out, unsigned units,               \
                                                      float row_scale, float column_scale) {                        \
    upsample<UNIT>(x, y, total, h, w, h_out, w_out, units, row_scale, column_scale);                                \
  }
INSTANCE(uint4, 16)
INSTANCE(uint2, 8)
INSTANCE(unsigned, 4)
INSTANCE(unsigned short, 2)
