// What chooses the tokens that attention is over: scores of keys, and the highest of them.
#pragma once
#include <cstdint>

#include "attention/chosen.h"
#include "kv/keys.h"

namespace homenode {

// How tokens are chosen: by the sum over heads of weight * max(query . key, 0).
struct ScoreCall {
  const float* queries;  // [tokens, heads * width of a key]
  int64_t query_stride;
  const float* weights;  // [tokens, heads]; null where blocks are scored
  int64_t weight_stride;
  int heads;
  const KvCache* cache;
  int layer;
  const WindowRows* windows = nullptr;  // keys of windows of tokens; null: of each token

  // How many keys a token at this position sees.
  int seen(int position) const { return windows ? windows->seen(position) : position + 1; }
};

// A token, whose position ends its context so far, and chunks first .. past - 1 of the keys it sees.
struct TokenChunks {
  int token, first, past;
};

// windows: null, or those that are scored.
size_t score_scratch_bytes(const KvShape&, int heads, const WindowRows* windows = nullptr);
// scores[i] of key i. What it is does not depend on how chunks are divided among calls.
void score_tokens(const ScoreCall&, const Step&, const Kernels&, const TokenChunks&, float* scores, std::byte* scratch);
// The same for each head by itself of blocks of `block` positions, a divisor of a chunk: scores[head * stride + i] of
// block i is the highest of query . key in it.
void score_blocks(const ScoreCall&, int block, const Step&, const Kernels&, const TokenChunks&, float* scores,
                  int64_t stride, std::byte* scratch);

// The `count` highest of `seen` scores, of equals the earliest, as ascending positions; all where there are no more. A
// NaN is higher than all numbers. Score i is that of position (i + 1) * ratio - 1.
void choose_highest(const float* scores, int seen, int count, float* positions, int ratio = 1);

}  // namespace homenode
