// Heads of 40, 64, 80, 128 and 160 channels on Hopper (after FlashAttention-3, arXiv 2407.08608).
//
// A block has GROUPS warp groups of 64 queries each. The TMA loads tiles of KEYS keys and their values ahead. One warp
// issues these loads besides its other work, which leaves the registers of all warps to products. A group issues the
// scores of the next tile and then the results of this one, and converts scores to exponentials while results are
// computed. Several groups on a multiprocessor overlap the rest.
#pragma once

#include "wgmma.cuh"

namespace kiln::attention {

template <typename T, int D, int GROUPS, int KEYS, int STAGES, int AHEAD> struct Hopper {
  static constexpr int THREADS = GROUPS * 128, ROWS = GROUPS * 64;
  // Operands are in boxes of 64 channels, rows of 128 bytes. Channels past D are zeros, and are skipped.
  static constexpr int BOXES = (D + 63) / 64, DEPTH = (D + 15) / 16, ROW = BOXES * 128;
  // Tiles are loaded AHEAD tiles ahead, over one that this group no longer needs. The other groups have finished it
  // too, or nearly so: they may be out of step.
  static_assert(0 < AHEAD && AHEAD <= STAGES - 2);

  struct Tile {
    unsigned char keys[BOXES][KEYS * 128], values[BOXES][KEYS * 128];
  };
  struct alignas(1024) Shared {
    unsigned char queries[GROUPS][BOXES][64 * 128];
    Tile tiles[STAGES];
    Barrier queries_full, full[STAGES], empty[STAGES];
  };
  static constexpr int TILE = sizeof(Tile);

  __device__ static void run(const TensorMap& q, const TensorMap& k, const TensorMap& v, const Arguments& x) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp == 0 && elect()) {
      prefetch(q), prefetch(k), prefetch(v);
      shared.queries_full.init(1);
      for (int i = 0; i < STAGES; ++i) {
        shared.full[i].init(1);
        shared.empty[i].init(GROUPS * 4);
      }
      publish_barriers();
      shared.queries_full.arrive_expecting(sizeof(shared.queries));
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) {
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
          copy_tile(shared.queries[group][box], q, shared.queries_full, box * 64, blockIdx.y,
                    blockIdx.x * ROWS + group * 64, blockIdx.z);
        }
      }
      for (int i = 0; i < AHEAD && i * KEYS < x.t; ++i) fetch(shared.tiles[i], shared.full[i], k, v, i);
    }
    __syncthreads();
    attend(shared, warp, k, v, x);
  }

  // Starts the copy of tile `i`.
  __device__ static __forceinline__ void fetch(Tile& tile, Barrier& full, const TensorMap& k, const TensorMap& v,
                                               int i) {
    full.arrive_expecting(TILE);
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
      copy_tile(tile.keys[box], k, full, box * 64, blockIdx.y, i * KEYS, blockIdx.z);
      copy_tile(tile.values[box], v, full, box * 64, blockIdx.y, i * KEYS, blockIdx.z);
    }
  }

  // Issues the products of a tile's scores.
  __device__ static __forceinline__ void score(float (&scores)[KEYS / 8][4], uint64_t queries, uint64_t keys) {
    pin(scores);
    begin_products();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      multiply_transposed<T>(scores, advanced(queries, k / 4 * (64 * 128) + k % 4 * 32),
                             advanced(keys, k / 4 * (KEYS * 128) + k % 4 * 32), k > 0);
    }
    commit_products();
  }

  // Issues the products of a tile's part of the results.
  __device__ static __forceinline__ void add_values(float (&out)[D / 8][4], const uint32_t (&weights)[KEYS / 16][4],
                                                    uint64_t values) {
    pin(out);
    begin_products();
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) multiply<T>(out, weights[k], advanced(values, k * 16 * 128), true);
    commit_products();
  }

  // Waits for the results so far and scales them by the factor of the softmax.
  __device__ static __forceinline__ void finish_values(float (&out)[D / 8][4], const float (&shrink)[2], bool grown) {
    wait_products<0>();
    pin(out);
    if (grown) scale_rows(out, shrink);
  }

  // Exponentials as left operands.
  __device__ static __forceinline__ void weigh(uint32_t (&weights)[KEYS / 16][4], const float (&scores)[KEYS / 8][4]) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) left_operand<T>(weights[k], scores, k);
  }

  __device__ static __forceinline__ void attend(Shared& shared, int warp, const TensorMap& k, const TensorMap& v,
                                                const Arguments& x) {
    const int group = warp / 4, lane = threadIdx.x % 32;
    const int tiles = (x.t + KEYS - 1) / KEYS;
    float out[D / 8][4] = {}, scores[KEYS / 8][4];
    uint32_t weights[KEYS / 16][4];
    Softmax softmax;
    const uint64_t queries = operand(shared.queries[group]);
    const uint64_t keys = operand(shared.tiles[0].keys), values = operand(shared.tiles[0].values, KEYS * 128);

    shared.queries_full.wait(0);
    shared.full[0].wait(0);
    score(scores, queries, keys);
    wait_products<0>();
    pin(scores);
    int slot = 0, next = 0, parity = 0; // the buffer of this tile, that of the next one, and the parity of its phase
    int free = AHEAD, free_parity = 1;
    for (int i = 0; i + 1 < tiles; ++i) {
      if (++next == STAGES) next = 0, parity ^= 1;
      if (warp == 0 && (i + AHEAD) * KEYS < x.t && elect()) {
        shared.empty[free].wait(free_parity);
        fetch(shared.tiles[free], shared.full[free], k, v, i + AHEAD);
      }
      if (++free == STAGES) free = 0, free_parity ^= 1;
      float shrink[2];
      const bool grown = softmax.take(scores, x.scale, shrink);
      pin(scores);
      shared.full[next].wait(parity);
      finish_values(out, shrink, grown);
      if (i > 0 && elect()) shared.empty[slot == 0 ? STAGES - 1 : slot - 1].arrive();
      weigh(weights, scores);
      score(scores, queries, advanced(keys, next * TILE));
      add_values(out, weights, advanced(values, slot * TILE));
      wait_products<1>();
      pin(scores);
      slot = next;
    }
    if (x.t % KEYS != 0) mask(scores, 0, (tiles - 1) * KEYS + lane % 4 * 2, x);
    float shrink[2];
    const bool grown = softmax.take(scores, x.scale, shrink);
    finish_values(out, shrink, grown);
    weigh(weights, scores);
    add_values(out, weights, advanced(values, slot * TILE));
    wait_products<0>();
    pin(out);

    float by[2];
    softmax.normalizers(by);
    scale_rows(out, by);
    group_sync(group); // its queries are no longer needed: results are staged there
    unsigned char* staged = &shared.queries[group][0][0];
    const int row = warp % 4 * 16;
    stage<T, ROW>(staged, out, row, 0);
    __syncwarp();
    unstage<T, ROW>(staged, Head<T>(x), x, row, 16, blockIdx.x * ROWS + group * 64 + row, lane, 32);
  }
};

}  // namespace kiln::attention
