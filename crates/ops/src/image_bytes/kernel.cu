// Images of -1 to 1 as bytes. A thread converts the channels of a pixel. Every operation is rounded on its own, as on the CPU.

#include <cstdint>

extern "C" __global__ void image_bytes(const float* x, uint8_t* y, int pixels, int plane, int channels, int down) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pixels) return;
  const float* from = x + static_cast<int64_t>(i / plane) * plane * channels + i % plane;
  uint8_t* to = y + static_cast<int64_t>(i) * channels;
  for (int channel = 0; channel < channels; ++channel) {
    const float value = from[static_cast<int64_t>(channel) * plane];
    if (down) {
      const float unit = fminf(fmaxf(__fmul_rn(__fadd_rn(value, 1.0f), 0.5f), 0.0f), 1.0f);
      to[channel] = static_cast<uint8_t>(__fmul_rn(255.0f, unit));
    } else {
      const float unit = fminf(fmaxf(__fadd_rn(__fmul_rn(value, 0.5f), 0.5f), 0.0f), 1.0f);
      to[channel] = static_cast<uint8_t>(__float2int_rn(__fmul_rn(unit, 255.0f)));
    }
  }
}
