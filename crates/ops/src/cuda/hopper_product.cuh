// Products on Hopper of e4m3 numbers, f16 or bf16: 3x3 convolutions, and linear layers as 1x1 convolutions over one row of pixels.
//
// A cluster of two blocks computes two tiles of 128 pixels by the same N output channels at a time. One thread of a block loads
// operands ahead: for each tap and each 128 bytes of input channels a box of the image, shifted by the tap, and half of the rows of
// the weight, for both blocks. So what a multiprocessor reads from the L2 cache, which limits such products, is 0.7 times as
// much. Pixels and channels out of bounds are zeros, so padding costs nothing. Two warp groups multiply 64 pixels each. The
// residual is copied ahead to where the result is put together, which is copied from there while the next tile is computed.
//
// With GEGLU the weight has rows of values and, behind all of them, rows of gates. A block of a cluster copies rows of values, the
// other one the rows of their gates, so a thread holds a value and its gate in registers, and half of the columns are results.
//
// The tensor cores of Hopper keep about 14 bits of a sum of e4m3 products. So the sums of 512 products are added up in f32
// (DeepSeek-V3, arXiv 2412.19437, section 3.3.2, has 128). The order of a sum depends on the shape alone.
#pragma once

#include "activation.cuh"
#include "image_product.cuh"
#include "warp_group.cuh"

namespace kiln {

// Operands of bytes with scales.
struct E4m3Operands {
  static constexpr int SIZE = 1;
  static constexpr bool HAS_SCALES = true, IS_EXACT = false;
};
// Operands of the type of the result, f16 or bf16, whose products the tensor cores sum up in f32.
template <typename T> struct WideOperands {
  static constexpr int SIZE = 2;
  static constexpr bool HAS_SCALES = false, IS_EXACT = true;
};

namespace hopper {

constexpr int PIXELS = 128, BYTES = 128;
// Blocks of a cluster, which share the rows of a weight.
constexpr int CLUSTER = 2;

// The operand numbers of a tile's registers in an instruction.
#define R32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R64 R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define R128 R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, " \
  "%85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, " \
  "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define R80 R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TILE1(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define TILE4(i) TILE1(i), TILE1(i + 1), TILE1(i + 2), TILE1(i + 3)
#define TILE8 TILE4(0), TILE4(4)
#define TILE16 TILE8, TILE4(8), TILE4(12)
#define TILE20 TILE16, TILE4(16)
#define TILE32 TILE20, TILE4(20), TILE4(24), TILE4(28)

// d (+)= a b^T: 64 rows by 32 bytes of channels of a, 8 N rows by 32 bytes of b. Without `add`, the old values of d are ignored.
template <typename Input, int N> struct Multiply;

#define MULTIPLY(INPUT, TYPES, MORE, N, COLUMNS, REGISTERS, TILE, A, B, ADD)                              \
  template <> struct Multiply<INPUT, N> {                                                                \
    __device__ static __forceinline__ void run(float (&d)[N][4], uint64_t a, uint64_t b, int add) {      \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS TYPES " {" REGISTERS "}, %" #A ", %" #B   \
                   ", add, 1, 1" MORE ";\n}\n"                                                          \
                   : TILE                                                                                \
                   : "l"(a), "l"(b), "r"(add));                                                          \
    }                                                                                                    \
  };
#define MULTIPLIES(INPUT, TYPES, MORE)                             \
  MULTIPLY(INPUT, TYPES, MORE, 8, 64, R32, TILE8, 32, 33, 34)      \
  MULTIPLY(INPUT, TYPES, MORE, 16, 128, R64, TILE16, 64, 65, 66)   \
  MULTIPLY(INPUT, TYPES, MORE, 20, 160, R80, TILE20, 80, 81, 82)   \
  MULTIPLY(INPUT, TYPES, MORE, 32, 256, R128, TILE32, 128, 129, 130)
MULTIPLIES(E4m3Operands, "k32.f32.e4m3.e4m3", "")
MULTIPLIES(WideOperands<__half>, "k16.f32.f16.f16", ", 0, 0")
MULTIPLIES(WideOperands<__nv_bfloat16>, "k16.f32.bf16.bf16", ", 0, 0")

// Where a tile is. Past the last pixel of the last image where a cluster has no second tile.
struct Place {
  int x, y, image, column;

