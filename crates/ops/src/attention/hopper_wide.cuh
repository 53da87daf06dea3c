// Heads of 512 channels on Hopper: the middle of the VAE.
//
// A block of two warp groups processes 64 queries. Each group computes the scores of half of a tile's 64 keys. The
// exponentials go through shared memory, and each group computes the results of half of the channels, which fills half
// of the multiprocessor's registers. The TMA loads values while scores are computed, and the next keys while results
// are.
#pragma once

#include "wgmma.cuh"

namespace kiln::attention {

template <typename T> struct HopperWide {
  static constexpr int THREADS = 256, KEYS = 64, BOXES = 8, BOX = KEYS * 128, ROW = BOXES * 128;

  struct alignas(1024) Shared {
    unsigned char queries[BOXES][BOX], keys[BOXES][BOX], values[BOXES][BOX], weights[BOX];
    float part[2][64];
    Barrier queries_full, keys_full, values_full, values_empty;
  };

  __device__ static void run(const TensorMap& q, const TensorMap& k, const TensorMap& v, const Arguments& x) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp == 0 && elect()) {
      shared.queries_full.init(1);
      shared.keys_full.init(1);
      shared.values_full.init(1);
      shared.values_empty.init(THREADS / 32);
      publish_barriers();
      fetch(shared.queries, shared.queries_full, q, blockIdx.x * 64);
      fetch(shared.keys, shared.keys_full, k, 0);
    }
    __syncthreads();

    const int group = warp / 4, first = warp % 4 * 16;
    const int row = first + lane / 4; // this thread's rows: this one, and row + 8
    const uint64_t queries = operand(shared.queries), weights = operand(shared.weights);
    const uint64_t keys = advanced(operand(shared.keys), group * (32 * 128));
    const uint64_t values = operand(shared.values[group * 4], BOX);
    const int tiles = (x.t + KEYS - 1) / KEYS;
    float out[32][4] = {}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    shared.queries_full.wait(0);
    for (int i = 0; i < tiles; ++i) {
      float scores[4][4];
      shared.keys_full.wait(i % 2);
      pin(scores);
      begin_products();
#pragma unroll
      for (int k16 = 0; k16 < 32; ++k16) {
        const int at = k16 / 4 * BOX + k16 % 4 * 32;
        multiply_transposed<T>(scores, advanced(queries, at), advanced(keys, at), k16 > 0);
      }
      commit_products();
      if (warp == 0 && elect()) {
        shared.values_empty.wait(i % 2 ^ 1); // of the previous tile
        fetch(shared.values, shared.values_full, v, i * KEYS);
      }
      __syncwarp();
      wait_products<0>();
      pin(scores);
      if (i + 1 == tiles && x.t % KEYS != 0) mask(scores, 0, i * KEYS + group * 32 + lane % 4 * 2, x);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = row_max(tile_max(scores, half));
        if (lane % 4 == 0) shared.part[group][row + half * 8] = top;
      }
      __syncthreads(); // both groups' maxima have arrived, and the keys are no longer needed
      if (i + 1 < tiles && warp == 0 && elect()) fetch(shared.keys, shared.keys_full, k, (i + 1) * KEYS);

      bool grown = false;
      float shrink[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = row + half * 8;
        const float top = fmaxf(max[half], fmaxf(shared.part[0][at], shared.part[1][at]));
        grown |= top != max[half];
        shrink[half] = exp2_fast((max[half] - top) * x.scale);
        max[half] = top;
        sum[half] = sum[half] * shrink[half] + exponentials(scores, half, x.scale, top * x.scale);
      }
      stage<T, 128>(shared.weights, scores, first, group * 4);
      if (__any_sync(~0u, grown)) scale_rows(out, shrink);
      publish_operands();
      __syncthreads(); // both groups' exponentials have arrived
      shared.values_full.wait(i % 2);
      pin(out);
      begin_products();
#pragma unroll
      for (int k16 = 0; k16 < KEYS / 16; ++k16) {
        multiply<T>(out, advanced(weights, k16 * 32), advanced(values, k16 * 16 * 128), true);
      }
      commit_products();
      wait_products<0>();
      pin(out);
      if (lane == 0) shared.values_empty.arrive();
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float part = row_sum(sum[half]);
      if (lane % 4 == 0) shared.part[group][row + half * 8] = part;
    }
    __syncthreads(); // the sums have arrived and the queries are no longer needed: results are staged there
    const float by[2] = {1.0f / (shared.part[0][row] + shared.part[1][row]),
                         1.0f / (shared.part[0][row + 8] + shared.part[1][row + 8])};
    scale_rows(out, by);
    unsigned char* staged = &shared.queries[0][0];
    stage<T, ROW>(staged, out, first, group * 32);
    __syncthreads();
    unstage<T, ROW>(staged, Head<T>(x), x, 0, 64, blockIdx.x * 64, threadIdx.x, THREADS);
  }

  // Starts the copy of 64 rows from `token` on.
  __device__ static __forceinline__ void fetch(unsigned char (&boxes)[BOXES][BOX], Barrier& full, const TensorMap& map,
                                               int token) {
    full.arrive_expecting(sizeof(boxes));
#pragma unroll
    for (int box = 0; box < BOXES; ++box) copy_tile(boxes[box], map, full, box * 64, blockIdx.y, token, blockIdx.z);
  }
};

}  // namespace kiln::attention
