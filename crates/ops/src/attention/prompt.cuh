// At most 80 keys, as for a prompt of 77 tokens: heads of 40, 64, 80 and 160 channels on Hopper.
//
// A block is one warp group with 64 queries, and all keys are one tile. Nothing overlaps within a block, so it uses few
// registers, and many blocks share a multiprocessor.
#pragma once

#include "wgmma.cuh"

namespace kiln::attention {

template <typename T, int D> struct Prompt {
  static constexpr int KEYS = 80, BOXES = (D + 63) / 64, DEPTH = (D + 15) / 16, ROW = BOXES * 128;

  struct alignas(1024) Shared {
    unsigned char queries[BOXES][64 * 128], keys[BOXES][KEYS * 128], values[BOXES][KEYS * 128];
    Barrier scores_full, values_full; // the operands of the scores have arrived, or the values have
  };

  __device__ static void run(const TensorMap& q, const TensorMap& k, const TensorMap& v, const Arguments& x) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp == 0 && elect()) {
      shared.scores_full.init(1);
      shared.values_full.init(1);
      publish_barriers();
      shared.scores_full.arrive_expecting(sizeof(shared.queries) + sizeof(shared.keys));
      shared.values_full.arrive_expecting(sizeof(shared.values));
#pragma unroll
      for (int box = 0; box < BOXES; ++box) {
        copy_tile(shared.queries[box], q, shared.scores_full, box * 64, blockIdx.y, blockIdx.x * 64, blockIdx.z);
        copy_tile(shared.keys[box], k, shared.scores_full, box * 64, blockIdx.y, 0, blockIdx.z);
      }
#pragma unroll
      for (int box = 0; box < BOXES; ++box) {
        copy_tile(shared.values[box], v, shared.values_full, box * 64, blockIdx.y, 0, blockIdx.z);
      }
    }
    __syncthreads();

    float scores[KEYS / 8][4];
    const uint64_t queries = operand(shared.queries), keys = operand(shared.keys);
    shared.scores_full.wait(0);
    begin_products();
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      multiply_transposed<T>(scores, advanced(queries, i / 4 * (64 * 128) + i % 4 * 32),
                             advanced(keys, i / 4 * (KEYS * 128) + i % 4 * 32), i > 0);
    }
    commit_products();
    wait_products<0>();
    pin(scores);
    mask(scores, 0, lane % 4 * 2, x);
    Softmax softmax;
    float shrink[2];
    softmax.take(scores, x.scale, shrink);
    uint32_t weights[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i) left_operand<T>(weights[i], scores, i);

    float out[D / 8][4];
    const uint64_t values = operand(shared.values, KEYS * 128);
    shared.values_full.wait(0);
    begin_products();
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i) multiply<T>(out, weights[i], advanced(values, i * 16 * 128), i > 0);
    commit_products();
    wait_products<0>();
    pin(out);

    float by[2];
    softmax.normalizers(by);
    scale_rows(out, by);
    __syncthreads(); // the queries are no longer needed: results are staged there
    stage<T, ROW>(&shared.queries[0][0], out, warp * 16, 0);
    __syncwarp();
    unstage<T, ROW>(&shared.queries[0][0], Head<T>(x), x, warp * 16, 16, blockIdx.x * 64 + warp * 16, lane, 32);
  }
};

}  // namespace kiln::attention
