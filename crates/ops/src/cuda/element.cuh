// Shared parts of the kernels: element types, 16-byte accesses, functions. Arithmetic is f32 whatever the storage type.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kiln {

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_f32<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// Elements of one access of 16 bytes.
template <typename T> constexpr int LANES = 16 / static_cast<int>(sizeof(T));

// Some neighboring elements, loaded and stored as one.
template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
  T values[N];

  __device__ __forceinline__ static Vector load(const T* from) { return *reinterpret_cast<const Vector*>(from); }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
  __device__ __forceinline__ float get(int i) const { return to_f32(values[i]); }
  __device__ __forceinline__ void set(int i, float value) { values[i] = from_f32<T>(value); }
};

// The address of shared memory in its own address space, as instructions take it.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The sum over a warp, in every lane, in one fixed order.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

// x / (1 + exp(-x)). With fast functions: the error is 4 units in the last place of f32, far below that of f16. For
// large negative x the exponential overflows to infinity and the quotient is -0.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// x / 2 (1 + erf(x / sqrt(2))), with CUDA's erf (2 units in the last place).
__device__ __forceinline__ float gelu_erf(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

// The same for 16-bit storage, within 4e-7 times the factor x: erf after Abramowitz and Stegun, 7.1.26, in a third of
// the instructions.
__device__ __forceinline__ float gelu_erf_16(float x) {
  const float z = fabsf(x) * 0.70710678118654752f;
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
  const float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float tail = p * __expf(-z * z);  // 1 - erf(z)
  return 0.5f * x * (x < 0.0f ? tail : 2.0f - tail);
}

}  // namespace kiln

// Instances of a kernel template for the three types, with C names: NAME_f32, NAME_f16, NAME_bf16.
#define KILN_FOR_EVERY_TYPE(INSTANCE) \
  INSTANCE(float, f32)                \
  INSTANCE(__half, f16)               \
  INSTANCE(__nv_bfloat16, bf16)
