// Attention over codes of another type than the core has: of four bits, beside int8 that holds the same codes.
#include <algorithm>
#include <array>

#include "kernels/simd/scalar.h"

#include "kernels/simd/attention_coded.h"
#include "kv/write.h"
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

// Threads that write values of which two share a byte: every token is written once, and no group by two of them.
void check_cut(Random& random) {
  constexpr KvCoding kNibbles{KvType::int8, "nibbles", 2, 1, 4};
  static_assert(tokens_together(kNibbles) == 2 && tokens_together(coding_of(KvType::int8)) == 1 &&
                tokens_together(coding_of(KvType::bf16)) == 1 && tokens_together(coding_of(KvType::f32)) == 1);
  constexpr int kBlock = 32, kTogether = tokens_together(kNibbles);
  Step step;
  for (int sequence = random.between(1, 4); sequence > 0; --sequence) {
    const int first = random.between(0, 2 * kBlock), past = first + random.between(1, 40);
    for (int at = first; at < past; ++at) {
      step.token_block.push_back(10 * sequence + at / kBlock);
      step.token_slot.push_back(at % kBlock);
    }
  }
  step.tokens = static_cast<int>(step.token_slot.size());
  const int threads = random.between(1, 9);
  int end = 0;
  for (int thread = 0; thread < threads; ++thread) {
    const RowRange mine = whole_groups(step, rows_of(step.tokens, thread, threads), kTogether);
    require(mine.begin == end && mine.end >= mine.begin, "the parts of threads follow each other");
    end = mine.end;
    if (mine.begin == mine.end || !mine.begin) continue;
    const auto at = static_cast<size_t>(mine.begin);
    require(step.token_block[at] != step.token_block[at - 1] ||
                step.token_slot[at] / kTogether != step.token_slot[at - 1] / kTogether,
            "tokens that share bytes are one thread's");
  }
  require(end == step.tokens, "all tokens are written");
}

}  // namespace

void check_coded(Random& random) {
  check_cut(random);
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
