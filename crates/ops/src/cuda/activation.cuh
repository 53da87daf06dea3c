// Activations of one number.
#pragma once

#include "element.cuh"

namespace kiln {

// The numbers of `Activation`.
enum Function { SILU, QUICK_GELU, GELU_ERF, RELU, GELU_TANH };

// x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). For large negative x the
// exponential overflows to infinity and the quotient is -0.
__device__ __forceinline__ float gelu_tanh(float x) {
  const float u = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * u));
}

__device__ __forceinline__ float apply(int function, float x) {
  switch (function) {
    case SILU: return silu(x);
    case QUICK_GELU: return x / (1.0f + expf(-1.702f * x));
    case GELU_ERF: return gelu_erf(x);
    case GELU_TANH: return gelu_tanh(x);
    default: return x < 0.0f ? 0.0f : x;  // NaN stays NaN
  }
}

}  // namespace kiln
