// Kernels for products of bytes: rounding of activations, and the products themselves.

#include "activation.cuh"
#include "byte_rounding.cuh"
#include "tile.cuh"
#include "../layer_norm/row.cuh"

namespace {

using namespace kiln::w8a8;

template <typename T> using Eight = kiln::Vector<T, 8>;

// One warp for each row of c elements.
template <typename Number, typename T>
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
    most = most_of<Number>(values[j], most);
  }
#pragma unroll 4
  for (int at = (lane + 32 * KEPT) * 8; at < c; at += 256) most = most_of<Number>(Eight<T>::load(x + at), most);
  most = warp_most<Number>(most);
  const float inverse = inverse_of<Number>(most);
  if (lane == 0) scales[row] = scale_of<Number>(most);
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int at = (lane + 32 * j) * 8;
    if (at < c) round<Number>(values[j], inverse, y + at);
  }
#pragma unroll 4
  for (int at = (lane + 32 * KEPT) * 8; at < c; at += 256) round<Number>(Eight<T>::load(x + at), inverse, y + at);
}

// The normalized rows of c elements, one warp for each; at most 32 MAX vectors.
template <typename Number, typename T, int MAX>
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
    most = most_of<Number>(values[j], most);
  }
  most = warp_most<Number>(most);
  const float inverse = inverse_of<Number>(most);
  if (lane == 0) scales[row] = scale_of<Number>(most);
#pragma unroll
  for (int j = 0; j < MAX; ++j) {
    if (normal.has(j, c)) round<Number>(values[j], inverse, y + start + normal.channel(j));
  }
}

// The activation of `gates`, times `values` unless they are null, behind `first` channels of `before`: rows of `c` channels in all,
// one block for each. Rows of gates and of values have the distance `row`.
template <typename Number, typename T>
__device__ __forceinline__ void activated_rows(const T* before, const T* gates, const T* values, unsigned char* y, float* scales,
                                               int first, int c, int row, int function) {
  constexpr int KEPT = 4; // vectors of a thread that are computed once
  __shared__ float of_warps[32];
  before += static_cast<size_t>(blockIdx.x) * first;
  gates += static_cast<size_t>(blockIdx.x) * row;
  values += values == nullptr ? 0 : static_cast<size_t>(blockIdx.x) * row;
  y += static_cast<size_t>(blockIdx.x) * c;
  const auto input = [&](int at, float (&x)[8]) {
    const Eight<T> gate = Eight<T>::load(at < first ? before + at : gates + at - first);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = gate.get(i);
    if (at < first) return;
    kiln::apply_16(function, x);
    if (values == nullptr) return;
    const Eight<T> value = Eight<T>::load(values + at - first);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= value.get(i);
  };
  const int start = threadIdx.x * 8, step = blockDim.x * 8;
  float kept[KEPT][8], other[8], most = 0.0f;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    if (start + j * step >= c) continue;
    input(start + j * step, kept[j]);
    most = most_of<Number>(kept[j], most);
  }
  for (int at = start + KEPT * step; at < c; at += step) {
    input(at, other);
    most = most_of<Number>(other, most);
  }
  most = block_most<Number>(most, of_warps);
  const float inverse = inverse_of<Number>(most);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale_of<Number>(most);
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    if (start + j * step < c) round<Number>(kept[j], inverse, y + start + j * step);
  }
  for (int at = start + KEPT * step; at < c; at += step) {
    input(at, other);
    round<Number>(other, inverse, y + at);
  }
}

// The largest magnitude of a part of an image: blockIdx.x is the part, blockIdx.y the image.
template <typename Number, typename T>
__device__ __forceinline__ void most_of_part(const T* x, float* most, int elements) {
  __shared__ float of_warps[32];
  x += static_cast<size_t>(blockIdx.y) * elements;
  float largest = 0.0f;
#pragma unroll 4
  for (int at = (blockIdx.x * blockDim.x + threadIdx.x) * 8; at < elements; at += gridDim.x * blockDim.x * 8) {
    largest = most_of<Number>(Eight<T>::load(x + at), largest);
  }
  largest = block_most<Number>(largest, of_warps);
  if (threadIdx.x == 0) most[blockIdx.y * gridDim.x + blockIdx.x] = largest;
}

