#include "kernels/attention_chosen.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/operation.h"

namespace homenode {
namespace {

constexpr float kLog2E = 1.44269504f;  // scores of attention are in base 2
constexpr int kFewRows = 8;            // work items of fewer query heads would read keys too often

int32_t number_at(const float* row, int i) {
  int32_t number;
  std::memcpy(&number, row + i, sizeof number);
  return number;
}

// Where the key of a position lies: the tile that holds it.
const std::byte* tile_at(const KvCache& cache, int layer, const Step& step, int sequence, int position, int head = 0) {
  const int size = cache.shape().block_size;
  const int32_t block = step.block_table[static_cast<size_t>(sequence * step.table_width + position / size)];
  return cache.keys(layer, block, head, position % size);
}

// Elements of all keys of a tile lie `Unit` bytes of each key beside each other.
template <class Unit>
void copy_units(const std::byte* from, int key, std::byte* to, int place, int64_t count) {
  const auto* source = reinterpret_cast<const Unit*>(from) + key;
  auto* target = reinterpret_cast<Unit*>(to) + place;
  for (int64_t i = 0; i < count; ++i) target[i * kTileKeys] = source[i * kTileKeys];
}

// Key `key` of a tile becomes key `place` of another.
void copy_key(const KvShape& shape, const std::byte* from, int key, std::byte* to, int place) {
  const int64_t width = shape.head_dim;
  switch (shape.type) {
    case KvType::f32: return copy_units<uint32_t>(from, key, to, place, width);
    case KvType::bf16: return copy_units<uint32_t>(from, key, to, place, width / 2);
    case KvType::int8: break;
  }
  copy_units<uint16_t>(from, key, to, place, width / 2);
  copy_units<uint32_t>(from + kTileKeys * width, key, to + kTileKeys * width, place, 1);
}

// The tiles of one chunk of a token's keys.
struct ChosenChunk {
  const void *tiles[kChunkTiles], *values[kChunkTiles];
  int keys;
};

// A result of up to kQueryRows rows.
struct Result {
  float *largest, *sum, *out;
  explicit Result(float* memory) : largest(memory), sum(memory + kQueryRows), out(memory + 2 * kQueryRows) {}
};

// Some query heads of one token as one thread works on them.
class ChosenWork {
 public:
  ChosenWork(const AttentionCall& call, const ChosenTokens& chosen, const Step& step, const AttentionShape& shape,
             const Kernels& kernels, std::byte* scratch)
      : call_(call),
        chosen_(chosen),
        step_(step),
        shape_(shape),
        kernels_(kernels),
        kv_(call.cache->kernels(kernels)),
        padded_(padded_head(shape.value_dim())),
        queries_(reinterpret_cast<float*>(scratch)),
        scores_(queries_ + kQueryRows * padded_head(shape.head_dim)),
        merged_(scores_ + kQueryRows * kChunkKeys),
        chunk_(merged_.out + kQueryRows * padded_),
        transformed_(chunk_.out + kQueryRows * padded_),
        turned_(shape.value_columns ? transformed_ + padded_head(shape.head_dim) : nullptr),
        gathered_(turned_ ? reinterpret_cast<std::byte*>(turned_) + kTurnedBytes : nullptr) {}

  // Query heads first .. first + rows - 1 of those of a KV head.
  void attend(int token, int kv_head, int first, int rows) {
    const int first_head = kv_head * shape_.group + first;
    load_queries(token, first_head, rows);
    const int count = chosen_.choice.of(step_.positions[static_cast<size_t>(token)]);
    for (int key = 0; key < count; key += kChunkKeys) {
      const ChosenChunk chunk = find_chunk(token, kv_head, key, std::min(kChunkKeys, count - key));
      compute(chunk, rows, key == 0 ? merged_ : chunk_);
      if (!key) continue;
      Merge how[kQueryRows];
      std::fill_n(how, rows, Merge::add);
      kernels_.merge(
          {rows, padded_, how, merged_.largest, merged_.sum, merged_.out, chunk_.largest, chunk_.sum, chunk_.out});
    }
    float* out = call_.out + token * call_.out_stride + int64_t(first_head) * shape_.value_dim();
    for (int r = 0; r < rows; ++r, out += shape_.value_dim())
      kernels_.divide(merged_.out + r * padded_, merged_.sum[r], out, shape_.value_dim());
  }

