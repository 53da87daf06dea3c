// Products of small tiles by a warp's tensor cores (PTX ISA, mma.sync).
//
// Of each 16 rows by 8 columns of a result, thread `lane` holds row lane / 4, columns 2 (lane % 4) and the next, then the
// same columns of row lane / 4 + 8. Left operands are four such tiles of pairs: rows 0 to 7 and 8 to 15 of columns 0 to 7,
// then of columns 8 to 15. Right operands are two of them, transposed.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kiln {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
// The low and the high half of a pair.
__device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
#endif

// d += a b: 16 by 16 times 16 by 8. The warp must not diverge here: volatile, and no branch near it depends on the lane.
template <typename T>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void multiply<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // Compute capability 7.5 multiplies 16 by 8 times 8 by 8.
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // Compute capability 7.5 has no tensor cores for bf16. The threads pass their pairs on: four threads have the pairs of a
  // row, and column n is that of the threads 4 n to 4 n + 3.
  const int lane = threadIdx.x % 32, row = lane / 4 * 4, column = lane % 4 * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t b = half ? b1 : b0;
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
      const float2 upper = unpack_bf16(__shfl_sync(~0u, a[2 * half], row + k));
      const float2 lower = unpack_bf16(__shfl_sync(~0u, a[2 * half + 1], row + k));
      const float2 left = unpack_bf16(__shfl_sync(~0u, b, column + k));
      const float2 right = unpack_bf16(__shfl_sync(~0u, b, column + 4 + k));
      d[0] += upper.x * left.x + upper.y * left.y;
      d[1] += upper.x * right.x + upper.y * right.y;
      d[2] += lower.x * left.x + lower.y * left.y;
      d[3] += lower.x * right.x + lower.y * right.y;
    }
  }
#endif
}

// d += a b for bytes: 16 by 32 times 32 by 8. Operands are tiles as above with two bytes for each element. Signed integers.
__device__ __forceinline__ void multiply_bytes(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // Compute capability 7.5 multiplies 8 by 16 times 16 by 8.
#pragma unroll
  for (int i = 0; i < 4; ++i) { // the tiles of a: i % 2 is the half of the rows, i / 2 that of the columns
    const int row = i % 2;
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(d[2 * row]), "+r"(d[2 * row + 1])
                 : "r"(a[i]), "r"(i < 2 ? b0 : b1));
  }
#endif
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
// The same for e4m3 numbers.
__device__ __forceinline__ void multiply_bytes(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

}  // namespace kiln
