// Heads of more than 160 channels, as in the middle of the VAE, on all GPUs since compute capability 7.5.
//
// A block of eight warps processes 64 queries. For the scores the warps split rows and keys; the exponentials go
// through shared memory, and for the results every warp computes an eighth of the channels of all rows.
#pragma once

#include "fragments.cuh"

namespace kiln::attention {

template <typename T, int D, int KEYS> struct Wide {
  static constexpr int THREADS = 256, ROWS = 64, ROW = D * 2, TILES = D / 64;
  // Exponentials: a row's 16-byte chunks and one more, an odd number. Without enough memory they have bank conflicts.
  static constexpr int STRIDE = KEYS == 16 ? 32 : (KEYS + 8) * 2;

  struct alignas(1024) Shared {
    unsigned char queries[ROWS * ROW], keys[KEYS * ROW], values[KEYS * ROW], weights[ROWS * STRIDE];
    float part[2][ROWS], shrink[ROWS];
  };

  __device__ static void run(const Arguments& x) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Head<T> head(x);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = blockIdx.x * ROWS;
    const uint32_t queries = shared_address(shared.queries), keys = shared_address(shared.keys);
    const uint32_t values = shared_address(shared.values), weights = shared_address(shared.weights);

    copy_rows<ROWS, D, THREADS>(queries, head.q, x.q_row, first, x.s, x.head_dim, swizzled<ROW>);
    copy_rows<KEYS, D, THREADS>(keys, head.k, x.k_row, 0, x.t, x.head_dim, swizzled<ROW>);
    commit_copies();

    const int score_row = warp % 4 * 16, side = warp / 4, score_key = side * (KEYS / 2);
    const int row = score_row + lane / 4; // this thread's rows of the scores: this one, and row + 8
    float out[4][TILES][4] = {};
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    const int visible = x.causal ? min(x.t, first + ROWS) : x.t;
    for (int key = 0; key < visible; key += KEYS) {
      wait_copies<0>();
      __syncthreads(); // keys have arrived; values and weights are no longer needed
      copy_rows<KEYS, D, THREADS>(values, head.v, x.v_row, key, x.t, x.head_dim, swizzled<ROW>);
      commit_copies();

      float scores[KEYS / 16][4] = {};
#pragma unroll 4
      for (int k = 0; k < D / 32; ++k) {
        uint32_t a[2][4];
        load_tiles(a[0], queries + swizzled<ROW>(score_row + lane % 16, k * 4 + lane / 16));
        load_tiles(a[1], queries + swizzled<ROW>(score_row + lane % 16, k * 4 + 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < KEYS / 16; ++n) {
          uint32_t b[4];
          load_tiles(b, keys + swizzled<ROW>(score_key + n * 8 + lane % 8, k * 4 + lane / 8));
          multiply<T>(scores[n], a[0], b[0], b[1]);
          multiply<T>(scores[n], a[1], b[2], b[3]);
        }
      }
      if (key + KEYS > x.t || x.causal) mask(scores, first + row, key + score_key + lane % 4 * 2, x);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = row_max(tile_max(scores, half));
        if (lane % 4 == 0) shared.part[side][row + half * 8] = top;
      }
      __syncthreads(); // keys are no longer needed; the maxima of both sides have arrived
      if (key + KEYS < visible) {
        copy_rows<KEYS, D, THREADS>(keys, head.k, x.k_row, key + KEYS, x.t, x.head_dim, swizzled<ROW>);
      }
      commit_copies();

      bool grown = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = row + half * 8;
        const float top = fmaxf(max[half], fmaxf(shared.part[0][at], shared.part[1][at]));
        const float shrink = exp2_fast((max[half] - top) * x.scale);
        grown |= top != max[half];
        max[half] = top;
        sum[half] = sum[half] * shrink + exponentials(scores, half, x.scale, top * x.scale);
        if (side == 0 && lane % 4 == 0) shared.shrink[at] = shrink;
#pragma unroll
        for (int n = 0; n < KEYS / 16; ++n) {
          *reinterpret_cast<uint32_t*>(shared.weights + at * STRIDE + (score_key + n * 8 + lane % 4 * 2) * 2) =
              pack<T>(scores[n][half * 2], scores[n][half * 2 + 1]);
        }
      }
      wait_copies<1>();
      if (__syncthreads_or(grown)) { // values and weights have arrived
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float by[2] = {shared.shrink[m * 16 + lane / 4], shared.shrink[m * 16 + lane / 4 + 8]};
          scale_rows(out[m], by);
        }
      }

#pragma unroll
      for (int k = 0; k < KEYS / 16; ++k) {
        uint32_t a[4][4];
#pragma unroll
        for (int m = 0; m < 4; ++m) load_tiles(a[m], weights + (m * 16 + lane % 16) * STRIDE + k * 32 + lane / 16 * 16);
#pragma unroll
        for (int n = 0; n < TILES / 2; ++n) {
          uint32_t b[4];
          load_tiles_transposed(b, values + swizzled<ROW>(k * 16 + lane % 16, warp * TILES + n * 2 + lane / 16));
#pragma unroll
          for (int m = 0; m < 4; ++m) {
            multiply<T>(out[m][2 * n], a[m], b[0], b[1]);
            multiply<T>(out[m][2 * n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float part = row_sum(sum[half]);
      if (lane % 4 == 0) shared.part[side][row + half * 8] = part;
    }
    __syncthreads(); // the sums have arrived and the queries are no longer needed: results overwrite them
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int at = m * 16 + lane / 4;
      const float by[2] = {1.0f / (shared.part[0][at] + shared.part[1][at]),
                           1.0f / (shared.part[0][at + 8] + shared.part[1][at + 8])};
      scale_rows(out[m], by);
      stage<T, ROW>(shared.queries, out[m], m * 16, warp * TILES);
    }
    __syncthreads();
    unstage<T, ROW>(shared.queries, head, x, 0, ROWS, first, threadIdx.x, THREADS);
  }
};

}  // namespace kiln::attention
