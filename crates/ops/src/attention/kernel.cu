// Attention kernels for f16 and bf16. `cuda.rs` chooses among them.

#include "narrow.cuh"
#include "wide.cuh"

using namespace kiln::attention;

// Head sizes up to D; M times 64 queries a block.
#define NARROW(T, TYPE, D, M)                                                                   \
  extern "C" __global__ void __launch_bounds__(128, 2)                                          \
      attention_narrow_##D##_##M##_##TYPE(const Arguments x) {                                  \
    Narrow<T, D, M>::run(x.of_image());                                                                    \
  }
// Head sizes up to D, with groups and a bias.
#define GROUPED(T, TYPE, D)                                                                     \
  extern "C" __global__ void __launch_bounds__(128, 2)                                          \
      attention_grouped_##D##_##TYPE(const Arguments x, const Grouping more) {                  \
    Narrow<T, D, 1, true>::run(x.of_image(), more);                                                        \
  }
// Head sizes up to D; KEYS keys a tile.
#define WIDE(T, TYPE, D, KEYS)                                                                  \
  extern "C" __global__ void __launch_bounds__(256, 1)                                          \
      attention_wide_##D##_##KEYS##_##TYPE(const Arguments x) {                                 \
    Wide<T, D, KEYS>::run(x.of_image());                                                                   \
  }
#define ALL(T, TYPE)      \
  NARROW(T, TYPE, 32, 1)  \
  NARROW(T, TYPE, 48, 1)  \
  NARROW(T, TYPE, 48, 2)  \
  NARROW(T, TYPE, 64, 1)  \
  NARROW(T, TYPE, 64, 2)  \
  NARROW(T, TYPE, 80, 1)  \
  NARROW(T, TYPE, 80, 2)  \
  NARROW(T, TYPE, 128, 1) \
  NARROW(T, TYPE, 160, 1) \
  GROUPED(T, TYPE, 32)    \
  GROUPED(T, TYPE, 64)    \
  GROUPED(T, TYPE, 128)   \
  WIDE(T, TYPE, 256, 32)  \
  WIDE(T, TYPE, 512, 16)  \
  WIDE(T, TYPE, 512, 32)  \
  WIDE(T, TYPE, 512, 64)

ALL(__half, f16)
ALL(__nv_bfloat16, bf16)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // not in PTX, nor for other cards
#include "hopper.cuh"
#include "hopper_wide.cuh"
#include "prompt.cuh"

#define MAPS \
  const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v
// Head size D; GROUPS times 64 queries a block, KEYS keys a tile, BLOCKS blocks a multiprocessor.
#define HOPPER(T, TYPE, D, GROUPS, KEYS, STAGES, AHEAD, BLOCKS)                              \
  extern "C" __global__ void __launch_bounds__(GROUPS * 128, BLOCKS)                         \
      attention_hopper_##D##_##GROUPS##_##KEYS##_##TYPE(MAPS, const Arguments x) {           \
    Hopper<T, D, GROUPS, KEYS, STAGES, AHEAD>::run(q, k, v, x.of_image());                              \
  }
// Heads of 512 channels.
#define HOPPER_WIDE(T, TYPE)                                                                 \
  extern "C" __global__ void __launch_bounds__(256, 1)                                       \
      attention_hopper_wide_512_##TYPE(MAPS, const Arguments x) {                            \
    HopperWide<T>::run(q, k, v, x.of_image());                                                          \
  }
// Head size D, at most 80 keys; BLOCKS blocks a multiprocessor.
#define PROMPT(T, TYPE, D, BLOCKS)                                                           \
  extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                  \
      attention_prompt_##D##_##TYPE(MAPS, const Arguments x) {                               \
    Prompt<T, D>::run(q, k, v, x.of_image());                                                           \
  }
#define ALL_HOPPER(T, TYPE)            \
  HOPPER(T, TYPE, 40, 2, 96, 4, 2, 2)  \
  HOPPER(T, TYPE, 64, 2, 64, 4, 2, 2)  \
  HOPPER(T, TYPE, 64, 3, 128, 4, 2, 1) \
  HOPPER(T, TYPE, 80, 2, 96, 4, 2, 1)  \
  HOPPER(T, TYPE, 128, 2, 96, 4, 2, 1) \
  HOPPER(T, TYPE, 128, 3, 64, 4, 2, 1) \
  HOPPER(T, TYPE, 160, 1, 64, 4, 2, 1) \
  HOPPER_WIDE(T, TYPE)                 \
  PROMPT(T, TYPE, 40, 6)               \
  PROMPT(T, TYPE, 64, 6)               \
  PROMPT(T, TYPE, 80, 4)               \
  PROMPT(T, TYPE, 160, 2)

ALL_HOPPER(__half, f16)
ALL_HOPPER(__nv_bfloat16, bf16)
#endif
