// Heads of up to 160 channels on all GPUs since compute capability 7.5 (FlashAttention-2, arXiv 2307.08691).
//
// A block of four warps processes 64 M queries of one head. Their results stay in registers while keys and values pass
// through shared memory, 64 at a time. Values are loaded while the scores are computed, the next keys while the results
// are.
#pragma once

#include "fragments.cuh"

namespace kiln::attention {

// With GROUPED, heads of queries share those of keys and values, and there may be a bias.
template <typename T, int D, int M, bool GROUPED = false> struct Narrow {
  static constexpr int THREADS = 128, KEYS = 64, ROWS = 64 * M;
  // The 16-byte chunks of a row and one more: an odd number, so that chunks of eight rows are in different banks.
  static constexpr int STRIDE = (D + 8) * 2;
  // Results are staged in rows of a multiple of 128 bytes.
  static constexpr int STAGED = (D * 2 + 127) / 128 * 128;

  __device__ static int place(int row, int chunk) { return row * STRIDE + chunk * 16; }

  __device__ static void run(const Arguments& x, const Grouping& more = {}) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Head<T> head(x, GROUPED ? more.group : 1);
    const int t = x.t;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = blockIdx.x * ROWS;
    const uint32_t queries = shared_address(shared);
    const uint32_t keys = queries + ROWS * STRIDE, values = keys + KEYS * STRIDE;

    copy_rows<ROWS, D, THREADS>(queries, head.q, x.q_row, first, x.s, x.head_dim, place);
    copy_rows<KEYS, D, THREADS>(keys, head.k, x.k_row, 0, t, x.head_dim, place);
    commit_copies();

    // The order of ldmatrix: left operands and transposed right ones have 16 rows by 2 chunks, others 2 chunks by 16
    // rows.
    const int across = lane % 16 * STRIDE + lane / 16 * 16;
    const int along = (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 16;
    const int warp_row = warp * 16 * M;

    uint32_t q[M][D / 16][4];
    float out[M][D / 8][4] = {};
    Softmax softmax[M];
    const int visible = x.causal ? min(t, first + ROWS) : t;
    for (int key = 0; key < visible; key += KEYS) {
      wait_copies<0>();
      __syncthreads();
      if (key == 0) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int k = 0; k < D / 16; ++k) {
            load_tiles(q[m][k], queries + (warp_row + m * 16) * STRIDE + k * 32 + across);
          }
        }
      }
      copy_rows<KEYS, D, THREADS>(values, head.v, x.v_row, key, t, x.head_dim, place);
      commit_copies();

      float scores[M][KEYS / 8][4] = {};
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int n = 0; n < KEYS / 16; ++n) {
          uint32_t b[4];
          load_tiles(b, keys + n * 16 * STRIDE + k * 32 + along);
#pragma unroll
          for (int m = 0; m < M; ++m) {
            multiply<T>(scores[m][2 * n], q[m][k], b[0], b[1]);
            multiply<T>(scores[m][2 * n + 1], q[m][k], b[2], b[3]);
          }
        }
      }

      wait_copies<0>();
      __syncthreads();
      if (key + KEYS < visible) {
        copy_rows<KEYS, D, THREADS>(keys, head.k, x.k_row, key + KEYS, t, x.head_dim, place);
        commit_copies();
      }

#pragma unroll
      for (int m = 0; m < M; ++m) {
        const int row = first + warp_row + m * 16 + lane / 4;
        if constexpr (GROUPED) {
          if (more.bias) add_bias<T>(scores[m], row, key + lane % 4 * 2, x, more);
        }
        if (key + KEYS > t || x.causal) mask(scores[m], row, key + lane % 4 * 2, x);
        float shrink[2];
        if (softmax[m].take(scores[m], x.scale, shrink)) scale_rows(out[m], shrink);
      }
#pragma unroll
      for (int k = 0; k < KEYS / 16; ++k) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) left_operand<T>(a[m], scores[m], k);
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          uint32_t b[4];
          load_tiles_transposed(b, values + k * 16 * STRIDE + n * 32 + across);
#pragma unroll
          for (int m = 0; m < M; ++m) {
            multiply<T>(out[m][2 * n], a[m], b[0], b[1]);
            multiply<T>(out[m][2 * n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }

    __syncthreads(); // the results overwrite everything else
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float by[2];
      softmax[m].normalizers(by);
      scale_rows(out[m], by);
      stage<T, STAGED>(shared, out[m], warp_row + m * 16, 0);
    }
    __syncwarp();
    unstage<T, STAGED>(shared, head, x, warp_row, 16 * M, first + warp_row, lane, 32);
  }
};

}  // namespace kiln::attention
