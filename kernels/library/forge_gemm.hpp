// forge_gemm.hpp: register-blocked matrix products on packed panels, for kernels that fuse work into a product.
//
// A tile is ROWS x WIDTH accumulators held in registers; the right-hand panel is packed [k][WIDTH], zero padded. WIDTH is a
// multiple of 16, so that one source serves every vector length.
#pragma once

#include "forge_cpu.hpp"

namespace forge {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Products per chain of fused multiply-adds.
constexpr int64_t kChain = 128;

typedef float vec __attribute__((vector_size(kLanes * 4)));
typedef float vec_unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

FORGE_INLINE vec load(const float* p) { return *reinterpret_cast<const vec_unaligned*>(p); }
FORGE_INLINE void store(float* p, vec v) { *reinterpret_cast<vec_unaligned*>(p) = v; }

// tile[r][*] = sum over k of a[r * a_row + k * a_k] * panel[k][*], for r < ROWS. `tile` rows are WIDTH apart.
template <int ROWS, int WIDTH>
static inline __attribute__((always_inline)) void product_tile(const float* a, int64_t a_row, int64_t a_k, int64_t k, const float* panel, float* tile) {
  static_assert(WIDTH % 16 == 0, "panels are multiples of 16 columns");
  constexpr int VECTORS = WIDTH / kLanes;
  // Chains of kChain products, added up: the error of one long chain would grow with its length.
  for (int64_t first = 0; first == 0 || first < k; first += kChain) {
    const int64_t last = k < first + kChain ? k : first + kChain;
    vec acc[ROWS][VECTORS];
#pragma GCC unroll 32
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) acc[r][v] = vec{};
    for (int64_t i = first; i < last; ++i) {
      vec b[VECTORS];
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) b[v] = load(panel + v * kLanes);
#pragma GCC unroll 32
      for (int r = 0; r < ROWS; ++r) {
        const float x = a[r * a_row + i * a_k];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) acc[r][v] += x * b[v];
      }
      panel += WIDTH;
    }
    if (first == 0) {
#pragma GCC unroll 32
      for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) store(tile + r * WIDTH + v * kLanes, acc[r][v]);
    } else {
#pragma GCC unroll 32
      for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) {
          float* at = tile + r * WIDTH + v * kLanes;
          store(at, load(at) + acc[r][v]);
        }
    }
  }
}

// The tile for the last `rows` <= ROWS rows.
template <int ROWS, int WIDTH>
static inline void product_tail(int64_t rows, const float* a, int64_t a_row, int64_t a_k, int64_t k, const float* panel, float* tile) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) {
      product_tile<ROWS, WIDTH>(a, a_row, a_k, k, panel, tile);
    } else {
      product_tail<ROWS - 1, WIDTH>(rows, a, a_row, a_k, k, panel, tile);
    }
  }
}

// Packs columns [n0, n0 + WIDTH) of a k x n matrix into a panel; columns past n are zero.
template <int WIDTH>
static inline void pack_panel(const float* source, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n, int64_t n0, float* panel) {
  const int64_t width = n - n0 < WIDTH ? n - n0 : WIDTH;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < width; ++j) panel[i * WIDTH + j] = source[i * row_stride + (n0 + j) * column_stride];
    for (int64_t j = width; j < WIDTH; ++j) panel[i * WIDTH + j] = 0.0f;
  }
}

}  // namespace forge
