// Three kernels: the windows of pixels as rows of a matrix (im2col), the whole convolution for up to 8 output
// channels, and what may follow a convolution.
#include "element.cuh"
#include "tile_product.cuh"

namespace {

struct Geometry {
  int h, w, c_in, kh, kw, h_out, w_out, stride, pad_top, pad_left;
};

// Rows (kh, kw, c_in) of windows, with zeros where a window is outside of the image. One block writes one row.
template <typename T, int N> __device__ void gather(const T* x, T* windows, int first, const Geometry& g) {
  using kiln::Vector;
  const unsigned pixel = first + blockIdx.x;
  const int column = pixel % g.w_out;
  const int row = pixel / g.w_out % g.h_out;
  const long image = pixel / g.w_out / g.h_out;
  const int k = g.kh * g.kw * g.c_in;
  for (int i = threadIdx.x * N; i < k; i += blockDim.x * N) {
    const int tap = i / g.c_in;
    const int y = row * g.stride + tap / g.kw - g.pad_top;
    const int z = column * g.stride + tap % g.kw - g.pad_left;
    Vector<T, N> values = {};
    if (y >= 0 && y < g.h && z >= 0 && z < g.w) {
      values = Vector<T, N>::load(x + ((image * g.h + y) * g.w + z) * g.c_in + i % g.c_in);
    }
    values.store(windows + static_cast<long>(blockIdx.x) * k + i);
  }
}

// 16 bytes, or zeros where `keep` is 0 and not ~0.
__device__ __forceinline__ uint4 load(const void* from, unsigned keep) {
  const uint4 v = *static_cast<const uint4*>(from);
  return {v.x & keep, v.y & keep, v.z & keep, v.w & keep};
}

constexpr int MOST_WARPS = 4;

// A block computes 16 pixels. Its warps, up to 4, share the channels, 32 of them at a time. A thread loads 8
// neighboring channels of two pixels and of one kernel, 16 bytes each. The order of the channels in the tensor core
// does not matter, as long as pixels and kernels have the same.
template <typename T>
__device__ void few_channels(const T* x, const T* weight, const T* bias, const T* residual, T* y, int pixels,
                             int c_out, const Geometry& g) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int outer = lane / 4, inner = lane % 4;
  const int first = blockIdx.x * 16;
  int rows[2], columns[2];
  const T* images[2];
  for (int i = 0; i < 2; i++) {
    const unsigned pixel = min(first + outer + 8 * i, pixels - 1);
    columns[i] = static_cast<int>(pixel % g.w_out) * g.stride - g.pad_left;
    rows[i] = static_cast<int>(pixel / g.w_out % g.h_out) * g.stride - g.pad_top;
    images[i] = x + static_cast<long>(pixel / g.w_out / g.h_out) * g.h * g.w * g.c_in;
  }
  float sums[4] = {};
  for (int tap = 0; tap < g.kh * g.kw; tap++) {
    const T* from[2];
    unsigned inside[2];
    for (int i = 0; i < 2; i++) {
      const int row = rows[i] + tap / g.kw, column = columns[i] + tap % g.kw;
      inside[i] = row >= 0 && row < g.h && column >= 0 && column < g.w ? ~0u : 0u;
      from[i] = images[i] + (inside[i] ? (static_cast<long>(row) * g.w + column) * g.c_in : 0);
    }
    const unsigned used = outer < c_out ? ~0u : 0u;
    const T* kernel = weight + (static_cast<long>(min(outer, c_out - 1)) * g.kh * g.kw + tap) * g.c_in;
#pragma unroll 4
    for (int turn = warp * 32; turn < g.c_in; turn += blockDim.x) {
      const int channel = turn + inner * 8;
      const uint4 p = load(from[0] + channel, inside[0]);
      const uint4 q = load(from[1] + channel, inside[1]);
      const uint4 k = load(kernel + channel, used);
      kiln::multiply<T>(sums, {p.x, q.x, p.y, q.y}, k.x, k.y);
      kiln::multiply<T>(sums, {p.z, q.z, p.w, q.w}, k.z, k.w);
    }
  }
  __shared__ float parts[MOST_WARPS][4][32];
  for (int i = 0; i < 4; i++) parts[warp][i][lane] = sums[i];
  __syncthreads();
  if (warp > 0) return;
  for (int i = 0; i < 4; i++) {
    const int pixel = first + outer + 8 * (i / 2);
    const int channel = inner * 2 + i % 2;
    if (pixel >= pixels || channel >= c_out) continue;
    const long at = static_cast<long>(pixel) * c_out + channel;
    float value = parts[0][i][lane];
    for (int other = 1; other < blockDim.x / 32; other++) value += parts[other][i][lane];
    if (bias) value += kiln::to_f32(bias[channel]);
    if (residual) value += kiln::to_f32(residual[at]);
    y[at] = kiln::from_f32<T>(value);
  }
}

