// Keys one by one: where they lie, out of tiles and into them, and the rows that a layer keeps of windows of tokens.
#pragma once
#include <cstddef>
#include <cstdint>

#include "graph/step.h"
#include "kv/cache.h"

namespace homenode {

// The sequence of a step that a token is of.
int sequence_of(const Step&, int token);

// The tile that holds the key of a position of a sequence.
const std::byte* tile_at(const KvCache&, int layer, const Step&, int sequence, int position, int head = 0);

// Key `key` of a tile of `of` keys becomes key `place` of one of `to_of`: kTileKeys, or 1, a key by itself.
void copy_key(KvType, int64_t width, const std::byte* from, int of, int key, std::byte* to, int to_of, int place);

// Rows of `width` elements of every window of `ratio` tokens, in a layer that keeps nothing else. Each is a key by
// itself, and lies whole in the tile of its last token: see homenode.compute.ops.LayerKv.of_windows.
struct WindowRows {
  KvCache* cache;
  int layer, ratio;
  int64_t width;

  // Whether there is room for them.
  bool fit() const;
  // Of a tile of rows that are brought together.
  int64_t tile_bytes() const { return kTileKeys * key_bytes_of(cache->shape().type, width); }
  // How many windows end up to this position.
  int seen(int position) const { return (position + 1) / ratio; }
  int last_position(int window) const { return (window + 1) * ratio - 1; }
  const std::byte* row(const Step&, int sequence, int window) const;
  // Windows first .. past - 1 of a sequence become keys of tiles that begin at `tiles`, from key `key` on. `numbers`:
  // their last positions instead, as whole numbers of 32 bits, from first to past - 1.
  void bring(const Step&, int sequence, const float* numbers, int first, int past, std::byte* tiles, int key) const;
  // Those of rows [tokens, width], `stride` floats apart, of tokens token_begin .. token_end - 1 that end a window.
  // scratch: of a tile.
  void write(const float* rows, int64_t stride, const Step&, const Kernels&, int token_begin, int token_end,
             std::byte* scratch) const;
};

// Element `i` of a row of floats as the whole number of 32 bits that it is.
int32_t number_at(const float* row, int i);

}  // namespace homenode
