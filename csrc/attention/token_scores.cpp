#include "attention/token_scores.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace homenode {
namespace {

// A score as a whole number that is in the same order; 0 and -0 are equal.
uint32_t ordered(float score) {
  uint32_t bits;
  const float x = score + 0.0f;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(score)) return UINT32_MAX;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Room for a chunk of keys of windows that are brought together.
size_t window_bytes(const WindowRows* windows) {
  return windows ? static_cast<size_t>(kChunkTiles * windows->tile_bytes()) : 0;
}

// Calls take(head, key, products, keys) with the products of each head's query and the keys of each chunk, from number
// `key` on; heads of a chunk ascend.
template <class Take>
void multiply_keys(const ScoreCall& call, const Step& step, const Kernels& kernels, const TokenChunks& chunks,
                   std::byte* scratch, const Take& take) {
  const int64_t width = call.windows ? call.windows->width : call.cache->shape().head_dim;
  const KvKernels& kv = call.cache->kernels(kernels);
  const size_t tile_bytes = window_bytes(call.windows) / kChunkTiles;
  auto* found = reinterpret_cast<float*>(scratch + tile_bytes * kChunkTiles);
  float* scales = found + kQueryRows * kChunkKeys;
  auto* queries = reinterpret_cast<std::byte*>(scales + call.heads);
  const int64_t query_bytes = width * kv.query_bytes;
  const int token = chunks.token;
  const float* q = call.queries + token * call.query_stride;
  for (int head = 0; head < call.heads; ++head)
    scales[head] = kv.load_query(q + int64_t(head) * width, width, 1, queries + head * query_bytes);
  const int sequence = sequence_of(step, token), seen = call.seen(step.positions[static_cast<size_t>(token)]);
  int begin[kQueryRows] = {}, end[kQueryRows];
  for (int chunk = chunks.first; chunk < chunks.past; ++chunk) {
    const int at = chunk * kChunkKeys, keys = std::min(kChunkKeys, seen - at);
    const void* tiles[kChunkTiles];
    if (call.windows) call.windows->bring(step, sequence, nullptr, at, at + keys, scratch, 0);
    for (int key = 0; key < keys; key += kTileKeys) {
      const auto tile = static_cast<size_t>(key / kTileKeys);
      tiles[tile] =
          call.windows ? scratch + tile * tile_bytes : tile_at(*call.cache, call.layer, step, sequence, at + key);
    }
    std::fill_n(end, kQueryRows, keys);
    for (int head = 0; head < call.heads; head += kQueryRows) {
      const int rows = std::min(kQueryRows, call.heads - head);
      kv.score({rows, static_cast<int>(width), static_cast<int>(width), queries + head * query_bytes, scales + head, 0,
                tiles, tiles, begin, end, at, found, nullptr, nullptr, nullptr, 0, nullptr});
      for (int r = 0; r < rows; ++r) take(head + r, at, found + r * kChunkKeys, keys);
    }
  }
}

}  // namespace

size_t score_scratch_bytes(const KvShape& shape, int heads, const WindowRows* windows) {
  const int64_t width = windows ? windows->width : shape.head_dim;
  return window_bytes(windows) +
         sizeof(float) * static_cast<size_t>(int64_t(heads) * (width + 1) + kQueryRows * kChunkKeys);
}

void score_tokens(const ScoreCall& call, const Step& step, const Kernels& kernels, const TokenChunks& chunks,
                  float* scores, std::byte* scratch) {
  const float* weights = call.weights + chunks.token * call.weight_stride;
  const auto add = [&](int head, int at, const float* products, int keys) {
    if (head == 0) std::fill_n(scores + at, keys, 0.0f);
    kernels.add_positive(products, weights[head], scores + at, keys);
  };
  multiply_keys(call, step, kernels, chunks, scratch, add);
}

void score_blocks(const ScoreCall& call, int block, const Step& step, const Kernels& kernels, const TokenChunks& chunks,
                  float* scores, int64_t stride, std::byte* scratch) {
  const auto take = [&](int head, int at, const float* products, int keys) {
    float* to = scores + head * stride + at / block;
    for (int key = 0; key < keys; key += block)
      *to++ = *std::max_element(products + key, products + std::min(key + block, keys));
  };
  multiply_keys(call, step, kernels, chunks, scratch, take);
}

void choose_highest(const float* scores, int seen, int count, float* positions, int ratio) {
  const auto put = [&positions, ratio](int32_t i) {
    const int32_t position = (i + 1) * ratio - 1;
    std::memcpy(positions++, &position, sizeof position);
  };
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