  // Of pair `pair` of tiles.
  __device__ __forceinline__ Place(const ImageProduct& p, int pair, int rank, int columns) {
    column = pair % p.tiles_n * columns;
    int tile = pair / p.tiles_n * CLUSTER + rank;
    x = tile % p.tiles_x << p.width_bits;
    tile /= p.tiles_x;
    y = tile % p.tiles_y << p.height_bits;
    image = tile / p.tiles_y * (PIXELS >> (p.width_bits + p.height_bits));
  }
};

// Where row `row` of a tile is.
struct Pixel {
  int x, y, image;

  __device__ __forceinline__ Pixel(const ImageProduct& p, const Place& place, int row)
      : x(place.x + (row & (1 << p.width_bits) - 1)),
        y(place.y + (row >> p.width_bits & (1 << p.height_bits) - 1)),
        image(place.image + (row >> (p.width_bits + p.height_bits))) {}
  __device__ __forceinline__ bool inside(const ImageProduct& p) const { return x < p.w && y < p.h && image < p.b; }
  __device__ __forceinline__ int index(const ImageProduct& p) const { return (image * p.h + y) * p.w + x; }
};

// Two neighboring elements in a register.
template <typename T> __device__ __forceinline__ float2 unpack(uint32_t pair) {
  T values[2];
  __builtin_memcpy(values, &pair, 4);
  return make_float2(to_f32(values[0]), to_f32(values[1]));
}
template <typename T> __device__ __forceinline__ uint32_t pack(float2 pair) {
  const T values[2] = {from_f32<T>(pair.x), from_f32<T>(pair.y)};
  uint32_t packed;
  __builtin_memcpy(&packed, values, 4);
  return packed;
}

}  // namespace hopper

