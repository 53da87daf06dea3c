// Group normalization over (image, pixel, channel), with or without SiLU.
//
// There are two algorithms. A group of few elements is processed by one block: it sums, then reads its elements again
// from the cache and writes them (group_norm_whole). Otherwise the pixels of an image are split over blocks, each of
// which writes the mean and the sum of squared differences of every group (group_norm_moments), and a second launch
// joins those of an image, in order, and writes the result (group_norm_apply). The split of the pixels depends on an
// image's shape alone, and no order of summation depends on scheduling.
//
// Values are summed relative to one of their own, the first of the image's channel or group, so that the difference of
// squares does not cancel. Parts are joined by their means (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise
// Algorithm for Computing Sample Variances", 1979).

#include "byte_rounding.cuh"

namespace {

// `pixels` is the number of pixels of x, `total` that of the statistics: larger, where x is a strip.
struct Norm {
  int pixels, total, c, groups, silu;
  float eps;
};
static_assert(sizeof(Norm) == 24, "cuda.rs has another layout");

// One block for each group and image: blockIdx.x is image * groups + group. N divides the group's channels.
template <typename T, int N>
__device__ __forceinline__ void whole(const T* x, const T* gamma, const T* beta, T* y, Norm norm) {
  using V = kiln::Vector<T, N>;
  __shared__ float sums[2][32];
  const int width = norm.c / norm.groups, vectors = width / N, total = norm.pixels * vectors;
  const int image = blockIdx.x / norm.groups, channel = blockIdx.x % norm.groups * width;
  const size_t start = static_cast<size_t>(image) * norm.pixels * norm.c + channel;
  const float origin = kiln::to_f32(x[start]);
  float sum = 0.0f, squares = 0.0f;
#pragma unroll 4
  for (int i = threadIdx.x; i < total; i += blockDim.x) {
    const V v = V::load(x + start + static_cast<size_t>(i / vectors) * norm.c + i % vectors * N);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float d = v.get(j) - origin;
      sum += d;
      squares += d * d;
    }
  }
  sum = kiln::warp_sum(sum);
  squares = kiln::warp_sum(squares);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) {
    sums[0][warp] = sum;
    sums[1][warp] = squares;
  }
  __syncthreads();
  const bool used = lane < blockDim.x / 32;
  sum = kiln::warp_sum(used ? sums[0][lane] : 0.0f);
  squares = kiln::warp_sum(used ? sums[1][lane] : 0.0f);
  const float count = static_cast<float>(norm.pixels) * width;
  const float offset = sum / count;
  const float inverse = 1.0f / sqrtf(fmaxf(squares / count - offset * offset, 0.0f) + norm.eps);
#pragma unroll 4
  for (int i = threadIdx.x; i < total; i += blockDim.x) {
    const int column = i % vectors * N;
    const size_t at = start + static_cast<size_t>(i / vectors) * norm.c + column;
    V v = V::load(x + at);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      // The mean is subtracted first: where it is large relative to the deviation, a sum of products would lose digits.
      const float normal = (v.get(j) - origin - offset) * inverse;
      const float r = normal * kiln::to_f32(gamma[channel + column + j]) + kiln::to_f32(beta[channel + column + j]);
      v.set(j, norm.silu ? kiln::silu(r) : r);
    }
    v.store(y + at);
  }
}

// Moments of the groups over some pixels of an image: blockIdx.x is the part, blockIdx.y the image. A thread has N
// channels and every `rows`-th pixel; the block has rows * c / N threads and as many idle ones as fill the last warp.
// Shared: (2 rows + 2) * c floats.
template <typename T, int N>
__device__ __forceinline__ void moments(const T* x, float2* parts, Norm norm, int pixels_of_part, int rows) {
  using V = kiln::Vector<T, N>;
  extern __shared__ float shared[];
  const int vectors = norm.c / N;
  const int column = threadIdx.x % vectors * N, row = threadIdx.x / vectors;
  const T* image = x + static_cast<size_t>(blockIdx.y) * norm.pixels * norm.c;
  const int first = blockIdx.x * pixels_of_part, last = min(norm.pixels, first + pixels_of_part);
  const V origin = V::load(image + column);
  float sum[N] = {}, squares[N] = {};
  const int stop = row < rows ? last : first;  // idle threads have no pixel
#pragma unroll 4
  for (int pixel = first + row; pixel < stop; pixel += rows) {
    const V v = V::load(image + static_cast<size_t>(pixel) * norm.c + column);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float d = v.get(i) - origin.get(i);
      sum[i] += d;
      squares[i] += d * d;
    }
  }
  float* means = shared + 2 * rows * norm.c;
  float* deviations = means + norm.c;
  if (row < rows) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      shared[(2 * row) * norm.c + column + i] = sum[i];
      shared[(2 * row + 1) * norm.c + column + i] = squares[i];
    }
  }
  __syncthreads();
  const float count = static_cast<float>(last - first);
  for (int channel = threadIdx.x; channel < norm.c; channel += blockDim.x) {
    float s = 0.0f, q = 0.0f;
    for (int r = 0; r < rows; ++r) {
      s += shared[(2 * r) * norm.c + channel];
      q += shared[(2 * r + 1) * norm.c + channel];
    }
    means[channel] = kiln::to_f32(image[channel]) + s / count;
    deviations[channel] = fmaxf(q - s * s / count, 0.0f);
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, width = norm.c / norm.groups;
  for (int group = threadIdx.x / 32; group < norm.groups; group += blockDim.x / 32) {
    float mean = 0.0f, m2 = 0.0f;
    for (int i = lane; i < width; i += 32) mean += means[group * width + i];
    mean = kiln::warp_sum(mean) / width;
    for (int i = lane; i < width; i += 32) {
      const float d = means[group * width + i] - mean;
      m2 += deviations[group * width + i] + count * d * d;
    }
    m2 = kiln::warp_sum(m2);
    if (lane == 0) {
      parts[(static_cast<size_t>(blockIdx.y) * norm.groups + group) * gridDim.x + blockIdx.x] = make_float2(mean, m2);
    }
  }
}

