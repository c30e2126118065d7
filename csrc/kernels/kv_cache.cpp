#include "kernels/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "host/team.h"
#include "kernels/symmetric.h"

namespace homenode {
namespace {

constexpr int kMostHead = 4096;  // elements

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);  // a NaN stays one
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Where one of a tile's 16 tokens goes: see kv_cache.h.
void put_f32(std::byte* key_tile, std::byte* value_tile, int token, int64_t head_dim, const float* key, const float* value) {
  auto* k = reinterpret_cast<float*>(key_tile);
  for (int64_t d = 0; d < head_dim; ++d) k[d * kTileKeys + token] = key[d];
  std::memcpy(reinterpret_cast<float*>(value_tile) + token * head_dim, value, static_cast<size_t>(head_dim) * sizeof(float));
}

// Two-byte and one-byte kinds lie in pairs.
template <class Stored>
void put_key(std::byte* tile, int token, int64_t head_dim, const Stored* key) {
  auto* k = reinterpret_cast<Stored*>(tile) + token * 2;
  for (int64_t d = 0; d < head_dim; ++d) k[(d / 2) * 2 * kTileKeys + d % 2] = key[d];
}

template <class Stored>
void put_value(std::byte* tile, int token, int64_t head_dim, const Stored* value) {
  auto* v = reinterpret_cast<Stored*>(tile) + (token / 2) * 2 * head_dim + token % 2;
  for (int64_t d = 0; d < head_dim; ++d) v[2 * d] = value[d];
}

void put_bf16(std::byte* key_tile, std::byte* value_tile, int token, int64_t head_dim, const float* key, const float* value) {
  uint16_t rounded[kMostHead];
  std::transform(key, key + head_dim, rounded, to_bf16);
  put_key(key_tile, token, head_dim, rounded);
  std::transform(value, value + head_dim, rounded, to_bf16);
  put_value(value_tile, token, head_dim, rounded);
}

void put_int8(std::byte* key_tile, std::byte* value_tile, int token, int64_t head_dim, const float* key, const float* value) {
  int8_t codes[kMostHead];
  const auto put_scale = [&](std::byte* tile, float scale) {
    std::memcpy(tile + kTileKeys * head_dim + token * static_cast<int>(sizeof scale), &scale, sizeof scale);
  };
  put_scale(key_tile, encode_symmetric(key, head_dim, kKvLimit, codes));
  put_key(key_tile, token, head_dim, codes);
  put_scale(value_tile, encode_symmetric(value, head_dim, kKvLimit, codes));
  put_value(value_tile, token, head_dim, codes);
}

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

void KvCache::put(int layer, int64_t block, int slot, int kv_head, const float* key, const float* value) {
  std::byte* tile = head(layer, block, kv_head) + slot / kTileKeys * tile_bytes_;
  std::byte* value_tile = tile + shape_.block_size / kTileKeys * tile_bytes_;
  const int token = slot % kTileKeys;
  switch (shape_.type) {
    case KvType::f32: return put_f32(tile, value_tile, token, shape_.head_dim, key, value);
    case KvType::bf16: return put_bf16(tile, value_tile, token, shape_.head_dim, key, value);
    case KvType::int8: return put_int8(tile, value_tile, token, shape_.head_dim, key, value);
  }
}

}  // namespace homenode