// Rounds images by the largest magnitudes of their parts: blockIdx.y is the image.
template <typename Number, typename T>
__device__ __forceinline__ void round_images(const T* x, const float* parts, int num_parts, unsigned char* y, float* scales,
                                             int elements) {
  float most = 0.0f;
  for (int i = threadIdx.x % 32; i < num_parts; i += 32) most = Number::larger(most, parts[blockIdx.y * num_parts + i]);
  most = warp_most<Number>(most);
  const float inverse = inverse_of<Number>(most);
  if (blockIdx.x == 0 && threadIdx.x == 0) scales[blockIdx.y] = scale_of<Number>(most);
  x += static_cast<size_t>(blockIdx.y) * elements;
  y += static_cast<size_t>(blockIdx.y) * elements;
#pragma unroll 4
  for (int at = (blockIdx.x * blockDim.x + threadIdx.x) * 8; at < elements; at += gridDim.x * blockDim.x * 8) {
    round<Number>(Eight<T>::load(x + at), inverse, y + at);
  }
}

}  // namespace

#define LAYER_NORM(NUMBER, NAME, T, TYPE, MAX)                                                                      \
  extern "C" __global__ void __launch_bounds__(128) w8a8_layer_norm_rows_##MAX##_##NAME##_##TYPE(                   \
      const T* x, const T* gamma, const T* beta, unsigned char* y, float* scales, int rows, int c, float eps) {     \
    layer_norm_rows<NUMBER, T, MAX>(x, gamma, beta, y, scales, rows, c, eps);                                       \
  }
#define ROUND(NUMBER, NAME, T, TYPE)                                                                                \
  extern "C" __global__ void __launch_bounds__(128)                                                                 \
      w8a8_round_rows_##NAME##_##TYPE(const T* x, unsigned char* y, float* scales, int rows, int c) {               \
    round_rows<NUMBER>(x, y, scales, rows, c);                                                                      \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256)                                                                 \
      w8a8_most_##NAME##_##TYPE(const T* x, float* most, int elements) {                                            \
    most_of_part<NUMBER>(x, most, elements);                                                                        \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) w8a8_round_images_##NAME##_##TYPE(                              \
      const T* x, const float* parts, int num_parts, unsigned char* y, float* scales, int elements) {               \
    round_images<NUMBER>(x, parts, num_parts, y, scales, elements);                                                 \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(512) w8a8_activated_rows_##NAME##_##TYPE(                            \
      const T* before, const T* gates, const T* values, unsigned char* y, float* scales, int first, int c, int row, \
      int function) {                                                                                               \
    activated_rows<NUMBER>(before, gates, values, y, scales, first, c, row, function);                              \
  }                                                                                                                 \
  LAYER_NORM(NUMBER, NAME, T, TYPE, 3)                                                                              \
  LAYER_NORM(NUMBER, NAME, T, TYPE, 5)                                                                              \
  LAYER_NORM(NUMBER, NAME, T, TYPE, 10)
ROUND(E4m3, e4m3, __half, f16)
ROUND(E4m3, e4m3, __nv_bfloat16, bf16)
ROUND(Int8, int8, __half, f16)
ROUND(Int8, int8, __nv_bfloat16, bf16)

#define TILE(NUMBER, NAME, T, TYPE, SIDE)                                                                        \
  extern "C" __global__ void __launch_bounds__(TileProduct<NUMBER, T, SIDE>::THREADS)                            \
      w8a8_tile_##SIDE##_##NAME##_##TYPE(const unsigned char* x, const unsigned char* weight, const T* residual, \
                                         T* y, const kiln::ImageProduct p) {                                     \
    TileProduct<NUMBER, T, SIDE>::run(x, weight, residual, y, p);                                                \
  }
#define TILES(NUMBER, NAME)                \
  TILE(NUMBER, NAME, __half, f16, 64)      \
  TILE(NUMBER, NAME, __half, f16, 128)     \
  TILE(NUMBER, NAME, __nv_bfloat16, bf16, 64) \
  TILE(NUMBER, NAME, __nv_bfloat16, bf16, 128)
TILES(Int8, int8)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
TILES(E4m3, e4m3)
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // not in PTX, nor for other GPUs
#include "hopper_product.cuh"

#define PRODUCT(T, TYPE, COLUMNS, STAGES) \
  KILN_HOPPER_PRODUCT(w8a8_product_##COLUMNS##_##TYPE, kiln::E4m3Operands, T, COLUMNS, STAGES)
#define PRODUCTS(T, TYPE)     \
  PRODUCT(T, TYPE, 64, 8)     \
  PRODUCT(T, TYPE, 128, 5)    \
  PRODUCT(T, TYPE, 160, 5)

PRODUCTS(__half, f16)
PRODUCTS(__nv_bfloat16, bf16)
#endif
