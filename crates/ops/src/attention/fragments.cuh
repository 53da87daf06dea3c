// Products of small tiles by warps (mma.sync, all GPUs since compute capability 8.0), and copies to shared memory.
#pragma once

#include "operands.cuh"

namespace kiln::attention {

// 16 bytes, or zeros.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last `LATER` groups of this thread's copies have arrived.
template <int LATER> __device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

// Loads four 8 by 8 tiles. Threads 8 i .. 8 i + 7 pass the addresses of tile i's rows.
__device__ __forceinline__ void load_tiles(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_tiles_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// d += a b: 16 by 16 times 16 by 8.
template <typename T>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies `ROWS` rows of a head from `first` on to shared memory. Rows past `count` and channels past head_dim become
// zeros. `place` returns the offset of a chunk in bytes.
template <int ROWS, int D, int THREADS, typename T, typename Place>
__device__ __forceinline__ void copy_rows(uint32_t to, const T* from, int64_t stride, int first, int count,
                                          int head_dim, Place place) {
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
    const int row = i / (D / 8), chunk = i % (D / 8);
    const bool inside = first + row < count && chunk * 8 < head_dim;
    copy_async(to + place(row, chunk), inside ? from + (first + row) * stride + chunk * 8 : from, inside);
  }
}

}  // namespace kiln::attention