 private:
  void load_queries(int token, int first_head, int rows) {
    auto* loaded = reinterpret_cast<std::byte*>(queries_);
    const float* q = call_.queries + token * call_.query_stride + int64_t(first_head) * shape_.head_dim;
    for (int r = 0; r < rows; ++r, q += shape_.head_dim, loaded += int64_t(shape_.head_dim) * kv_.query_bytes) {
      const float* head = call_.query_transform.apply(kernels_, q, token, shape_.head_dim, transformed_);
      scales_[r] = kv_.load_query(head, shape_.head_dim, call_.scale * kLog2E, loaded);
    }
  }

  ChosenChunk find_chunk(int token, int kv_head, int first, int keys) {
    const int size = chosen_.choice.block, sequence = sequence_of(step_, token);
    const float* row = chosen_.blocks + token * chosen_.stride + int64_t(kv_head) * chosen_.choice.count;
    const auto position_of = [=](int key) { return number_at(row, key / size) * size + key % size; };
    const KvShape& kept = call_.cache->shape();
    const int64_t to_values = kept.sides == 2 ? kept.block_size / kTileKeys * call_.cache->tile_bytes() : 0;
    ChosenChunk chunk{{}, {}, keys};
    std::byte* to = gathered_;
    for (int key = 0; key < keys; key += kTileKeys) {
      const int count = std::min(kTileKeys, keys - key), from = position_of(first + key);
      const std::byte* tile = to;
      if (from % kTileKeys == 0 && position_of(first + key + count - 1) == from + count - 1) {
        tile = tile_at(*call_.cache, call_.layer, step_, sequence, from, kv_head);
      } else {
        for (int i = 0; i < count; ++i) {
          const int position = position_of(first + key + i);
          copy_key(kept, tile_at(*call_.cache, call_.layer, step_, sequence, position), position % kTileKeys, to, i);
        }
        to += call_.cache->tile_bytes();
      }
      chunk.tiles[key / kTileKeys] = tile;
      chunk.values[key / kTileKeys] = tile + to_values;
    }
    return chunk;
  }

  void compute(const ChosenChunk& chunk, int rows, const Result& result) {
    int begin[kQueryRows], end[kQueryRows];
    std::fill_n(begin, rows, 0);
    std::fill_n(end, rows, chunk.keys);
    kv_.attend({rows, shape_.head_dim, shape_.value_dim(), queries_, scales_, call_.softcap * kLog2E, chunk.tiles,
                chunk.values, begin, end, scores_, result.largest, result.sum, result.out, padded_, turned_});
  }

