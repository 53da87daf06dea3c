// Kernels for products of e4m3 numbers: rounding of activations, and the products themselves on Hopper.

#include "e4m3.cuh"
#include "../layer_norm/row.cuh"

namespace {

using namespace kiln::e4m3;

template <typename T> using Eight = kiln::Vector<T, 8>;

// One warp for each row of c elements.
template <typename T>
__device__ __forceinline__ void round_rows(const T* x, unsigned char* y, float* scales, int rows, int c) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += static_cast<size_t>(row) * c;
  y += static_cast<size_t>(row) * c;
  constexpr int KEPT = 5; // vectors of a lane that are read once: rows up to 1,280 elements
  Eight<T> values[KEPT];
  float most = 0.0f;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int at = (lane + 32 * j) * 8;
    if (at >= c) continue;
    values[j] = Eight<T>::load(x + at);
    most = most_of(values[j], most);
  }
#pragma unroll 4
  for (int at = (lane + 32 * KEPT) * 8; at < c; at += 256) most = most_of(Eight<T>::load(x + at), most);
  most = warp_most(most);
  const float inverse = inverse_of(most);
  if (lane == 0) scales[row] = scale_of(most);
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int at = (lane + 32 * j) * 8;
    if (at < c) round(values[j], inverse, y + at);
  }
#pragma unroll 4
  for (int at = (lane + 32 * KEPT) * 8; at < c; at += 256) round(Eight<T>::load(x + at), inverse, y + at);
}

// The normalized rows of c elements, one warp for each; at most 32 MAX vectors.
template <typename T, int MAX>
__device__ __forceinline__ void layer_norm_rows(const T* x, const T* gamma, const T* beta, unsigned char* y, float* scales,
                                                int rows, int c, float eps) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const size_t start = static_cast<size_t>(row) * c;
  kiln::Row<T, MAX> normal(x + start, c, eps);
  float values[MAX][8], most = 0.0f;
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    if (!normal.has(j, c)) continue;
    normal.affine(j, gamma, beta, values[j]);
    most = most_of(values[j], most);
  }
  most = warp_most(most);
  const float inverse = inverse_of(most);
  if (lane == 0) scales[row] = scale_of(most);
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    if (normal.has(j, c)) round(values[j], inverse, y + start + normal.channel(j));
  }
}

// Rows of n values and n gates to rows of n results, one block for each.
template <typename T>
__device__ __forceinline__ void geglu_rows(const T* x, unsigned char* y, float* scales, int n) {
  constexpr int KEPT = 3; // vectors of a thread that are computed once
  __shared__ float of_warps[32];
  x += static_cast<size_t>(blockIdx.x) * 2 * n;
  y += static_cast<size_t>(blockIdx.x) * n;
  const auto gated = [&](int at, float (&values)[8]) {
    const Eight<T> value = Eight<T>::load(x + at), gate = Eight<T>::load(x + n + at);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = value.get(i) * kiln::gelu_erf_16(gate.get(i));
  };
  const int first = threadIdx.x * 8, step = blockDim.x * 8;
  float kept[KEPT][8], other[8], most = 0.0f;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    if (first + j * step >= n) continue;
    gated(first + j * step, kept[j]);
    most = most_of(kept[j], most);
  }
  for (int at = first + KEPT * step; at < n; at += step) {
    gated(at, other);
    most = most_of(other, most);
  }
  most = block_most(most, of_warps);
  const float inverse = inverse_of(most);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale_of(most);
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    if (first + j * step < n) round(kept[j], inverse, y + first + j * step);
  }
  for (int at = first + KEPT * step; at < n; at += step) {
    gated(at, other);
    round(other, inverse, y + at);
  }
}

