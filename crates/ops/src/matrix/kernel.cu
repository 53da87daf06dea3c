// Dequantizes stored rows of a matrix: every thread converts 8 neighbors of a row. The layouts and the arithmetic are
// those of blocks.rs and f8.rs.
#include "element.cuh"

namespace {

using Bytes = const uint8_t*;

constexpr int NUMBERS = 8;

// f32 products and sums as on the CPU: none is fused, so that values have the same bits everywhere.
__device__ __forceinline__ float product_plus(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

__device__ __forceinline__ float half_at(Bytes from) {
  const uint16_t bits = static_cast<uint16_t>(from[0] | from[1] << 8);
  return __half2float(__ushort_as_half(bits));
}

__device__ __forceinline__ uint32_t word_at(Bytes from) {
  return from[0] | from[1] << 8 | from[2] << 16 | static_cast<uint32_t>(from[3]) << 24;
}

// The low 4 bits of 16 bytes for the first 16 of 32 elements, and the high ones for the others.
__device__ __forceinline__ int nibble(Bytes quants, int i) { return i < 16 ? quants[i] & 0xf : quants[i - 16] >> 4; }

struct Q4_0 {
  static constexpr int ELEMENTS = 32, BYTES = 18;
  __device__ static float number(Bytes block, int i) { return __fmul_rn(nibble(block + 2, i) - 8, half_at(block)); }
};

struct Q4_1 {
  static constexpr int ELEMENTS = 32, BYTES = 20;
  __device__ static float number(Bytes block, int i) {
    return product_plus(nibble(block + 4, i), half_at(block), half_at(block + 2));
  }
};

struct Q5_0 {
  static constexpr int ELEMENTS = 32, BYTES = 22;
  __device__ static float number(Bytes block, int i) {
    const int fifth = (word_at(block + 2) >> i & 1) << 4;
    return __fmul_rn((nibble(block + 6, i) | fifth) - 16, half_at(block));
  }
};

struct Q5_1 {
  static constexpr int ELEMENTS = 32, BYTES = 24;
  __device__ static float number(Bytes block, int i) {
    const int fifth = (word_at(block + 4) >> i & 1) << 4;
    return product_plus(nibble(block + 8, i) | fifth, half_at(block), half_at(block + 2));
  }
};

struct Q8_0 {
  static constexpr int ELEMENTS = 32, BYTES = 34;
  __device__ static float number(Bytes block, int i) {
    return __fmul_rn(static_cast<int8_t>(block[2 + i]), half_at(block));
  }
};

struct Q2_K {
  static constexpr int ELEMENTS = 256, BYTES = 84;
  __device__ static float number(Bytes block, int i) {
    const int group = i / 16;
    const uint8_t scales = block[group];
    const float d = __fmul_rn(half_at(block + 80), scales & 0xf), m = __fmul_rn(half_at(block + 82), scales >> 4);
    const int q = block[16 + group / 8 * 32 + i % 32] >> (group % 8 / 2 * 2) & 3;
    return product_plus(d, q, -m);
  }
};

struct Q3_K {
  static constexpr int ELEMENTS = 256, BYTES = 110;
  __device__ static float number(Bytes block, int i) {
    const int group = i / 16;
    const Bytes packed = block + 96;
    const int low = packed[group % 8] >> (group / 8 * 4) & 0xf, top = packed[8 + group % 4] >> (group / 4 * 2) & 3;
    const float d = __fmul_rn(half_at(block + 108), (low | top << 4) - 32);
    const int q = block[32 + group / 8 * 32 + i % 32] >> (group % 8 / 2 * 2) & 3;
    const int missing = block[i % 32] >> (group / 2) & 1 ? 0 : 4;
    return __fmul_rn(d, q - missing);
  }
};

// Scale and minimum of one of 8 groups, 6 bits each, in 12 bytes.
struct ScaleAndMinimum {
  int scale, minimum;
  __device__ ScaleAndMinimum(Bytes packed, int group) {
    if (group < 4) {
      scale = packed[group] & 63;
      minimum = packed[group + 4] & 63;
    } else {
      scale = (packed[group + 4] & 0xf) | packed[group - 4] >> 6 << 4;
      minimum = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    }
  }
};

struct Q4_K {
  static constexpr int ELEMENTS = 256, BYTES = 144;
  __device__ static float number(Bytes block, int i) {
    const int group = i / 32;
    const ScaleAndMinimum of(block + 4, group);
    const int q = block[16 + group / 2 * 32 + i % 32] >> (group % 2 * 4) & 0xf;
    return product_plus(__fmul_rn(half_at(block), of.scale), q, -__fmul_rn(half_at(block + 2), of.minimum));
  }
};

struct Q5_K {
  static constexpr int ELEMENTS = 256, BYTES = 176;
  __device__ static float number(Bytes block, int i) {
    const int group = i / 32;
    const ScaleAndMinimum of(block + 4, group);
    const int fifth = (block[16 + i % 32] >> group & 1) << 4;
    const int q = (block[48 + group / 2 * 32 + i % 32] >> (group % 2 * 4) & 0xf) | fifth;
    return product_plus(__fmul_rn(half_at(block), of.scale), q, -__fmul_rn(half_at(block + 2), of.minimum));
  }
};

struct Q6_K {
  static constexpr int ELEMENTS = 256, BYTES = 210;
  __device__ static float number(Bytes block, int i) {
    const int part = i / 128, row = i % 128 / 32;
    const float d = __fmul_rn(half_at(block + 208), static_cast<int8_t>(block[192 + i / 16]));
    const int low = block[part * 64 + row % 2 * 32 + i % 32] >> (row / 2 * 4) & 0xf;
    const int high = block[128 + part * 32 + i % 32] >> (row * 2) & 3;
    return __fmul_rn(d, (low | high << 4) - 32);
  }
};

template <typename Block> struct Blocked {
  __device__ static float number(Bytes row, int i) {
    return Block::number(row + static_cast<size_t>(i / Block::ELEMENTS) * Block::BYTES, i % Block::ELEMENTS);
  }
};

struct F8 {
  __device__ static float number(Bytes row, int i) {
    const uint32_t bits = row[4 + i], exponent = bits >> 3 & 0xf, mantissa = bits & 0x7;
    float magnitude = __uint_as_float((exponent + 120) << 23 | mantissa << 20);
    if (exponent == 0) magnitude = mantissa / 512.0f;
    if ((bits & 0x7f) == 0x7f) magnitude = __uint_as_float(0x7fc00000);
    return __fmul_rn(__uint_as_float(__float_as_uint(magnitude) | bits >> 7 << 31), __uint_as_float(word_at(row)));
  }
};

struct F16 {
  __device__ static float number(Bytes row, int i) { return half_at(row + 2 * i); }
};

struct Bf16 {
  __device__ static float number(Bytes row, int i) {
    return __uint_as_float(static_cast<uint32_t>(row[2 * i] | row[2 * i + 1] << 8) << 16);
  }
};

template <typename T, typename Row>
__device__ void numbers(Bytes rows, T* out, int row_bytes, int k) {
  const int first = (blockIdx.y * blockDim.x + threadIdx.x) * NUMBERS;
  if (first >= k) return;
  const Bytes row = rows + static_cast<size_t>(blockIdx.x) * row_bytes;
  T* to = out + static_cast<size_t>(blockIdx.x) * k;
#pragma unroll
  for (int j = 0; j < NUMBERS; j++) {
    if (first + j < k) to[first + j] = kiln::from_f32<T>(Row::number(row, first + j));
  }
}

}  // namespace

// One row for each block in x, ranges of its elements in y.
#define INSTANCE(T, TYPE, ROW, NAME)                                                                        \
  extern "C" __global__ void matrix_##NAME##_##TYPE(const uint8_t* rows, T* out, int row_bytes, int k) {    \
    numbers<T, ROW>(rows, out, row_bytes, k);                                                               \
  }
#define OF_EVERY_ROW(T, TYPE)                  \
  INSTANCE(T, TYPE, F16, f16)                  \
  INSTANCE(T, TYPE, Bf16, bf16)                \
  INSTANCE(T, TYPE, F8, f8)                    \
  INSTANCE(T, TYPE, Blocked<Q4_0>, q4_0)       \
  INSTANCE(T, TYPE, Blocked<Q4_1>, q4_1)       \
  INSTANCE(T, TYPE, Blocked<Q5_0>, q5_0)       \
  INSTANCE(T, TYPE, Blocked<Q5_1>, q5_1)       \
  INSTANCE(T, TYPE, Blocked<Q8_0>, q8_0)       \
  INSTANCE(T, TYPE, Blocked<Q2_K>, q2_k)       \
  INSTANCE(T, TYPE, Blocked<Q3_K>, q3_k)       \
  INSTANCE(T, TYPE, Blocked<Q4_K>, q4_k)       \
  INSTANCE(T, TYPE, Blocked<Q5_K>, q5_k)       \
  INSTANCE(T, TYPE, Blocked<Q6_K>, q6_k)
KILN_FOR_EVERY_TYPE(OF_EVERY_ROW)
