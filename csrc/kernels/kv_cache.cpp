#include "kernels/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "host/team.h"
#include "kernels/kernels.h"

namespace homenode {
namespace {

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);  // a NaN stays one
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Readers of values load whole vectors of lanes: the last ones of a head that is no multiple of 16 long reach past it.
constexpr size_t kSlack = 256;

}  // namespace

Result<std::shared_ptr<KvCache>> KvCache::create(Team& team, const KvShape& shape, int64_t blocks) {
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.head_dim < 2 || shape.head_dim % 2 || shape.head_dim > 4096 || shape.layers > 100000 ||
      shape.kv_heads > 100000) {
    return Error{Fault::user, 0, "KV memory of " + std::to_string(shape.layers) + " layers, " + std::to_string(shape.kv_heads) + " heads of " +
                                     std::to_string(shape.head_dim) + "; wanted at least one of each and an even head of 2 to 4096"};
  }
  if (shape.block_size < 32 || shape.block_size % 32 || shape.block_size > 65536) {
    return Error{Fault::user, 0, "a KV block of " + std::to_string(shape.block_size) + " tokens; wanted a multiple of 32"};
  }
  const int64_t token_bytes = int64_t(shape.head_dim) * (shape.bf16 ? 2 : 4), head_bytes = 2 * token_bytes * shape.block_size;
  int64_t total;
  if (blocks < 1 || blocks > INT32_MAX || __builtin_mul_overflow(head_bytes * shape.kv_heads, shape.layers * blocks, &total)) {
    return Error{Fault::user, 0, std::to_string(blocks) + " KV blocks; wanted at least 1 and no more bytes than an address space"};
  }
  auto pages = allocate_pages(static_cast<size_t>(total) + kSlack);
  if (!pages) return pages.error();
  auto cache = std::make_shared<KvCache>();
  cache->shape_ = shape;
  cache->blocks_ = blocks;
  cache->token_bytes_ = token_bytes;
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

void KvCache::put(int layer, int64_t block, int slot, int kv_head, const float* key, const float* value) {
  std::byte* base = head(layer, block, kv_head);
  const int64_t n = shape_.head_dim, tile = slot / kTileKeys * kTileKeys, lane = slot % kTileKeys;
  std::byte* key_tile = base + tile * token_bytes_;
  std::byte* values = base + shape_.block_size * token_bytes_;
  if (!shape_.bf16) {
    auto* k = reinterpret_cast<float*>(key_tile);
    for (int64_t d = 0; d < n; ++d) k[d * kTileKeys + lane] = key[d];
    std::memcpy(values + slot * token_bytes_, value, static_cast<size_t>(token_bytes_));
    return;
  }
  auto* k = reinterpret_cast<uint16_t*>(key_tile);
  for (int64_t d = 0; d < n; ++d) k[(d / 2) * 2 * kTileKeys + lane * 2 + d % 2] = to_bf16(key[d]);
  auto* v = reinterpret_cast<uint16_t*>(values) + (slot / 2) * 2 * n + slot % 2;
  for (int64_t d = 0; d < n; ++d) v[2 * d] = to_bf16(value[d]);
}

}  // namespace homenode