// The moments of a group of `width` channels over `total` pixels. Every part has `pixels_of_part`, the last one the
// rest. A warp computes them, and all lanes get the result.
__device__ __forceinline__ float2 join(const float2* part, int num_parts, int pixels_of_part, int total, int width) {
  const int lane = threadIdx.x % 32;
  const float pixels = static_cast<float>(total);
  float mean = 0.0f, m2 = 0.0f;
  for (int i = lane; i < num_parts; i += 32) {
    mean += part[i].x * (min(pixels_of_part, total - i * pixels_of_part) / pixels);
  }
  mean = kiln::warp_sum(mean);
  for (int i = lane; i < num_parts; i += 32) {
    const float2 p = part[i];
    const float count = static_cast<float>(min(pixels_of_part, total - i * pixels_of_part)) * width;
    m2 += p.y + count * (p.x - mean) * (p.x - mean);
  }
  return make_float2(mean, kiln::warp_sum(m2));
}

// The largest magnitude that a normalized group can have: one element of `total` has all of the variance. SiLU makes nothing
// larger.
__device__ __forceinline__ float bound(float gamma, float beta, const Norm& norm) {
  return gamma * sqrtf(static_cast<float>(norm.total) * (norm.c / norm.groups)) + beta;
}

// Joins the parts of an image and normalizes some of its pixels: blockIdx.x is the range, blockIdx.y the image. Threads
// as in `moments`. Shared: 2 * groups floats. With `scales` the results are e4m3 numbers by the scale that `bound` gives; they are
// elements of T without.
template <typename T, int N, typename Out>
__device__ __forceinline__ void apply(const T* x, const T* gamma, const T* beta, const float2* parts, Out* y, Norm norm,
                                      int num_parts, int pixels_of_part, int pixels_of_block, int rows,
                                      float* scales = nullptr) {
  using V = kiln::Vector<T, N>;
  constexpr bool IN_8_BITS = sizeof(Out) == 1;
  extern __shared__ float shared[];
  float *means = shared, *inverses = shared + norm.groups;
  const int width = norm.c / norm.groups, lane = threadIdx.x % 32;
  for (int group = threadIdx.x / 32; group < norm.groups; group += blockDim.x / 32) {
    const float2* part = parts + (static_cast<size_t>(blockIdx.y) * norm.groups + group) * num_parts;
    const float2 moments = join(part, num_parts, pixels_of_part, norm.total, width);
    if (lane == 0) {
      means[group] = moments.x;
      inverses[group] = 1.0f / sqrtf(moments.y / (static_cast<float>(norm.total) * width) + norm.eps);
    }
  }
  float to_e4m3 = 1.0f;
  if constexpr (IN_8_BITS) {
    __shared__ float of_warps[2][32];
    float most_gamma = 0.0f, most_beta = 0.0f;
    for (int i = threadIdx.x; i < norm.c; i += blockDim.x) {
      most_gamma = fmaxf(most_gamma, fabsf(kiln::to_f32(gamma[i])));
      most_beta = fmaxf(most_beta, fabsf(kiln::to_f32(beta[i])));
    }
    most_gamma = kiln::w8a8::block_most<kiln::w8a8::E4m3>(most_gamma, of_warps[0]);
    most_beta = kiln::w8a8::block_most<kiln::w8a8::E4m3>(most_beta, of_warps[1]);
    const float most = bound(most_gamma, most_beta, norm);
    to_e4m3 = kiln::w8a8::inverse_of<kiln::w8a8::E4m3>(most);
    if (blockIdx.x == 0 && threadIdx.x == 0) scales[blockIdx.y] = kiln::w8a8::scale_of<kiln::w8a8::E4m3>(most);
  }
  __syncthreads();
  const int vectors = norm.c / N;
  const int column = threadIdx.x % vectors * N, row = threadIdx.x / vectors;
  if (row >= rows) return;
  float scale[N], shift[N], mean[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int group = (column + i) / width;
    scale[i] = kiln::to_f32(gamma[column + i]) * inverses[group];
    shift[i] = kiln::to_f32(beta[column + i]);
    mean[i] = means[group];
  }
  const int first = blockIdx.x * pixels_of_block, last = min(norm.pixels, first + pixels_of_block);
#pragma unroll 4
  for (int pixel = first + row; pixel < last; pixel += rows) {
    const size_t at = (static_cast<size_t>(blockIdx.y) * norm.pixels + pixel) * norm.c + column;
    const V v = V::load(x + at);
    float results[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float r = (v.get(i) - mean[i]) * scale[i] + shift[i];
      results[i] = norm.silu ? kiln::silu(r) : r;
    }
    if constexpr (IN_8_BITS) {
      kiln::w8a8::round<kiln::w8a8::E4m3>(results, to_e4m3, y + at);
    } else {
      V rounded;
#pragma unroll
      for (int i = 0; i < N; ++i) rounded.set(i, results[i]);
      rounded.store(y + at);
    }
  }
}

}  // namespace

