// Instructions of Hopper: tile copies by the tensor memory accelerator (TMA), barriers in shared memory, and what surrounds
// warp-group products. PTX ISA, sections on wgmma.mma_async, cp.async.bulk.tensor and mbarrier.
//
// For code between `#ifdef __CUDA_ARCH_FEAT_SM90_ALL`: other architectures lack these instructions.
#pragma once

#include "element.cuh"

namespace kiln {

// A tensor map, as the driver encodes it.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// A barrier whose phase ends after `count` arrivals and all expected bytes.
struct Barrier {
  uint64_t state;

  __device__ __forceinline__ void init(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(count) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  __device__ __forceinline__ void arrive_expecting(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  // Arrives at the same barrier of block `rank` of the cluster.
  __device__ __forceinline__ void arrive_in(int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(rank)
        : "memory");
  }
  // Waits until the phase of this parity has ended.
  __device__ __forceinline__ void wait(int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

// True for one thread of the warp.
__device__ __forceinline__ bool elect() {
  int elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(elected)::"memory");
  return elected != 0;
}

// Waits until all warps of this group have arrived.
__device__ __forceinline__ void group_sync(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// Makes initialized barriers visible to the TMA.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Loads a tile of `map`'s box from the element (a, b, c, d) on, the fastest dimension first. Elements out of bounds become
// zeros.
__device__ __forceinline__ void copy_tile(void* to, const TensorMap& map, Barrier& barrier, int a, int b, int c, int d) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// The same into the shared memory of all blocks of the cluster that `blocks` has bits of, at the same place. Each counts the
// bytes at its own barrier.
__device__ __forceinline__ void copy_tile_to(int blocks, void* to, const TensorMap& map, Barrier& barrier, int a, int b, int c,
                                             int d) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(a), "r"(b), "r"(c), "r"(d), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

// Writes a tile of `map`'s box to the element (a, b, c, d) and its neighbors. Elements out of bounds are not written.
__device__ __forceinline__ void store_tile(const TensorMap& map, const void* from, int a, int b, int c, int d) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared_address(from)), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the stores that this thread committed have read shared memory.
__device__ __forceinline__ void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// The number of this block in its cluster.
__device__ __forceinline__ int rank_in_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits until all threads of the cluster that have not ended have arrived.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// Makes this thread's writes to shared memory visible to products. A barrier must follow.
__device__ __forceinline__ void publish_operands() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// An operand in shared memory: rows of 128 bytes, swizzled, eight in 1,024 bytes. `beyond` is the distance in bytes to
// the next 64 channels, where channels are the columns of a right operand.
__device__ __forceinline__ uint64_t operand(const void* at, int beyond = 16) {
  constexpr uint64_t EIGHT_ROWS = 1024 >> 4, SWIZZLE_128 = 1;
  return uint64_t(shared_address(at) >> 4 & 0x3fff) | uint64_t(beyond >> 4) << 16 | EIGHT_ROWS << 32 |
         SWIZZLE_128 << 62;
}
// `bytes` further.
__device__ __forceinline__ uint64_t advanced(uint64_t operand, int bytes) { return operand + (bytes >> 4); }

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all but the last `LATER` groups of products are done.
template <int LATER> __device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
}
// Keeps the compiler from using the registers of a tile before this point, or from changing them after it.
template <int N> __device__ __forceinline__ void pin(float (&tile)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    asm volatile("" : "+f"(tile[n][0]), "+f"(tile[n][1]), "+f"(tile[n][2]), "+f"(tile[n][3])::"memory");
  }
}

}  // namespace kiln
