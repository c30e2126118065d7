// What KV memory holds and where: see kv/cache.h for what is in a tile.
#pragma once
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "base/status.h"

namespace homenode {

// int8: the largest magnitude of a token's head becomes 127. Scales are float32: sixteen of them are one cache line and
// one vector of lanes, and nothing is rounded twice; at a head of 64 they are 6 % of the memory.
enum class KvType { f32, bf16, int8 };

// How a key (or a value) of a type lies: `elements` of it in `unit` bytes beside each other, the units of 16 tokens
// side by side in a tile; `scale`: bytes of the scale that each has besides, behind the tile's codes. In the order of
// KvType.
struct KvCoding {
  KvType type;
  const char* name;
  int elements, unit, scale;
};
constexpr KvCoding kKvCodings[] = {
    {KvType::f32, "f32", 1, 4, 0},
    {KvType::bf16, "bf16", 2, 4, 0},
    {KvType::int8, "int8", 2, 2, 4},
};
constexpr bool in_order_of_types() {
  for (int i = 0; i < static_cast<int>(std::size(kKvCodings)); ++i)
    if (kKvCodings[i].type != static_cast<KvType>(i)) return false;
  return true;
}
static_assert(in_order_of_types());
constexpr const KvCoding& coding_of(KvType type) { return kKvCodings[static_cast<int>(type)]; }
// Tokens whose values share bytes, as codes of less than 8 bits do: one thread writes all of them.
constexpr int tokens_together(const KvCoding& coding) {
  return coding.elements > coding.unit ? coding.elements / coding.unit : 1;
}

// sides: 2 where values are kept behind keys, 1 where there are keys alone, whose first elements may be read as values.
struct KvShape {
  int layers, kv_heads, head_dim, block_size;
  KvType type;
  int sides = 2;
  bool operator==(const KvShape&) const = default;
};

std::optional<Error> check(const KvShape&);
int64_t key_bytes_of(KvType, int64_t width);  // a key (or a value) of so many elements, and its scale
int64_t tile_bytes_of(const KvShape&);  // keys (or values) of 16 tokens, one head
int64_t head_bytes_of(const KvShape&);  // keys of a block, and values where they are kept, one head

// Heads first_head .. past_head - 1 of layers first_layer .. past_layer - 1: head h of block b in layer l begins at
// offset + (l - first_layer) * layer_stride + b * block_stride + (h - first_head) * head_stride, in bytes.
struct KvRegion {
  int first_head, past_head;
  int64_t offset, layer_stride, block_stride, head_stride;
  int first_layer, past_layer;
};

struct KvLayout {
  KvShape shape;
  int64_t tile_bytes, blocks;
  int64_t nbytes;  // of all of it
  std::vector<KvRegion> regions;
};

// Tiles lie on boundaries of so many bytes; every size of a tile is a multiple.
constexpr int64_t kTileAlignment = 32;
// Readers of values load whole vectors of lanes: the last ones of a head that is no multiple of 16 long reach past it.
constexpr int64_t kKvSlack = 256;

constexpr size_t kMostRegions = 1024;

// Nothing when every head of every block lies within `nbytes`, every head of every layer is in a region, regions that
// have one in common lie apart, and tiles are where kernels can read them. A head that is in several regions (of ranks
// that share it) is read from the first and written to all. A layout may come from another process and be made up.
std::optional<Error> check(const KvLayout&);
// Bytes from a region's offset to the end of its last head. Of a layout that was checked.
int64_t extent_of(const KvLayout&, const KvRegion&);
// Blocks one behind the other, each in one piece.
KvLayout page_layout(const KvShape&, int64_t blocks);

}  // namespace homenode
