// The windows of some output pixels as rows (kh, kw, c_in) of a matrix; zeros where a window lies outside of the image.
// One block writes one row.
#include "element.cuh"

namespace {

struct Geometry {
  int h, w, c_in, kh, kw, h_out, w_out, stride, pad;
};

template <typename T, int N> __device__ void gather(const T* x, T* windows, long first, const Geometry& g) {
  using kiln::Vector;
  const long pixel = first + blockIdx.x;
  const int column = static_cast<int>(pixel % g.w_out);
  const int row = static_cast<int>(pixel / g.w_out % g.h_out);
  const long image = pixel / g.w_out / g.h_out;
  const int k = g.kh * g.kw * g.c_in;
  for (int i = threadIdx.x * N; i < k; i += blockDim.x * N) {
    const int tap = i / g.c_in;
    const int y = row * g.stride + tap / g.kw - g.pad;
    const int z = column * g.stride + tap % g.kw - g.pad;
    Vector<T, N> values = {};
    if (y >= 0 && y < g.h && z >= 0 && z < g.w) {
      values = Vector<T, N>::load(x + ((image * g.h + y) * g.w + z) * g.c_in + i % g.c_in);
    }
    values.store(windows + static_cast<long>(blockIdx.x) * k + i);
  }
}

}  // namespace

#define INSTANCE(T, NAME)                                                                                        \
  extern "C" __global__ void conv2d_windows_##NAME(const T* x, T* windows, long first, int h, int w, int c_in,   \
                                                   int kh, int kw, int h_out, int w_out, int stride, int pad,    \
                                                   int vectored) {                                               \
    const Geometry geometry = {h, w, c_in, kh, kw, h_out, w_out, stride, pad};                                   \
    if (vectored) {                                                                                              \
      gather<T, kiln::LANES<T>>(x, windows, first, geometry);                                                    \
    } else {                                                                                                     \
      gather<T, 1>(x, windows, first, geometry);                                                                 \
    }                                                                                                            \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)
