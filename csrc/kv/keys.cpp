#include "kv/keys.h"

#include <algorithm>
#include <cstring>

namespace homenode {
namespace {

// A key among others: elements of all `of` keys lie `Unit` bytes of each key beside each other.
template <class Unit>
void copy_units(const std::byte* from, int of, int key, std::byte* to, int to_of, int place, int64_t count) {
  const auto* source = reinterpret_cast<const Unit*>(from) + key;
  auto* target = reinterpret_cast<Unit*>(to) + place;
  for (int64_t i = 0; i < count; ++i) target[i * to_of] = source[i * of];
}

}  // namespace

int32_t number_at(const float* row, int i) {
  int32_t number;
  std::memcpy(&number, row + i, sizeof number);
  return number;
}

const std::byte* tile_at(const KvCache& cache, int layer, const Step& step, int sequence, int position, int head) {
  const int size = cache.shape().block_size;
  const int32_t block = step.block_table[static_cast<size_t>(sequence * step.table_width + position / size)];
  return cache.keys(layer, block, head, position % size);
}

int sequence_of(const Step& step, int token) {
  const auto after = std::upper_bound(step.query_start.begin(), step.query_start.begin() + step.sequences + 1, token);
  return static_cast<int>(after - step.query_start.begin()) - 1;
}

void copy_key(KvType type, int64_t width, const std::byte* from, int of, int key, std::byte* to, int to_of, int place) {
  const KvCoding& coding = coding_of(type);
  const int64_t units = width / coding.elements, codes = units * coding.unit;
  switch (coding.unit) {
    case 4: copy_units<uint32_t>(from, of, key, to, to_of, place, units); break;
    case 2: copy_units<uint16_t>(from, of, key, to, to_of, place, units); break;
    default: copy_units<uint8_t>(from, of, key, to, to_of, place, units);
  }
  // The scales of a key by itself may lie anywhere.
  std::memcpy(to + to_of * codes + place * coding.scale, from + of * codes + key * coding.scale,
              static_cast<size_t>(coding.scale));
}

bool WindowRows::fit() const {
  const KvShape& shape = cache->shape();
  if (ratio < 2 || width < 2 || width % 2 || width > kMostHead || shape.sides != 1 || shape.kv_heads != 1) return false;
  return (kTileKeys + ratio - 1) / ratio * key_bytes_of(shape.type, width) <= cache->tile_bytes();
}

const std::byte* WindowRows::row(const Step& step, int sequence, int window) const {
  const int position = last_position(window);
  return tile_at(*cache, layer, step, sequence, position) +
         position % kTileKeys / ratio * key_bytes_of(cache->shape().type, width);
}

void WindowRows::bring(const Step& step, int sequence, const float* numbers, int first, int past, std::byte* tiles,
                       int key) const {
  const KvType type = cache->shape().type;
  for (int i = first; i < past; ++i, ++key) {
    const int window = numbers ? number_at(numbers, i) / ratio : i;
    copy_key(type, width, row(step, sequence, window), 1, 0, tiles + key / kTileKeys * tile_bytes(), kTileKeys,
             key % kTileKeys);
  }
}

void WindowRows::write(const float* rows, int64_t stride, const Step& step, const Kernels& kernels, int token_begin,
                       int token_end, std::byte* scratch) const {
  const KvType type = cache->shape().type;
  for (int token = token_begin; token < token_end; ++token) {
    const auto i = static_cast<size_t>(token);
    const int position = step.positions[i], slot = step.token_slot[i];
    if (position % ratio != ratio - 1) continue;
    cache->kernels(kernels).put_key(rows + token * stride, width, 0, scratch);
    copy_key(
        type, width, scratch, kTileKeys, 0,
        cache->key_tile(layer, step.token_block[i], 0, slot) + position % kTileKeys / ratio * key_bytes_of(type, width),
        1, 0);
  }
}

}  // namespace homenode
