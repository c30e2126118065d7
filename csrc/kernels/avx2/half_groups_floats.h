// Tiles of the float formats of four to six tokens: the values of linear/floats.h.
//
// Sixteen registers hold the sums of three tokens and 32 rows, or of six tokens and 16 rows. So a tile goes through a
// block of columns twice, first for one half of the group's rows, then for the other: no weight is read or widened
// again, as it would be by a second tile, and weights for twice as many products come from memory meanwhile.
#pragma once
#include "kernels/avx2/half_groups.h"
#include "linear/floats.h"

namespace homenode {
namespace {

constexpr int kMostHalfTokens = 6;
// Whose weights and activations stay in the first cache from one half to the other
constexpr int64_t kBlockColumns = 64;

template <int M>
using HalfBlock = Floats[M][kHalfVectors];

// f += weights of 16 rows times the activation at x. Written out, as the compiler would load the activations of all
// tokens first and have no room left.
HOMENODE_INLINE void add_token(const Floats (&w)[kHalfVectors], const uint8_t* x, Floats (&f)[kHalfVectors]) {
  static_assert(kHalfVectors == 2);
  asm("vbroadcastss %[x],%%ymm15\nvfmadd231ps %%ymm15,%[w0],%[f0]\nvfmadd231ps %%ymm15,%[w1],%[f1]"
      : [f0] "+x"(f[0]), [f1] "+x"(f[1])
      : [x] "m"(*reinterpret_cast<const float*>(x)), [w0] "x"(w[0]), [w1] "x"(w[1])
      : "xmm15");
}

// f += column C of two, for 16 rows.
template <class Columns, int C, int M>
HOMENODE_INLINE void add_half_column(const uint8_t* packed, const uint8_t* x, size_t stride, HalfBlock<M>& f) {
  Floats w[kHalfVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kHalfVectors; ++v) w[v] = Columns::template weights<C>(packed, v);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) add_token(w, x + m * stride + 4 * C, f[m]);
}

template <class Columns, int M>
HOMENODE_INLINE void add_half(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* sums,
                              Prefetch& prefetch) {
  HalfBlock<M> f;
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kHalfVectors; ++v) f[m][v] = load_floats(sums + kGroupRows * m + kLanes * v);
  }
  for (; columns > 3; columns -= 4, packed += 2 * Columns::kBytes, x += 16) {
    prefetch_lines(prefetch);  // half as often as a whole tile does, and twice
    add_half_column<Columns, 0, M>(packed, x, stride, f);
    add_half_column<Columns, 1, M>(packed, x, stride, f);
    add_half_column<Columns, 0, M>(packed + Columns::kBytes, x + 8, stride, f);
    add_half_column<Columns, 1, M>(packed + Columns::kBytes, x + 8, stride, f);
  }
  for (; columns > 1; columns -= 2, packed += Columns::kBytes, x += 8) {
    add_half_column<Columns, 0, M>(packed, x, stride, f);
    add_half_column<Columns, 1, M>(packed, x, stride, f);
  }
  if (columns > 0) add_half_column<Columns, 0, M>(packed, x, stride, f);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kHalfVectors; ++v) store_floats(sums + kGroupRows * m + kLanes * v, f[m][v]);
  }
}

template <class Columns, int M>
void tile_half_groups(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* sums,
                      Prefetch prefetch) {
  for (; columns > 0; columns -= kBlockColumns, packed += kBlockColumns / 2 * Columns::kBytes, x += 4 * kBlockColumns) {
    const int64_t now = columns < kBlockColumns ? columns : kBlockColumns;
    add_half<Columns, M>(packed, now, x, stride, sums, prefetch);
    add_half<Columns, M>(packed + Columns::kHalf, now, x, stride, sums + kHalfRows, prefetch);
  }
}

template <class Columns, int M = kFloatTokens + 1>
constexpr void fill_half_groups(Tiles& tiles) {
  tiles.tile[M - 1] = tile_half_groups<Columns, M>;
  tiles.max_tokens = M;
  if constexpr (M < kMostHalfTokens) fill_half_groups<Columns, M + 1>(tiles);
}

}  // namespace
}  // namespace homenode
