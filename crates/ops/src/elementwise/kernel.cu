// Arithmetic element by element, conversions, and rows by their numbers. A thread strides over the elements.

#include "element.cuh"

namespace {

// The order of `Arithmetic`.
enum Function { ADD, SUB, MUL };

__device__ __forceinline__ int64_t first() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64_t stride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

__device__ __forceinline__ float apply(int function, float a, float b) {
  return function == ADD ? a + b : function == SUB ? a - b : a * b;
}

// `b` has `period` elements and is repeated. With `vectored`, memory is aligned, `b` has `n` elements, and a thread
// processes LANES neighbors at a time.
template <typename T>
__device__ __forceinline__ void binary(const T* a, const T* b, T* y, int64_t n, int64_t period, int function,
                                       int vectored) {
  if (vectored) {
    using V = kiln::Vector<T, kiln::LANES<T>>;
    for (int64_t i = first() * kiln::LANES<T>; i < n; i += stride() * kiln::LANES<T>) {
      V v = V::load(a + i);
      const V w = V::load(b + i);
#pragma unroll
      for (int lane = 0; lane < kiln::LANES<T>; ++lane) v.set(lane, apply(function, v.get(lane), w.get(lane)));
      v.store(y + i);
    }
  } else {
    for (int64_t i = first(); i < n; i += stride()) {
      y[i] = kiln::from_f32<T>(apply(function, kiln::to_f32(a[i]), kiln::to_f32(b[i % period])));
    }
  }
}

template <typename T>
__device__ __forceinline__ void affine(const T* x, T* y, int64_t n, float mul, float add) {
  // Rounded twice, as on the CPU.
  for (int64_t i = first(); i < n; i += stride()) {
    y[i] = kiln::from_f32<T>(__fadd_rn(__fmul_rn(kiln::to_f32(x[i]), mul), add));
  }
}

template <typename From, typename To>
__device__ __forceinline__ void cast(const From* x, To* y, int64_t n) {
  for (int64_t i = first(); i < n; i += stride()) y[i] = kiln::from_f32<To>(kiln::to_f32(x[i]));
}

}  // namespace

// Up to four terms, of which the first `count` are there. Products and sums are rounded one by one, as on the CPU.
extern "C" __global__ void weighted_sum(const float* x0, const float* x1, const float* x2, const float* x3, float f0,
                                        float f1, float f2, float f3, int count, float* y, int64_t n) {
  for (int64_t i = first(); i < n; i += stride()) {
    float sum = __fmul_rn(x0[i], f0);
    if (count > 1) sum = __fadd_rn(sum, __fmul_rn(x1[i], f1));
    if (count > 2) sum = __fadd_rn(sum, __fmul_rn(x2[i], f2));
    if (count > 3) sum = __fadd_rn(sum, __fmul_rn(x3[i], f3));
    y[i] = sum;
  }
}

#define INSTANCE(T, NAME)                                                                                              \
  extern "C" __global__ void binary_##NAME(const T* a, const T* b, T* y, int64_t n, int64_t period, int function,      \
                                           int vectored) {                                                             \
    binary<T>(a, b, y, n, period, function, vectored);                                                                 \
  }                                                                                                                    \
  extern "C" __global__ void affine_##NAME(const T* x, T* y, int64_t n, float mul, float add) {                        \
    affine<T>(x, y, n, mul, add);                                                                                      \
  }                                                                                                                    \
  extern "C" __global__ void cast_##NAME##_f32(const T* x, float* y, int64_t n) { cast<T, float>(x, y, n); }           \
  extern "C" __global__ void cast_##NAME##_f16(const T* x, __half* y, int64_t n) { cast<T, __half>(x, y, n); }         \
  extern "C" __global__ void cast_##NAME##_bf16(const T* x, __nv_bfloat16* y, int64_t n) {                             \
    cast<T, __nv_bfloat16>(x, y, n);                                                                                   \
  }
KILN_FOR_EVERY_TYPE(INSTANCE)

// Element i of y is the one at its place in x: i = ((i0 d1 + i1) d2 + i2) d3 + i3, and the strides of x are s0 to s3.
#define COPY(UNIT, T)                                                                                                  \
  extern "C" __global__ void strided_copy_##UNIT(const T* x, T* y, int64_t n, int64_t d1, int64_t d2, int64_t d3,      \
                                                 int64_t s0, int64_t s1, int64_t s2, int64_t s3) {                     \
    for (int64_t i = first(); i < n; i += stride()) {                                                                  \
      const int64_t i3 = i % d3, rows = i / d3, i2 = rows % d2, maps = rows / d2;                                      \
      y[i] = x[maps / d1 * s0 + maps % d1 * s1 + i2 * s2 + i3 * s3];                                                   \
    }                                                                                                                  \
  }
COPY(2, uint16_t)
COPY(4, uint32_t)
COPY(8, uint2)
COPY(16, uint4)

// Row i of y is row rows[i] of the table. A row has `row` units.
#define GATHER(UNIT, T)                                                                                                \
  extern "C" __global__ void index_select_##UNIT(const T* table, const uint32_t* rows, T* y, int64_t n, int64_t row) { \
    for (int64_t i = first(); i < n; i += stride()) y[i] = table[rows[i / row] * row + i % row];                       \
  }
GATHER(2, uint16_t)
GATHER(4, uint32_t)
GATHER(8, uint2)
GATHER(16, uint4)
