// Tiles of the float formats. See linear/tiles.h.
#pragma once
#include "linear/block.h"

namespace homenode {
namespace {

// f += one column of the weights times that column of M rows; load(v) gives the weights of one vector of rows, used at
// once.
template <int M, class Load>
HOMENODE_INLINE void add_column(Load load, const uint8_t* x, size_t stride, Block<M>& f) {
  Floats values[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) values[m] = broadcast_float(x + m * stride);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const Floats w = load(v);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) f[m][v] = fma(w, values[m], f[m][v]);
  }
}

// The first or the second of the two adjacent columns that each 32-bit unit holds.
HOMENODE_INLINE Floats first_of_pair(const uint8_t* p) { return as_floats(shift_left32<16>(load_bytes(p))); }
HOMENODE_INLINE Floats second_of_pair(const uint8_t* p) {
  return as_floats(bit_and(load_bytes(p), broadcast_int(int32_t(0xffff0000))));
}

// How two columns of a group lie: their bytes, those of the first 16 rows in each line of rows, and the weights of
// vector `v` of column `C` of the two.
struct F32Columns {
  static constexpr int kBytes = 8 * kGroupRows, kHalf = 2 * kGroupRows;
  template <int C>
  static HOMENODE_INLINE Floats weights(const uint8_t* packed, int v) {
    return as_floats(load_bytes(packed + 4 * kGroupRows * C + kVectorBytes * v));
  }
};
struct F16Columns {
  static constexpr int kBytes = 4 * kGroupRows, kHalf = kGroupRows;
  template <int C>
  static HOMENODE_INLINE Floats weights(const uint8_t* packed, int v) {
    return load_halves(packed + 2 * kGroupRows * C + 2 * kLanes * v);
  }
};
struct Bf16Columns {
  static constexpr int kBytes = 4 * kGroupRows, kHalf = 2 * kGroupRows;
  template <int C>
  static HOMENODE_INLINE Floats weights(const uint8_t* packed, int v) {
    return C ? second_of_pair(packed + kVectorBytes * v) : first_of_pair(packed + kVectorBytes * v);
  }
};

template <class Columns, int M>
void tile_floats(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* sums,
                 Prefetch prefetch) {
  Block<M> f;
  load_sums<M>(sums, f);
  for (; columns > 1; columns -= 2, packed += Columns::kBytes, x += 8) {
    prefetch_lines(prefetch);
    add_column<M>([packed](int v) { return Columns::template weights<0>(packed, v); }, x, stride, f);
    add_column<M>([packed](int v) { return Columns::template weights<1>(packed, v); }, x + 4, stride, f);
  }
  if (columns > 0) add_column<M>([packed](int v) { return Columns::template weights<0>(packed, v); }, x, stride, f);
  store_sums<M>(f, sums);
}

template <class Columns, int Most, int M = 1>
constexpr void fill_tiles(Tiles& tiles) {
  tiles.tile[M - 1] = tile_floats<Columns, M>;
  tiles.max_tokens = M;
  if constexpr (M < Most) fill_tiles<Columns, Most, M + 1>(tiles);
}

}  // namespace
}  // namespace homenode
