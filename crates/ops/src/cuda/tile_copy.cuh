// Copies to shared memory, and tiles of operands from there, on all GPUs since compute capability 7.5.
#pragma once

#include <cstdint>

namespace kiln {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// 16 bytes, or zeros.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last `LATER` groups of this thread's copies have arrived.
template <int LATER> __device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}
#else
// Compute capability 7.5 copies through registers, at once.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool inside) {
  const uint4 v = inside ? *static_cast<const uint4*>(from) : uint4{};
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void commit_copies() {}
template <int LATER> __device__ __forceinline__ void wait_copies() {}
#endif

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

}  // namespace kiln