template <typename Input, typename T, int COLUMNS, int STAGES, bool GEGLU = false> struct HopperProduct {
  static constexpr int N = COLUMNS / 8, GROUPS = 2;
  static constexpr int PIXELS = hopper::PIXELS, BYTES = hopper::BYTES, CLUSTER = hopper::CLUSTER;
  // Input channels of a part.
  static constexpr int CHANNELS = BYTES / Input::SIZE;
  using Place = hopper::Place;
  using Pixel = hopper::Pixel;

  // Output channels of a tile, and of a copied part of it: 64 bytes.
  static constexpr int RESULTS = GEGLU ? COLUMNS / 2 : COLUMNS, PART = 32, PARTS = RESULTS / PART;
  static_assert(!GEGLU || CLUSTER == 2 && !Input::HAS_SCALES, "a block copies values, the other one gates");

  struct Stage {
    unsigned char x[PIXELS * BYTES], weight[COLUMNS * BYTES];
  };
  struct alignas(1024) Shared {
    Stage stages[STAGES];
    unsigned char staged[GROUPS][PARTS][64 * PART * sizeof(T)]; // rows of 64 bytes with their 16-byte chunks swizzled
    // Of the tile's rows of the weight.
    float bias[GROUPS][COLUMNS], scales[GROUPS][Input::HAS_SCALES ? COLUMNS : 1];
    Barrier full[STAGES], empty[STAGES], residual[GROUPS];
  };
  static_assert(sizeof(Shared) <= 227 << 10, "more than a block may have");

  // The maps of the result and of the residual have boxes of the 64 pixels of a group.
  __device__ static void run(const TensorMap& x, const TensorMap& weight, const TensorMap& y, const TensorMap& residual,
                             const ImageProduct& p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), rank = rank_in_cluster();
    if (warp == 0 && elect()) {
      prefetch(x), prefetch(weight), prefetch(y), prefetch(residual);
      for (int i = 0; i < STAGES; ++i) {
        shared.full[i].init(1);
        shared.empty[i].init(CLUSTER * GROUPS * 4);
      }
      for (int i = 0; i < GROUPS; ++i) shared.residual[i].init(1);
      publish_barriers();
    }
    cluster_sync();
    if (warp < 4) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (warp == 0 && elect()) load(shared, x, weight, p, rank);
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
      compute(shared, warp / 4 - 1, y, residual, p, rank);
    }
    cluster_sync(); // the other block writes to this one's memory, and arrives at its barriers
  }

  __device__ static __forceinline__ void fill(float (&tile)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n) tile[n][0] = tile[n][1] = tile[n][2] = tile[n][3] = 0.0f;
  }

  __device__ static __forceinline__ int pairs(const ImageProduct& p) {
    return (p.tiles_x * p.tiles_y * p.tiles_b + CLUSTER - 1) / CLUSTER * p.tiles_n;
  }

  __device__ static __forceinline__ void load(Shared& shared, const TensorMap& x, const TensorMap& weight,
                                              const ImageProduct& p, int rank) {
    constexpr int ROWS = COLUMNS / CLUSTER; // of the weight
    int stage = 0, parity = 1;
    for (int pair = blockIdx.x / CLUSTER; pair < pairs(p); pair += gridDim.x / CLUSTER) {
      const Place place(p, pair, rank, RESULTS);
      const int first_row = place.column + rank * (GEGLU ? p.n : ROWS);
      for (int tap = 0; tap < p.taps; ++tap) {
        const int column = place.x + tap % p.taps_in_row - p.pad_left, row = place.y + tap / p.taps_in_row - p.pad_above;
        for (int channel = 0; channel < p.c; channel += CHANNELS) {
          Stage& to = shared.stages[stage];
          Barrier& full = shared.full[stage];
          shared.empty[stage].wait(parity); // in both blocks
          full.arrive_expecting(sizeof(Stage));
          copy_tile(to.x, x, full, channel, column, row, place.image);
          copy_tile_to((1 << CLUSTER) - 1, to.weight + rank * ROWS * BYTES, weight, full, channel, tap, first_row, 0);
          if (++stage == STAGES) stage = 0, parity ^= 1;
        }
      }
    }
  }

  // A stage is no longer needed by this warp.
  __device__ static __forceinline__ void release(Shared& shared, int stage) {
    const int lane = threadIdx.x % 32;
    if (lane < CLUSTER) shared.empty[stage].arrive_in(lane);
  }

  __device__ static __forceinline__ void compute(Shared& shared, int group, const TensorMap& y, const TensorMap& residual,
                                                 const ImageProduct& p, int rank) {
    const int first_row = group * 64; // of the tile
    const bool copies = threadIdx.x % 128 == 0;
    int stage = 0, parity = 0, residual_parity = 0;
    for (int pair = blockIdx.x / CLUSTER; pair < pairs(p); pair += gridDim.x / CLUSTER) {
      const Place place(p, pair, rank, RESULTS);
      const Pixel first(p, place, first_row);
      if (copies) {
        wait_stores_read(); // of the last tile
        if (p.has_residual) {
          shared.residual[group].arrive_expecting(sizeof(shared.staged[group]));
#pragma unroll
          for (int i = 0; i < PARTS; ++i) {
            copy_tile(shared.staged[group][i], residual, shared.residual[group], place.column + i * PART, first.x, first.y,
                      first.image);
          }
        }
      }
      const Ahead ahead(group, place, p);
      int channel = 0, before = -1; // the first input channel of a part, and the stage of the part before
      const int parts = p.taps * ((p.c + CHANNELS - 1) / CHANNELS);
      // The products of `count` parts.
      const auto multiply = [&](float (&d)[N][4], int count) {
        using Multiply = hopper::Multiply<Input, N>;
        pin(d);
        for (int i = 0; i < count; ++i) {
          shared.full[stage].wait(parity);
          const uint64_t x = operand(shared.stages[stage].x + group * 64 * BYTES);
          const uint64_t weight = operand(shared.stages[stage].weight);
          begin_products();
          Multiply::run(d, x, weight, i > 0);
          Multiply::run(d, advanced(x, 32), advanced(weight, 32), true);
          if (p.c - channel > CHANNELS / 2) {
            Multiply::run(d, advanced(x, 64), advanced(weight, 64), true);
            Multiply::run(d, advanced(x, 96), advanced(weight, 96), true);
          }
          commit_products();
          if (i > 0) {
            wait_products<1>();
            release(shared, before);
          }
          before = stage;
          if (++stage == STAGES) stage = 0, parity ^= 1;
          channel = channel + CHANNELS < p.c ? channel + CHANNELS : 0;
        }
        wait_products<0>();
        pin(d);
        release(shared, before);
      };
      float sums[N][4];
      if constexpr (Input::IS_EXACT) {
        multiply(sums, parts);
      } else {
        constexpr int TOGETHER = PRODUCTS_OF_SUM / CHANNELS;
        float part[N][4];
        fill(sums);
        for (int first = 0; first < parts; first += TOGETHER) {
          multiply(part, min(TOGETHER, parts - first));
#pragma unroll
          for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[n][i] += part[n][i];
          }
        }
      }
      ahead.store(shared.bias[group], shared.scales[group]);
      if (p.has_residual) {
        shared.residual[group].wait(residual_parity);
        residual_parity ^= 1;
      }
      group_sync(group);
      if constexpr (GEGLU) {
        gate(sums, shared.staged[group], shared.bias[group]);
      } else {
        finish(sums, shared, ahead, place, group, p);
      }
      publish_operands();
      group_sync(group);
      if (copies) {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
          const int column = place.column + i * PART;
          if (column < p.n) store_tile(y, shared.staged[group][i], column, first.x, first.y, first.image);
        }
        commit_stores();
      }
    }
    if (copies) wait_stores_read();
  }

  // Whether a tile has pixels of one image only, or all images have the same bias.
  __device__ static __forceinline__ bool has_one_bias(const ImageProduct& p) {
    return p.image_bias_stride == 0 || p.width_bits + p.height_bits == 7;
  }

  // What the end of a tile needs of global memory, loaded before its products.
  struct Ahead {
    static constexpr int COUNT = (COLUMNS + 127) / 128;
    float bias[COUNT], column_scales[COUNT]; // of this thread's rows of the weight
    float scales[2];                         // of the pixels of this thread; outside of the images 0

    __device__ __forceinline__ Ahead(int group, const Place& place, const ImageProduct& p) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        const int in_tile = threadIdx.x % 128 + i * 128, column = place.column + in_tile % RESULTS;
        const int row = column + in_tile / RESULTS * p.n; // with GEGLU a gate's, perhaps
        bias[i] = column_scales[i] = 0.0f;
        if (in_tile >= COLUMNS || column >= p.n || place.image >= p.b) continue;
        if constexpr (Input::HAS_SCALES) column_scales[i] = __ldg(p.weight_scales + row);
        if (p.bias != nullptr) bias[i] = to_f32(static_cast<const T*>(p.bias)[row]);
        if (p.image_bias != nullptr && has_one_bias(p)) {
          const size_t at = static_cast<size_t>(place.image) * p.image_bias_stride + column;
          bias[i] += to_f32(static_cast<const T*>(p.image_bias)[at]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2 && Input::HAS_SCALES; ++half) {
        const Pixel pixel(p, place, group * 64 + row_of(half));
        scales[half] = pixel.inside(p) ? __ldg(p.x_scales + (p.scales_by_pixel ? pixel.index(p) : pixel.image)) : 0.0f;
      }
    }

    __device__ __forceinline__ void store(float* bias_to, float* scales_to) const {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        const int in_tile = threadIdx.x % 128 + i * 128;
        if (in_tile >= COLUMNS) continue;
        bias_to[in_tile] = bias[i];
        if constexpr (Input::HAS_SCALES) scales_to[in_tile] = column_scales[i];
      }
    }
  };

  // Of each 16 rows by 8 columns a lane has row lane / 4, columns 2 (lane % 4) and the next, then those of row lane / 4 + 8.
  __device__ static __forceinline__ int row_of(int half) {
    return static_cast<int>(threadIdx.x / 32 % 4) * 16 + half * 8 + static_cast<int>(threadIdx.x % 32) / 4;
  }

  // Where columns 8 n + 2 (lane % 4) and the next of row `row` of a group are put together.
  using Staged = unsigned char[64 * PART * sizeof(T)];
  __device__ static __forceinline__ uint32_t* place_of(Staged* staged, int row, int n) {
    return reinterpret_cast<uint32_t*>(staged[n / 4] + row * 64 + (((n % 4) ^ (row >> 1 & 3)) << 4)) + threadIdx.x % 4;
  }

  // Scales the sums, adds what is to be added, and puts the result where the residual is.
  __device__ static __forceinline__ void finish(const float (&sums)[N][4], Shared& shared, const Ahead& ahead,
                                                const Place& place, int group, const ImageProduct& p) {
    const int quarter = threadIdx.x % 4;
    const bool of_each_image = p.image_bias != nullptr && !has_one_bias(p);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int in_tile = n * 8 + quarter * 2;
      const float2 bias_of_columns = *reinterpret_cast<const float2*>(shared.bias[group] + in_tile);
      float2 scales;
      if constexpr (Input::HAS_SCALES) scales = *reinterpret_cast<const float2*>(shared.scales[group] + in_tile);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(half);
        uint32_t* at = place_of(shared.staged[group], row, n);
        float2 sum = make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
        if constexpr (Input::HAS_SCALES) {
          sum = make_float2(sum.x * ahead.scales[half] * scales.x, sum.y * ahead.scales[half] * scales.y);
        }
        sum.x += bias_of_columns.x, sum.y += bias_of_columns.y;
        if (p.has_residual) {
          const float2 of_residual = hopper::unpack<T>(*at);
          sum.x += of_residual.x, sum.y += of_residual.y;
        }
        if (of_each_image) {
          const Pixel pixel(p, place, group * 64 + row);
          const int column = place.column + in_tile;
          if (pixel.inside(p) && column < p.n) {
            const T* bias = static_cast<const T*>(p.image_bias) + static_cast<size_t>(pixel.image) * p.image_bias_stride;
            const float2 of_image = hopper::unpack<T>(__ldg(reinterpret_cast<const uint32_t*>(bias + column)));
            sum.x += of_image.x, sum.y += of_image.y;
          }
        }
        *at = hopper::pack<T>(sum);
      }
    }
  }

  // Values times the GELU of their gates, which are half a tile further.
  __device__ static __forceinline__ void gate(const float (&sums)[N][4], Staged* staged, const float* bias) {
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      const int in_tile = n * 8 + threadIdx.x % 4 * 2;
      const float2 of_values = *reinterpret_cast<const float2*>(bias + in_tile);
      const float2 of_gates = *reinterpret_cast<const float2*>(bias + RESULTS + in_tile);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&values)[4] = sums[n], (&gates)[4] = sums[n + N / 2];
        const float x = (values[2 * half] + of_values.x) * gelu_erf_16(gates[2 * half] + of_gates.x);
        const float y = (values[2 * half + 1] + of_values.y) * gelu_erf_16(gates[2 * half + 1] + of_gates.y);
        *place_of(staged, row_of(half), n) = hopper::pack<T>(make_float2(x, y));
      }
    }
  }
};

#undef R32
#undef R64
#undef R80
#undef TILE1
#undef TILE4
#undef TILE8
#undef TILE16
#undef TILE20
#undef TILE32
#undef R128

}  // namespace kiln

// Defines the kernel NAME for operands, the type of the result, the rows of the weight for a tile, the parts that are loaded ahead,
// and `true` for GEGLU.
#define KILN_HOPPER_PRODUCT(NAME, OPERANDS, T, ...)                                                        \
  extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(384, 1)                                 \
      NAME(const __grid_constant__ kiln::TensorMap x, const __grid_constant__ kiln::TensorMap weight,      \
           const __grid_constant__ kiln::TensorMap y, const __grid_constant__ kiln::TensorMap residual,    \
           const kiln::ImageProduct p) {                                                                   \
    kiln::HopperProduct<OPERANDS, T, __VA_ARGS__>::run(x, weight, y, residual, p);                         \
  }