  const AttentionCall& call_;
  const ChosenTokens& chosen_;
  const Step& step_;
  const AttentionShape& shape_;
  const Kernels& kernels_;
  const KvKernels& kv_;
  int64_t padded_;
  float *queries_, *scores_;
  Result merged_, chunk_;
  float *transformed_, *turned_;
  std::byte* gathered_;
  float scales_[kQueryRows];
};

// A score as a whole number that is in the same order; 0 and -0 are equal.
uint32_t ordered(float score) {
  uint32_t bits;
  const float x = score + 0.0f;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(score)) return UINT32_MAX;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

}  // namespace

int sequence_of(const Step& step, int token) {
  const auto after = std::upper_bound(step.query_start.begin(), step.query_start.begin() + step.sequences + 1, token);
  return static_cast<int>(after - step.query_start.begin()) - 1;
}

bool chooses_all(const Step& step, int count) {
  return std::all_of(step.context_len.begin(), step.context_len.end(),
                     [count](int32_t length) { return length <= count; });
}

// Gathered tiles are read past their end as those of KV memory are. Where values are beside keys nothing is gathered.
size_t chosen_scratch_bytes(const AttentionShape& shape, const KvCache& cache) {
  const size_t gathered = static_cast<size_t>(kChunkTiles * cache.tile_bytes() + kKvSlack);
  return AttentionScratch::thread_bytes(shape) + (shape.value_columns ? gathered : 0);
}

void attend_chosen(const AttentionCall& call, const ChosenTokens& chosen, const Step& step, const AttentionShape& shape,
                   const Kernels& kernels, std::byte* scratch, int thread, int threads) {
  const int tokens = shape.sampled_only ? step.sampled : step.tokens;
  const int heads = tokens * shape.kv_heads;
  int rows = std::min(kQueryRows, shape.group);
  while (rows >= 2 * kFewRows && int64_t(heads) * (shape.group / rows) < 2 * int64_t(threads)) rows /= 2;
  const int pieces = (shape.group + rows - 1) / rows;
  ChosenWork work(call, chosen, step, shape, kernels, scratch);
  const RowRange mine = rows_of(heads * pieces, thread, threads);
  for (int item = mine.begin; item < mine.end; ++item) {
    const int head = item / pieces, index = head / shape.kv_heads, first = item % pieces * rows;
    const int token = shape.sampled_only ? step.sample_rows[static_cast<size_t>(index)] : index;
    work.attend(token, head % shape.kv_heads, first, std::min(rows, shape.group - first));
  }
}

size_t score_scratch_bytes(const KvShape& shape, int heads) {
  return sizeof(float) * static_cast<size_t>(int64_t(heads) * (shape.head_dim + 1) + kQueryRows * kChunkKeys);
}

namespace {

// Calls take(head, position, products, keys) with the products of each head's query and the keys of chunks first .. past
// - 1, those from `position` on; heads of a chunk ascend.
template <class Take>
void multiply_keys(const ScoreCall& call, const Step& step, const Kernels& kernels, int token, int first, int past,
                   std::byte* scratch, const Take& take) {
  const KvShape& shape = call.cache->shape();
  const KvKernels& kv = call.cache->kernels(kernels);
  auto* found = reinterpret_cast<float*>(scratch);
  float* scales = found + kQueryRows * kChunkKeys;
  auto* queries = reinterpret_cast<std::byte*>(scales + call.heads);
  const int64_t query_bytes = int64_t(shape.head_dim) * kv.query_bytes;
  const float* q = call.queries + token * call.query_stride;
  for (int head = 0; head < call.heads; ++head)
    scales[head] = kv.load_query(q + int64_t(head) * shape.head_dim, shape.head_dim, 1, queries + head * query_bytes);
  const int sequence = sequence_of(step, token), seen = step.positions[static_cast<size_t>(token)] + 1;
  int begin[kQueryRows] = {}, end[kQueryRows];
  for (int chunk = first; chunk < past; ++chunk) {
    const int at = chunk * kChunkKeys, keys = std::min(kChunkKeys, seen - at);
    const void* tiles[kChunkTiles];
    for (int key = 0; key < keys; key += kTileKeys)
      tiles[key / kTileKeys] = tile_at(*call.cache, call.layer, step, sequence, at + key);
    std::fill_n(end, kQueryRows, keys);
    for (int head = 0; head < call.heads; head += kQueryRows) {
      const int rows = std::min(kQueryRows, call.heads - head);
      kv.score({rows, shape.head_dim, shape.head_dim, queries + head * query_bytes, scales + head, 0, tiles, tiles,
                begin, end, found, nullptr, nullptr, nullptr, 0, nullptr});
      for (int r = 0; r < rows; ++r) take(head + r, at, found + r * kChunkKeys, keys);
    }
  }
}

}  // namespace

void score_tokens(const ScoreCall& call, const Step& step, const Kernels& kernels, int token, int first, int past,
                  float* scores, std::byte* scratch) {
  const float* weights = call.weights + token * call.weight_stride;
  const auto add = [&](int head, int at, const float* products, int keys) {
    if (head == 0) std::fill_n(scores + at, keys, 0.0f);
    kernels.add_positive(products, weights[head], scores + at, keys);
  };
  multiply_keys(call, step, kernels, token, first, past, scratch, add);
}

void score_blocks(const ScoreCall& call, int block, const Step& step, const Kernels& kernels, int token, int first,
                  int past, float* scores, int64_t stride, std::byte* scratch) {
  const auto take = [&](int head, int at, const float* products, int keys) {
    float* to = scores + head * stride + at / block;
    for (int key = 0; key < keys; key += block)
      *to++ = *std::max_element(products + key, products + std::min(key + block, keys));
  };
  multiply_keys(call, step, kernels, token, first, past, scratch, take);
}

void choose_highest(const float* scores, int seen, int count, float* positions) {
  const auto put = [&positions](int32_t position) { std::memcpy(positions++, &position, sizeof position); };
  if (seen <= count) {
    for (int i = 0; i < seen; ++i) put(i);
    return;
  }
  // The score of the last one that is chosen, eleven bits after the other: `wanted` are left among those that begin so.
  constexpr int kShifts[] = {21, 10, 0};
  uint32_t lowest = 0, known = 0;
  int wanted = count;
  for (const int shift : kShifts) {
    int counts[2048] = {};
    const uint32_t bins = shift == 0 ? 1023 : 2047;
    for (int i = 0; i < seen; ++i) {
      const uint32_t score = ordered(scores[i]);
      if ((score & known) == lowest) ++counts[score >> shift & bins];
    }
    uint32_t bin = bins;
    for (; counts[bin] < wanted; --bin) wanted -= counts[bin];
    lowest |= bin << shift;
    known |= bins << shift;
  }
  for (int i = 0; i < seen; ++i) {
    const uint32_t score = ordered(scores[i]);
    if (score > lowest || (score == lowest && wanted-- > 0)) put(i);
  }
}

}  // namespace homenode
