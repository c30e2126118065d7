// Attention over codes of another type than the core has: of four bits, beside int8 that holds the same codes.
#include <algorithm>
#include <array>

#include "kernels/simd/scalar.h"

#include "kernels/simd/attention_coded.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

constexpr int kLargestCode = 7, kMostElements = 160;
constexpr size_t kSlack = 256;  // readers load whole vectors

// Two codes in a byte, the first one below.
struct Nibbles {
  using Element = int8_t;  // its tiles are not turned here
  using Pair = uint8_t;
  static PairLanes load(const Pair* p) {
    int8_t codes[2 * kTileKeys];
    for (int i = 0; i < kTileKeys; ++i) {
      codes[2 * i] = static_cast<int8_t>(static_cast<int8_t>(p[i] << 4) >> 4);
      codes[2 * i + 1] = static_cast<int8_t>(static_cast<int8_t>(p[i]) >> 4);
    }
    return load_code_pairs(codes);
  }
};

// A tile in both types: the same codes and the same scales.
struct BothTiles {
  Exact<int8_t> bytes;
  Exact<uint8_t> nibbles;

  BothTiles(Random& random, int elements)
      : bytes(static_cast<size_t>(kTileKeys * elements) + sizeof(float) * kTileKeys + kSlack),
        nibbles(static_cast<size_t>(kTileKeys / 2 * elements) + sizeof(float) * kTileKeys + kSlack) {
    const auto pairs = static_cast<size_t>(kTileKeys / 2 * elements);
    for (size_t i = 0; i < pairs; ++i) {
      const int first = random.between(-kLargestCode, kLargestCode),
                second = random.between(-kLargestCode, kLargestCode);
      bytes[2 * i] = static_cast<int8_t>(first), bytes[2 * i + 1] = static_cast<int8_t>(second);
      nibbles[i] = static_cast<uint8_t>((first & 15) | (second & 15) << 4);
    }
    std::array<float, kTileKeys> scales;
    for (float& scale : scales) scale = 0.01f + std::abs(random.real());
    std::memcpy(bytes.get() + 2 * pairs, scales.data(), sizeof scales);
    std::memcpy(nibbles.get() + pairs, scales.data(), sizeof scales);
  }
};

struct Results {
  std::vector<float> scores, largest, sum, out;

  Results(int rows, int elements)
      : scores(size_t(kQueryRows) * kChunkKeys),
        largest(kQueryRows),
        sum(kQueryRows),
        out(static_cast<size_t>(rows * padded_head(elements))) {}
};

}  // namespace

void check_coded(Random& random) {
  const int rows = random.between(1, kQueryRows), elements = 2 * random.between(1, kMostElements / 2);
  std::vector<BothTiles> keys, values;
  for (int t = 0; t < kChunkTiles; ++t) {
    keys.emplace_back(random, elements);
    values.emplace_back(random, elements);
  }
  std::vector<int16_t> queries(static_cast<size_t>(rows * elements));
  for (int16_t& code : queries)
    code = static_cast<int16_t>(random.between(-query_limit(elements), query_limit(elements)));
  std::vector<float> query_scales(kQueryRows, 0.0001f);
  std::vector<int> begin(kQueryRows), end(kQueryRows);
  for (size_t r = 0; r < kQueryRows; ++r) {
    begin[r] = random.between(0, kChunkKeys - 1);
    end[r] = random.between(begin[r] + 1, kChunkKeys);
  }
  const auto attended = [&](void (*attend)(const AttendArgs&), auto tile_of) {
    Results found(rows, elements);
    std::array<const void*, kChunkTiles> key_tiles, value_tiles;
    for (size_t t = 0; t < kChunkTiles; ++t) key_tiles[t] = tile_of(keys[t]), value_tiles[t] = tile_of(values[t]);
    AttendArgs a{};
    a.rows = rows, a.head_dim = elements, a.value_dim = elements;
    a.queries = queries.data(), a.query_scales = query_scales.data();
    a.keys = key_tiles.data(), a.values = value_tiles.data();
    a.begin = begin.data(), a.end = end.data();
    a.scores = found.scores.data(), a.largest = found.largest.data(), a.sum = found.sum.data();
    a.out = found.out.data(), a.out_stride = padded_head(elements);
    attend(a);
    return found;
  };
  const Results bytes =
      attended(attend_coded<StoredInt8>, [](const BothTiles& t) -> const void* { return t.bytes.get(); });
  const Results nibbles =
      attended(attend_coded<Nibbles>, [](const BothTiles& t) -> const void* { return t.nibbles.get(); });
  require(bytes.largest == nibbles.largest && bytes.sum == nibbles.sum, "scores of the same codes are the same");
  for (int r = 0; r < rows; ++r) {
    const auto at = static_cast<size_t>(r * padded_head(elements)), size = static_cast<size_t>(elements);
    require(!std::memcmp(&bytes.out[at], &nibbles.out[at], size * sizeof(float)),
            "values of the same codes are the same");
  }
}

}  // namespace homenode::checks
