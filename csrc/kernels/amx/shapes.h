// The shapes the tile registers have while a kind of matrix is multiplied.
//
// Sums (0 .. 3), activations (4, 5) and weights (6, 7). A thread's configuration stays until a tile function needs
// another one, or until the products of a run are over: then it is released, so that the kernel has nothing to keep
// when another thread takes over.
#pragma once
#include "kernels/amx/tiles.h"
#include "kernels/linear_table.h"

namespace homenode {
namespace {

constexpr int kTileTokens = 16, kTileRows = 16;
constexpr int kSumStride = kGroupRows * 4;  // bytes from token to token of a group's sums, in float32 or int32

// What the factors are: 16 pairs of bfloat16 in a row of activations, or the bytes of 32 columns.
enum class Factors : int { pairs = 0, bytes = 1 };
constexpr int row_bytes_of(Factors f) { return f == Factors::pairs ? 64 : 32; }

// 0: none.
thread_local int shape_of_thread = 0;

// For 1 to 32 tokens; those beyond 16 have tiles of their own.
inline void use_shape(Factors factors, int tokens) {
  const int shape = 1 + int(factors) * 2 * kTileTokens + tokens - 1;
  if (shape_of_thread == shape) return;
  const int first = tokens < kTileTokens ? tokens : kTileTokens,
            second = tokens > kTileTokens ? tokens - kTileTokens : first, bytes = row_bytes_of(factors);
  TileConfiguration c;
  for (int i = 0; i < 4; ++i) c.set(i, i < 2 ? first : second, 64);
  c.set(4, first, bytes);
  c.set(5, second, bytes);
  for (int i = 6; i < 8; ++i) c.set(i, bytes / 4, 64);
  configure_tiles(c);
  shape_of_thread = shape;
}

void release_shape() {
  if (shape_of_thread == 0) return;
  release_tiles();
  shape_of_thread = 0;
}

}  // namespace
}  // namespace homenode
