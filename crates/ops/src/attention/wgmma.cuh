// Warp-group products of Hopper on operands in shared memory and registers (PTX ISA, wgmma.mma_async).
#pragma once

#include "operands.cuh"
#include "warp_group.cuh"

namespace kiln::attention {

using kiln::TensorMap;

// The operand numbers of a tile's registers in an instruction, and the registers themselves.
#define R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define R16 ", %16, %17, %18, %19"
#define R20 ", %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define R80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define R96                                                                                                  \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113" \
  ", %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TILE1(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define TILE4(i) TILE1(i), TILE1(i + 1), TILE1(i + 2), TILE1(i + 3)
#define TILE5(i) TILE4(i), TILE1(i + 4)
#define TILE8 TILE4(0), TILE4(4)
#define TILE10 TILE5(0), TILE5(5)
#define TILE12 TILE8, TILE4(8)
#define TILE16 TILE8, TILE4(8), TILE4(12)
#define TILE20 TILE10, TILE5(10), TILE5(15)
#define TILE32 TILE16, TILE4(16), TILE4(20), TILE4(24), TILE4(28)

// d (+)= a b^T: 64 rows by 16 channels of a, N rows by 16 channels of b. Without `add`, the old values of d are
// ignored.
template <typename T, int N>
__device__ __forceinline__ void multiply_transposed(float (&d)[N][4], uint64_t a, uint64_t b, int add);
// d (+)= a b: 64 rows by 16 of a, in registers or shared memory, 16 rows by N columns of b.
template <typename T, int N>
__device__ __forceinline__ void multiply(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b, int add);
template <typename T, int N>
__device__ __forceinline__ void multiply(float (&d)[N][4], uint64_t a, uint64_t b, int add);

// NAME is the layout of b: its rows are d's columns (multiply_transposed), or its columns are d's columns (multiply).
#define SHARED(NAME, MAJOR, T, TYPE, N, COLUMNS, REGISTERS, TILE, A, B, ADD)                                    \
  template <>                                                                                                   \
  __device__ __forceinline__ void NAME<T, N>(float (&d)[N][4], uint64_t a, uint64_t b, int add) {               \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" REGISTERS "}, %" #A \
                 ", %" #B ", add, 1, 1, 0, " #MAJOR ";\n}\n"                                                    \
                 : TILE                                                                                         \
                 : "l"(a), "l"(b), "r"(add));                                                                   \
  }
#define DIRECT(T, TYPE, N, COLUMNS, REGISTERS, TILE, A0, A1, A2, A3, B, ADD)                                      \
  template <>                                                                                                     \
  __device__ __forceinline__ void multiply<T, N>(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b, int add) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" REGISTERS "}, {%" #A0 \
                 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", add, 1, 1, 1;\n}\n"                                   \
                 : TILE                                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                 \
  }
#define PRODUCTS(T, TYPE)                                                                          \
  SHARED(multiply_transposed, 0, T, TYPE, 4, 32, R0, TILE4(0), 16, 17, 18)                         \
  SHARED(multiply_transposed, 0, T, TYPE, 8, 64, R0 R16 R20, TILE8, 32, 33, 34)                    \
  SHARED(multiply_transposed, 0, T, TYPE, 10, 80, R0 R16 R20 R32, TILE10, 40, 41, 42)              \
  SHARED(multiply_transposed, 0, T, TYPE, 12, 96, R0 R16 R20 R32 R40, TILE12, 48, 49, 50)          \
  SHARED(multiply_transposed, 0, T, TYPE, 16, 128, R0 R16 R20 R32 R40 R48, TILE16, 64, 65, 66)     \
  SHARED(multiply, 1, T, TYPE, 32, 256, R0 R16 R20 R32 R40 R48 R64 R80 R96, TILE32, 128, 129, 130) \
  DIRECT(T, TYPE, 5, 40, R0 R16, TILE5(0), 20, 21, 22, 23, 24, 25)                                 \
  DIRECT(T, TYPE, 8, 64, R0 R16 R20, TILE8, 32, 33, 34, 35, 36, 37)                                \
  DIRECT(T, TYPE, 10, 80, R0 R16 R20 R32, TILE10, 40, 41, 42, 43, 44, 45)                          \
  DIRECT(T, TYPE, 16, 128, R0 R16 R20 R32 R40 R48, TILE16, 64, 65, 66, 67, 68, 69)                \
  DIRECT(T, TYPE, 20, 160, R0 R16 R20 R32 R40 R48 R64, TILE20, 80, 81, 82, 83, 84, 85)

PRODUCTS(__half, "f16")
PRODUCTS(__nv_bfloat16, "bf16")

#undef R0
#undef R16
#undef R20
#undef R32
#undef R40
#undef R48
#undef R64
#undef R80
#undef R96

}  // namespace kiln::attention
