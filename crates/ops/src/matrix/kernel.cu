// Dequantizes stored rows of a matrix: every thread converts 8 neighbors of a row. The layouts and the arithmetic are
// those of blocks.rs, table_blocks.rs, f8.rs and int8_rows.rs.
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

// Tables of 4-bit codes, in memory that the L1 cache holds: the threads of a warp read different entries.
__device__ const float IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
__device__ const float NF4_VALUES[16] = {
    -1.0f,        -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
    0.0795803f,   0.1609302f,  0.2461123f,   0.33791524f, 0.44070983f,  0.562617f,    0.72295684f,   1.0f};
__device__ const float FP4_VALUES[16] = {
    0.0f,  0.0625f / 12.0f,  8.0f / 12.0f,  1.0f,  4.0f / 12.0f,  0.5f,  2.0f / 12.0f,  0.25f,
    -0.0f, -0.0625f / 12.0f, -8.0f / 12.0f, -1.0f, -4.0f / 12.0f, -0.5f, -2.0f / 12.0f, -0.25f};

struct IQ4_NL {
  static constexpr int ELEMENTS = 32, BYTES = 18;
  __device__ static float number(Bytes block, int i) {
    return __fmul_rn(half_at(block), IQ4_VALUES[nibble(block + 2, i)]);
  }
};

struct IQ4_XS {
  static constexpr int ELEMENTS = 256, BYTES = 136;
  __device__ static float number(Bytes block, int i) {
    const int group = i / 32;
    const int low = block[4 + group / 2] >> (4 * (group % 2)) & 0xf;
    const int top = (block[2] | block[3] << 8) >> (2 * group) & 3;
    const float d = __fmul_rn(half_at(block), (low | top << 4) - 32);
    return __fmul_rn(d, IQ4_VALUES[nibble(block + 8 + group * 16, i % 32)]);
  }
};

// bitsandbytes' codes: two neighbors in a byte, the first one in the high half.
__device__ __forceinline__ float indexed(const float* table, Bytes block, int i) {
  const int code = block[4 + i / 2] >> (i % 2 ? 0 : 4) & 0xf;
  return __fmul_rn(table[code], __uint_as_float(word_at(block)));
}

struct NF4 {
  static constexpr int ELEMENTS = 64, BYTES = 36;
  __device__ static float number(Bytes block, int i) { return indexed(NF4_VALUES, block, i); }
};

struct FP4 {
  static constexpr int ELEMENTS = 64, BYTES = 36;
  __device__ static float number(Bytes block, int i) { return indexed(FP4_VALUES, block, i); }
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

// The upper half of an f16.
struct F8E5M2 {
  __device__ static float number(Bytes row, int i) {
    const __half value = __ushort_as_half(static_cast<uint16_t>(row[4 + i] << 8));
    return __fmul_rn(__half2float(value), __uint_as_float(word_at(row)));
  }
};

struct Int8 {
  __device__ static float number(Bytes row, int i) {
    return __fmul_rn(static_cast<int8_t>(row[4 + i]), __uint_as_float(word_at(row)));
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

// Integers in groups of GROUP that are rotated back. The sums of a group are exact, so that their order is of no account.
template <typename T, int GROUP>
__device__ void rotated(Bytes rows, T* out, int row_bytes, int k) {
  constexpr int TILE = 1024;  // the elements of a block, as in `numbers`: whole groups
  static_assert(TILE % GROUP == 0, "groups do not cross blocks");
  constexpr float SCALE = GROUP == 16 ? 1.0f / 4 : GROUP == 64 ? 1.0f / 8 : 1.0f / 16;
  __shared__ int sums[TILE];
  const int first = blockIdx.y * TILE;
  const Bytes row = rows + static_cast<size_t>(blockIdx.x) * row_bytes;
  T* to = out + static_cast<size_t>(blockIdx.x) * k;
  for (int i = threadIdx.x; i < TILE; i += blockDim.x) {
    sums[i] = first + i < k ? static_cast<int8_t>(row[4 + first + i]) : 0;
  }
#pragma unroll
  for (int stride = 1; stride < GROUP; stride *= 4) {
    __syncthreads();
    for (int i = threadIdx.x; i < TILE / 4; i += blockDim.x) {
      int* at = sums + i / stride * (4 * stride) + i % stride;
      const int a = at[0], b = at[stride], c = at[2 * stride], d = at[3 * stride];
      const int sum = a + b + c + d;
      at[0] = sum - 2 * d;  // row i of the matrix has -1 in column 3 - i
      at[stride] = sum - 2 * c;
      at[2 * stride] = sum - 2 * b;
      at[3 * stride] = sum - 2 * a;
    }
  }
  __syncthreads();
  const float factor = __uint_as_float(word_at(row));
  for (int i = threadIdx.x; i < TILE; i += blockDim.x) {
    if (first + i < k) to[first + i] = kiln::from_f32<T>(__fmul_rn(__fmul_rn(sums[i], SCALE), factor));
  }
}

}  // namespace

// One row for each block in x, ranges of its elements in y.
#define INSTANCE(T, TYPE, ROW, NAME)                                                                        \
  extern "C" __global__ void matrix_##NAME##_##TYPE(const uint8_t* rows, T* out, int row_bytes, int k) {    \
    numbers<T, ROW>(rows, out, row_bytes, k);                                                               \
  }
#define ROTATED(T, TYPE, GROUP)                                                                              \
  extern "C" __global__ void matrix_int8_convrot##GROUP##_##TYPE(                                            \
      const uint8_t* rows, T* out, int row_bytes, int k) {                                                   \
    rotated<T, GROUP>(rows, out, row_bytes, k);                                                              \
  }
#define OF_EVERY_ROW(T, TYPE)                  \
  ROTATED(T, TYPE, 16)                         \
  ROTATED(T, TYPE, 64)                         \
  ROTATED(T, TYPE, 256)                        \
  INSTANCE(T, TYPE, F16, f16)                  \
  INSTANCE(T, TYPE, Bf16, bf16)                \
  INSTANCE(T, TYPE, F8, f8)                    \
  INSTANCE(T, TYPE, F8E5M2, f8_e5m2)           \
  INSTANCE(T, TYPE, Int8, int8)                \
  INSTANCE(T, TYPE, Blocked<Q4_0>, q4_0)       \
  INSTANCE(T, TYPE, Blocked<Q4_1>, q4_1)       \
  INSTANCE(T, TYPE, Blocked<Q5_0>, q5_0)       \
  INSTANCE(T, TYPE, Blocked<Q5_1>, q5_1)       \
  INSTANCE(T, TYPE, Blocked<Q8_0>, q8_0)       \
  INSTANCE(T, TYPE, Blocked<Q2_K>, q2_k)       \
  INSTANCE(T, TYPE, Blocked<Q3_K>, q3_k)       \
  INSTANCE(T, TYPE, Blocked<Q4_K>, q4_k)       \
  INSTANCE(T, TYPE, Blocked<Q5_K>, q5_k)       \
  INSTANCE(T, TYPE, Blocked<Q6_K>, q6_k)       \
  INSTANCE(T, TYPE, Blocked<IQ4_NL>, iq4_nl)   \
  INSTANCE(T, TYPE, Blocked<IQ4_XS>, iq4_xs)   \
  INSTANCE(T, TYPE, Blocked<NF4>, nf4)         \
  INSTANCE(T, TYPE, Blocked<FP4>, fp4)
KILN_FOR_EVERY_TYPE(OF_EVERY_ROW)