// y = slope(scale y + f a + g b), in place. `a`, `b` and `slopes` may be missing. A thread processes LANES neighbors.
template <typename T>
__device__ void epilogue(T* y, int64_t n, int channels, float scale, float f, const T* a, float g, const T* b,
                         float slope, const T* slopes, int vectored) {
  using V = kiln::Vector<T, kiln::LANES<T>>;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kiln::LANES<T>;
  if (first >= n) return;
  const auto finish = [&](float sum, float from_a, float from_b, int64_t at) {
    const float value = scale * sum + f * from_a + g * from_b;
    if (value > 0.0f) return value;
    return value * (slopes ? kiln::to_f32(slopes[at % channels]) : slope);
  };
  if (vectored) {
    V v = V::load(y + first);
    const V from_a = a ? V::load(a + first) : V{};
    const V from_b = b ? V::load(b + first) : V{};
#pragma unroll
    for (int i = 0; i < kiln::LANES<T>; ++i) v.set(i, finish(v.get(i), from_a.get(i), from_b.get(i), first + i));
    v.store(y + first);
  } else {
    for (int64_t i = first; i < min(n, first + kiln::LANES<T>); ++i) {
      const float from_a = a ? kiln::to_f32(a[i]) : 0.0f, from_b = b ? kiln::to_f32(b[i]) : 0.0f;
      y[i] = kiln::from_f32<T>(finish(kiln::to_f32(y[i]), from_a, from_b, i));
    }
  }
}

// y[image, ..] += bias[image], in place. A thread processes LANES neighbors, with `vectored` of one pixel.
template <typename T>
__device__ void image_bias(T* y, const T* bias, int64_t n, int64_t of_image, int channels, int vectored) {
  using V = kiln::Vector<T, kiln::LANES<T>>;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kiln::LANES<T>;
  if (first >= n) return;
  const auto place = [&](int64_t at) { return bias + at / of_image * channels + at % channels; };
  if (vectored) {
    V v = V::load(y + first);
    const V added = V::load(place(first));
#pragma unroll
    for (int i = 0; i < kiln::LANES<T>; ++i) v.set(i, v.get(i) + added.get(i));
    v.store(y + first);
  } else {
    for (int64_t i = first; i < min(n, first + kiln::LANES<T>); ++i) {
      y[i] = kiln::from_f32<T>(kiln::to_f32(y[i]) + kiln::to_f32(*place(i)));
    }
  }
}

}  // namespace

#define IMAGE_BIAS(T, NAME)                                                                                        \
  extern "C" __global__ void conv2d_image_bias_##NAME(T* y, const T* bias, int64_t n, int64_t of_image,            \
                                                      int channels, int vectored) {                                \
    image_bias<T>(y, bias, n, of_image, channels, vectored);                                                       \
  }
KILN_FOR_EVERY_TYPE(IMAGE_BIAS)

#define EPILOGUE(T, NAME)                                                                                          \
  extern "C" __global__ void conv2d_epilogue_##NAME(T* y, int64_t n, int channels, float scale, float f, const T* a, \
                                                    float g, const T* b, float slope, const T* slopes, int vectored) { \
    epilogue<T>(y, n, channels, scale, f, a, g, b, slope, slopes, vectored);                                        \
  }
KILN_FOR_EVERY_TYPE(EPILOGUE)

#define INSTANCE(T, NAME)                                                                                           \
  extern "C" __global__ void conv2d_windows_##NAME(const T* x, T* windows, int first, int h, int w, int c_in, int kh, \
                                                   int kw, int h_out, int w_out, int stride, int pad_top,              \
                                                   int pad_left, int vectored) {                                       \
    const Geometry geometry = {h, w, c_in, kh, kw, h_out, w_out, stride, pad_top, pad_left};                           \
    if (vectored) {                                                                                                    \
      gather<T, kiln::LANES<T>>(x, windows, first, geometry);                                                          \
    } else {                                                                                                           \
      gather<T, 1>(x, windows, first, geometry);                                                                       \
    }                                                                                                                  \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)

#define FEW(T, NAME)                                                                                                   \
  extern "C" __global__ void conv2d_few_channels_##NAME(const T* x, const T* weight, const T* bias, const T* residual, \
                                                        T* y, int pixels, int c_out, int h, int w, int c_in, int kh,   \
                                                        int kw, int h_out, int w_out, int stride, int pad_top,         \
                                                        int pad_left) {                                                \
    const Geometry geometry = {h, w, c_in, kh, kw, h_out, w_out, stride, pad_top, pad_left};                           \
    few_channels<T>(x, weight, bias, residual, y, pixels, c_out, geometry);                                            \
  }
FEW(__half, f16)
FEW(__nv_bfloat16, bf16)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // not in PTX, nor for other GPUs
#include "hopper_product.cuh"

#define HOPPER(T, TYPE, COLUMNS, STAGES) \
  KILN_HOPPER_PRODUCT(conv2d_hopper_##COLUMNS##_##TYPE, kiln::WideOperands<T>, T, COLUMNS, STAGES)
#define HOPPERS(T, TYPE)  \
  HOPPER(T, TYPE, 64, 8)  \
  HOPPER(T, TYPE, 128, 5) \
  HOPPER(T, TYPE, 160, 5) \
  HOPPER(T, TYPE, 256, 3)

HOPPERS(__half, f16)
HOPPERS(__nv_bfloat16, bf16)
#endif