// The moments of a strip's groups, joined with those of the `pixels_before` pixels before it, if there are any. One
// block of one warp for every group.
extern "C" __global__ void __launch_bounds__(32)
    group_norm_join(const float2* parts, const float2* before, float2* moments, Norm norm, int num_parts,
                    int pixels_of_part, int pixels_before) {
  const int width = norm.c / norm.groups;
  float2 joined = join(parts + static_cast<size_t>(blockIdx.x) * num_parts, num_parts, pixels_of_part, norm.pixels, width);
  if (threadIdx.x > 0) return;
  if (pixels_before > 0) {
    const float2 old = before[blockIdx.x];
    const float difference = joined.x - old.x;
    const float part = static_cast<float>(norm.pixels) / (static_cast<float>(norm.pixels) + pixels_before);
    joined.x = old.x + difference * part;
    joined.y += old.y + difference * difference * part * (static_cast<float>(pixels_before) * width);
  }
  moments[blockIdx.x] = joined;
}

#define WHOLE(T, NAME, N)                                                                                             \
  extern "C" __global__ void __launch_bounds__(512)                                                                   \
      group_norm_whole_##N##_##NAME(const T* x, const T* gamma, const T* beta, T* y, Norm norm) {                     \
    whole<T, N>(x, gamma, beta, y, norm);                                                                             \
  }
#define SPLIT(T, NAME, N)                                                                                             \
  extern "C" __global__ void __launch_bounds__(1024)                                                                  \
      group_norm_moments_##N##_##NAME(const T* x, float2* parts, Norm norm, int pixels_of_part, int rows) {           \
    moments<T, N>(x, parts, norm, pixels_of_part, rows);                                                              \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(1024)                                                                  \
      group_norm_apply_##N##_##NAME(const T* x, const T* gamma, const T* beta, const float2* parts, T* y, Norm norm,  \
                                    int num_parts, int pixels_of_part, int pixels_of_block, int rows) {              \
    apply<T, N, T>(x, gamma, beta, parts, y, norm, num_parts, pixels_of_part, pixels_of_block, rows);                    \
  }
#define INSTANCE(T, NAME) WHOLE(T, NAME, 1) WHOLE(T, NAME, 2) WHOLE(T, NAME, 4) SPLIT(T, NAME, 1)
KILN_FOR_EVERY_TYPE(INSTANCE)
WHOLE(__half, f16, 8)
WHOLE(__nv_bfloat16, bf16, 8)
SPLIT(float, f32, 4)
SPLIT(__half, f16, 8)
SPLIT(__nv_bfloat16, bf16, 8)

#define IN_8_BITS(T, NAME)                                                                                            \
  extern "C" __global__ void __launch_bounds__(1024)                                                                  \
      group_norm_apply_e4m3_##NAME(const T* x, const T* gamma, const T* beta, const float2* parts, unsigned char* y,  \
                                   Norm norm, int num_parts, int pixels_of_part, int pixels_of_block, int rows,       \
                                   float* scales) {                                                                   \
    apply<T, 8>(x, gamma, beta, parts, y, norm, num_parts, pixels_of_part, pixels_of_block, rows, scales);            \
  }
IN_8_BITS(__half, f16)
IN_8_BITS(__nv_bfloat16, bf16)
