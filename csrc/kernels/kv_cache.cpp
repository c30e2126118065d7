#include "kernels/kv_cache.h"

#include <cstring>
#include <string>

#include "host/team.h"

namespace homenode {
namespace {

int64_t bytes_of_tile(const KvShape& shape) {
  const int64_t elements = int64_t(kTileKeys) * shape.head_dim;
  switch (shape.type) {
    case KvType::f32: return 4 * elements;
    case KvType::bf16: return 2 * elements;
    case KvType::int8: break;
  }
  return elements + kTileKeys * static_cast<int64_t>(sizeof(float));
}

// Readers of values load whole vectors of lanes: the last ones of a head that is no multiple of 16 long reach past it.
constexpr size_t kSlack = 256;

}  // namespace

Result<std::shared_ptr<KvCache>> KvCache::create(Team& team, const KvShape& shape, int64_t blocks) {
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.head_dim < 2 || shape.head_dim % 2 || shape.head_dim > kMostHead || shape.layers > 100000 ||
      shape.kv_heads > 100000) {
    return Error{Fault::user, 0, "KV memory of " + std::to_string(shape.layers) + " layers, " + std::to_string(shape.kv_heads) + " heads of " +
                                     std::to_string(shape.head_dim) + "; wanted at least one of each and an even head of 2 to 4096"};
  }
  if (shape.block_size < 32 || shape.block_size % 32 || shape.block_size > 65536) {
    return Error{Fault::user, 0, "a KV block of " + std::to_string(shape.block_size) + " tokens; wanted a multiple of 32"};
  }
  const int64_t tile_bytes = bytes_of_tile(shape), head_bytes = 2 * tile_bytes * (shape.block_size / kTileKeys);
  int64_t total;
  if (blocks < 1 || blocks > INT32_MAX || __builtin_mul_overflow(head_bytes * shape.kv_heads, shape.layers * blocks, &total)) {
    return Error{Fault::user, 0, std::to_string(blocks) + " KV blocks; wanted at least 1 and no more bytes than an address space"};
  }
  auto pages = allocate_pages(static_cast<size_t>(total) + kSlack);
  if (!pages) return pages.error();
  auto cache = std::make_shared<KvCache>();
  cache->shape_ = shape;
  cache->blocks_ = blocks;
  cache->tile_bytes_ = tile_bytes;
  cache->head_bytes_ = head_bytes;
  cache->bytes_ = static_cast<size_t>(total);
  cache->pages_ = pages.value();
  const int64_t blocks_total = int64_t(shape.layers) * blocks, block_bytes = head_bytes * shape.kv_heads;
  team.run([&](int member) {
    const int64_t begin = blocks_total * member / team.size(), end = blocks_total * (member + 1) / team.size();
    std::memset(cache->pages_.data + begin * block_bytes, 0, static_cast<size_t>((end - begin) * block_bytes));
  });
  return cache;
}

}  // namespace homenode
