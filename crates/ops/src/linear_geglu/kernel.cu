// Linear layers with GEGLU on Hopper.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // not in PTX, nor for other GPUs
#include "hopper_product.cuh"

KILN_HOPPER_PRODUCT(linear_geglu_256_f16, kiln::WideOperands<__half>, __half, 256, 4, true)
KILN_HOPPER_PRODUCT(linear_geglu_256_bf16, kiln::WideOperands<__nv_bfloat16>, __nv_bfloat16, 256, 4, true)
#endif