// The largest magnitude of a part of an image: blockIdx.x is the part, blockIdx.y the image.
template <typename T> __device__ __forceinline__ void most_of_part(const T* x, float* most, int elements) {
  __shared__ float of_warps[32];
  x += static_cast<size_t>(blockIdx.y) * elements;
  float largest = 0.0f;
#pragma unroll 4
  for (int at = (blockIdx.x * blockDim.x + threadIdx.x) * 8; at < elements; at += gridDim.x * blockDim.x * 8) {
    largest = most_of(Eight<T>::load(x + at), largest);
  }
  largest = block_most(largest, of_warps);
  if (threadIdx.x == 0) most[blockIdx.y * gridDim.x + blockIdx.x] = largest;
}

// Rounds images by the largest magnitudes of their parts: blockIdx.y is the image.
template <typename T>
__device__ __forceinline__ void round_images(const T* x, const float* parts, int num_parts, unsigned char* y, float* scales,
                                             int elements) {
  float most = 0.0f;
  for (int i = threadIdx.x % 32; i < num_parts; i += 32) most = fmaxf(most, parts[blockIdx.y * num_parts + i]);
  most = warp_most(most);
  const float inverse = inverse_of(most);
  if (blockIdx.x == 0 && threadIdx.x == 0) scales[blockIdx.y] = scale_of(most);
  x += static_cast<size_t>(blockIdx.y) * elements;
  y += static_cast<size_t>(blockIdx.y) * elements;
#pragma unroll 4
  for (int at = (blockIdx.x * blockDim.x + threadIdx.x) * 8; at < elements; at += gridDim.x * blockDim.x * 8) {
    round(Eight<T>::load(x + at), inverse, y + at);
  }
}

}  // namespace

#define LAYER_NORM(T, TYPE, MAX)                                                                                    \
  extern "C" __global__ void __launch_bounds__(128) fp8_layer_norm_rows_##MAX##_##TYPE(                             \
      const T* x, const T* gamma, const T* beta, unsigned char* y, float* scales, int rows, int c, float eps) {     \
    layer_norm_rows<T, MAX>(x, gamma, beta, y, scales, rows, c, eps);                                               \
  }
#define ROUND(T, TYPE)                                                                                              \
  extern "C" __global__ void __launch_bounds__(128)                                                                 \
      fp8_round_rows_##TYPE(const T* x, unsigned char* y, float* scales, int rows, int c) {                         \
    round_rows(x, y, scales, rows, c);                                                                              \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) fp8_most_##TYPE(const T* x, float* most, int elements) {        \
    most_of_part(x, most, elements);                                                                                \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) fp8_round_images_##TYPE(                                        \
      const T* x, const float* parts, int num_parts, unsigned char* y, float* scales, int elements) {               \
    round_images(x, parts, num_parts, y, scales, elements);                                                         \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256)                                                                 \
      fp8_geglu_rows_##TYPE(const T* x, unsigned char* y, float* scales, int n) {                                   \
    geglu_rows(x, y, scales, n);                                                                                    \
  }                                                                                                                 \
  LAYER_NORM(T, TYPE, 3) LAYER_NORM(T, TYPE, 5) LAYER_NORM(T, TYPE, 10)
ROUND(__half, f16)
ROUND(__nv_bfloat16, bf16)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // not in PTX, nor for other GPUs
#include "product.cuh"

#define PRODUCT(T, TYPE, COLUMNS, STAGES)                                                                  \
  extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(384, 1) fp8_product_##COLUMNS##_##TYPE(                     \
      const __grid_constant__ kiln::TensorMap x, const __grid_constant__ kiln::TensorMap weight,           \
      const __grid_constant__ kiln::TensorMap y, const __grid_constant__ kiln::TensorMap residual,         \
      const kiln::fp8::Arguments p) {                                                                      \
    kiln::fp8::Product<T, COLUMNS, STAGES>::run(x, weight, y, residual, p);                                             \
  }
#define PRODUCTS(T, TYPE)     \
  PRODUCT(T, TYPE, 64, 8)     \
  PRODUCT(T, TYPE, 128, 5)    \
  PRODUCT(T, TYPE, 160, 5)

PRODUCTS(__half, f16)
PRODUCTS(__nv_bfloat16, bf16)
#endif
