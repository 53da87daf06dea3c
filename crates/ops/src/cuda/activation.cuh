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

// Like `gelu_tanh`, with errors below those of results in 16 bits.
__device__ __forceinline__ float gelu_tanh_16(float x) {
  const float u = 0.79788456080286536f * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.0f + __expf(-2.0f * u));
}

// The function of N numbers, whose results are rounded to at most 16 bits.
template <int N>
__device__ __forceinline__ void apply_16(int function, float (&x)[N]) {
  const auto each = [&](auto f) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = f(x[i]);
  };
  switch (function) {
    case SILU: return each([](float x) { return silu(x); });
    case GELU_ERF: return each([](float x) { return gelu_erf_16(x); });
    case GELU_TANH: return each([](float x) { return gelu_tanh_16(x); });
    default: return each([=](float x) { return apply(function, x); });
  }
}

}  // namespace kiln
