// The shapes the tile registers have while a kind of matrix is multiplied.
//
// Sums (0 .. 3), activations (4, 5) and weights (6, 7); in attention queries (4), softmax weights (5), keys (6) and
// values (7). A thread's configuration stays until a tile function needs another one, or until the products of a run
// are over: then it is released, so that the kernel has nothing to keep when another thread takes over.
#pragma once
#include "kernels/amx/tiles.h"
#include "quant/coding.h"

namespace homenode {

// The shape that a thread's tile registers have, of the numbers that functions below give them; 0: none. For all that
// is compiled for the level.
inline constinit thread_local int tile_shape_of_thread = 0;

namespace {

constexpr int kTileTokens = 16, kTileRows = 16;
constexpr int kSumStride = kGroupRows * 4;  // bytes from token to token of a group's sums, in float32 or int32

// What the factors are: 16 pairs of bfloat16 in a row of activations, or the bytes of 32 columns.
enum class Factors : int { pairs = 0, bytes = 1 };
constexpr int row_bytes_of(Factors f) { return f == Factors::pairs ? 64 : 32; }

inline void use_configuration(int shape, const TileConfiguration& c) {
  configure_tiles(c);
  tile_shape_of_thread = shape;
}

// For 1 to 32 tokens; those beyond 16 have tiles of their own.
inline void use_shape(Factors factors, int tokens) {
  const int shape = 1 + int(factors) * 2 * kTileTokens + tokens - 1;
  if (tile_shape_of_thread == shape) return;
  const int first = tokens < kTileTokens ? tokens : kTileTokens,
            second = tokens > kTileTokens ? tokens - kTileTokens : first, bytes = row_bytes_of(factors);
  TileConfiguration c;
  for (int i = 0; i < 4; ++i) c.set(i, i < 2 ? first : second, 64);
  c.set(4, first, bytes);
  c.set(5, second, bytes);
  for (int i = 6; i < 8; ++i) c.set(i, bytes / 4, 64);
  use_configuration(shape, c);
}

// For 1 to 16 rows of queries: 32 elements of them with 16 keys, and the weights of 16 keys with 16 elements of values.
inline void use_attention_shape(int rows) {
  const int shape = 1 + 4 * kTileTokens + rows - 1;
  if (tile_shape_of_thread == shape) return;
  TileConfiguration c;
  for (int i = 0; i < 5; ++i) c.set(i, rows, 64);
  c.set(5, rows, 32);
  c.set(6, 16, 64);
  c.set(7, 8, 64);
  use_configuration(shape, c);
}

inline void release_shape() {
  if (tile_shape_of_thread == 0) return;
  release_tiles();
  tile_shape_of_thread = 0;
}

}  // namespace
}  // namespace homenode
