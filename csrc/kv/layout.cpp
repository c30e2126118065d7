#include "kv/layout.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>

#include "kernels/kernels.h"

namespace homenode {
namespace {

using std::to_string;

constexpr int64_t kMostCells = 1 << 20;
static_assert(std::size(kKvCodings) == std::extent_v<decltype(Kernels::kv)>, "each type has kernels");

Error wrong(const std::string& what) { return Error{Fault::user, 0, "layout of KV memory: " + what}; }

// a + count * stride, or nothing where that is no offset.
std::optional<int64_t> reach(std::optional<int64_t> a, int64_t count, int64_t stride) {
  int64_t bytes, sum;
  if (!a || __builtin_mul_overflow(count, stride, &bytes) || __builtin_add_overflow(*a, bytes, &sum))
    return std::nullopt;
  return sum;
}

std::optional<int64_t> end_of(const KvLayout& layout, const KvRegion& region) {
  std::optional<int64_t> end = reach(region.offset, region.past_layer - region.first_layer - 1, region.layer_stride);
  end = reach(end, layout.blocks - 1, region.block_stride);
  end = reach(end, region.past_head - region.first_head - 1, region.head_stride);
  return reach(end, 1, head_bytes_of(layout.shape));
}

std::string name_of(const KvRegion& region) {
  return "region of heads " + to_string(region.first_head) + " to " + to_string(region.past_head) + " of layers " +
         to_string(region.first_layer) + " to " + to_string(region.past_layer);
}

std::optional<Error> check_region(const KvLayout& layout, const KvRegion& region) {
  const std::string who = name_of(region);
  if (region.first_head < 0 || region.past_head <= region.first_head || region.past_head > layout.shape.kv_heads ||
      region.first_layer < 0 || region.past_layer <= region.first_layer || region.past_layer > layout.shape.layers) {
    return wrong(who + " of " + to_string(layout.shape.kv_heads) + " heads and " + to_string(layout.shape.layers) +
                 " layers");
  }
  for (const int64_t bytes : {region.offset, region.layer_stride, region.block_stride, region.head_stride}) {
    if (bytes < 0 || bytes % kTileAlignment)
      return wrong(who + " has an offset or stride of " + to_string(bytes) + "; wanted multiples of " +
                   to_string(kTileAlignment));
  }
  const std::optional<int64_t> end = end_of(layout, region);
  if (!end || *end > layout.nbytes)
    return wrong(who + " ends past the " + to_string(layout.nbytes) + " bytes there are");
  return std::nullopt;
}

bool overlap(const KvRegion& a, const KvRegion& b) {
  return a.first_head < b.past_head && b.first_head < a.past_head && a.first_layer < b.past_layer &&
         b.first_layer < a.past_layer;
}

// Is every head of every layer somewhere, and never twice in the same bytes? Of regions that were checked one by one.
std::optional<Error> check_cover(const KvLayout& layout) {
  const auto heads = static_cast<size_t>(layout.shape.kv_heads), layers = static_cast<size_t>(layout.shape.layers);
  std::vector<bool> there(layers * heads);
  for (size_t i = 0; i < layout.regions.size(); ++i) {
    const KvRegion& region = layout.regions[i];
    for (int layer = region.first_layer; layer < region.past_layer; ++layer) {
      const auto row = there.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(layer) * heads);
      std::fill(row + region.first_head, row + region.past_head, true);
    }
    for (size_t j = 0; j < i; ++j) {
      const KvRegion& other = layout.regions[j];
      const bool apart = *end_of(layout, region) <= other.offset || *end_of(layout, other) <= region.offset;
      if (overlap(region, other) && !apart)
        return wrong(name_of(region) + " and " + name_of(other) + " have heads in the same place");
    }
  }
  const auto hole = std::find(there.begin(), there.end(), false);
  if (hole == there.end()) return std::nullopt;
  const auto at = static_cast<size_t>(hole - there.begin());
  return wrong("head " + to_string(at % heads) + " of layer " + to_string(at / heads) + " is in no region");
}

}  // namespace

int64_t key_bytes_of(KvType type, int64_t width) {
  const KvCoding& coding = coding_of(type);
  return width / coding.elements * coding.unit + coding.scale;
}

int64_t tile_bytes_of(const KvShape& shape) { return kTileKeys * key_bytes_of(shape.type, shape.head_dim); }

int64_t head_bytes_of(const KvShape& shape) {
  return shape.sides * tile_bytes_of(shape) * (shape.block_size / kTileKeys);
}

std::optional<Error> check(const KvShape& shape) {
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.head_dim < 2 || shape.head_dim % 2 ||
      shape.head_dim > kMostHead || shape.layers > 100000 || shape.kv_heads > 100000) {
    return Error{Fault::user, 0,
                 "KV memory of " + to_string(shape.layers) + " layers, " + to_string(shape.kv_heads) + " heads of " +
                     to_string(shape.head_dim) + "; wanted at least one of each and an even head of 2 to 4096"};
  }
  if (shape.sides != 1 && shape.sides != 2)
    return Error{Fault::user, 0, "KV memory of " + to_string(shape.sides) + " sides; wanted keys alone, or two"};
  if (shape.block_size < 32 || shape.block_size % 32 || shape.block_size > 65536) {
    return Error{Fault::user, 0, "a KV block of " + to_string(shape.block_size) + " tokens; wanted a multiple of 32"};
  }
  return std::nullopt;
}

std::optional<Error> check(const KvLayout& layout) {
  if (auto error = check(layout.shape)) return error;
  if (layout.tile_bytes != tile_bytes_of(layout.shape)) {
    return wrong("tiles of " + to_string(layout.tile_bytes) + " bytes; its shape has tiles of " +
                 to_string(tile_bytes_of(layout.shape)));
  }
  if (layout.blocks < 1 || layout.blocks > INT32_MAX)
    return wrong(to_string(layout.blocks) + " blocks; wanted 1 to 2^31 - 1");
  if (layout.regions.size() > kMostRegions)
    return wrong(to_string(layout.regions.size()) + " regions; there may be " + to_string(kMostRegions));
  if (int64_t(layout.shape.layers) * layout.shape.kv_heads > kMostCells) {
    return wrong(to_string(layout.shape.layers) + " layers of " + to_string(layout.shape.kv_heads) +
                 " heads; there may be " + to_string(kMostCells) + " heads in all");
  }
  for (const KvRegion& region : layout.regions) {
    if (auto error = check_region(layout, region)) return error;
  }
  return check_cover(layout);
}

int64_t extent_of(const KvLayout& layout, const KvRegion& region) { return *end_of(layout, region) - region.offset; }

KvLayout page_layout(const KvShape& shape, int64_t blocks) {
  const int64_t head = head_bytes_of(shape), layer = shape.kv_heads * head, block = shape.layers * layer;
  return {shape,
          tile_bytes_of(shape),
          blocks,
          blocks * block,
          {{0, shape.kv_heads, 0, layer, block, head, 0, shape.layers}}};
}

}  // namespace homenode
