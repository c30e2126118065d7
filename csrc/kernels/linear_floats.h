// Tiles of the float formats. See linear_tiles.h.
#pragma once
#include "kernels/linear_block.h"

namespace homenode {
namespace {

// f += one column of the weights times that column of M rows; load(v) gives the weights of one vector of rows, used at once.
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

template <int M>
void tile_f32(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* sums) {
  Block<M> f;
  load_sums<M>(sums, f);
  for (; columns > 0; --columns, packed += 4 * kGroupRows, x += 4) {
    add_column<M>([packed](int v) { return as_floats(load_bytes(packed + v * kVectorBytes)); }, x, stride, f);
  }
  store_sums<M>(f, sums);
}

template <int M>
void tile_f16(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* sums) {
  Block<M> f;
  load_sums<M>(sums, f);
  for (; columns > 0; --columns, packed += 2 * kGroupRows, x += 4) {
    add_column<M>([packed](int v) { return load_halves(packed + 2 * kLanes * v); }, x, stride, f);
  }
  store_sums<M>(f, sums);
}

// The first or the second of the two adjacent columns that each 32-bit unit holds.
HOMENODE_INLINE Floats first_of_pair(const uint8_t* p) { return as_floats(shift_left32<16>(load_bytes(p))); }
HOMENODE_INLINE Floats second_of_pair(const uint8_t* p) { return as_floats(bit_and(load_bytes(p), broadcast_int(int32_t(0xffff0000)))); }

template <int M>
void tile_bf16(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* sums) {
  Block<M> f;
  load_sums<M>(sums, f);
  for (; columns > 1; columns -= 2, packed += 4 * kGroupRows, x += 8) {
    add_column<M>([packed](int v) { return first_of_pair(packed + v * kVectorBytes); }, x, stride, f);
    add_column<M>([packed](int v) { return second_of_pair(packed + v * kVectorBytes); }, x + 4, stride, f);
  }
  if (columns > 0) add_column<M>([packed](int v) { return first_of_pair(packed + v * kVectorBytes); }, x, stride, f);
  store_sums<M>(f, sums);
}

}  // namespace
}  // namespace homenode
