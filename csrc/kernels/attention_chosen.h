// Attention of each token over the keys at chosen positions of its context, which are the same for all query heads of
// its one KV head; and what chooses them.
//
// Chosen positions ascend, and are cut into chunks as a context is: a token that attends to its whole context gets the
// same bits as from attention.h. Keys that are neighbours from the beginning of a tile on are read where they lie, all
// others are brought together first.
#pragma once
#include <cstdint>

#include "kernels/attention.h"

namespace homenode {

// Positions that each token attends to: as many as it has of them, at most `count`.
struct ChosenTokens {
  const float* positions;  // [tokens] rows of at least `count` whole numbers of 32 bits
  int64_t stride;          // floats from row to row
  int count;
};

inline int chosen_of(int position, int count) { return position < count ? position + 1 : count; }

// The sequence of a step that a token is of.
int sequence_of(const Step&, int token);

// Whether every token of a step attends to all there is.
bool chooses_all(const Step&, int count);

size_t chosen_scratch_bytes(const AttentionShape&, const KvCache&);
// The share of one thread of all tokens and heads, with a scratch of its own. Of `sampled_only` the other tokens are
// left out.
void attend_chosen(const AttentionCall&, const ChosenTokens&, const Step&, const AttentionShape&, const Kernels&,
                   std::byte* scratch, int thread, int threads);

// How tokens are chosen: by the sum over heads of weight * max(query . key, 0).
struct ScoreCall {
  const float* queries;  // [tokens, heads * width of a key]
  int64_t query_stride;
  const float* weights;  // [tokens, heads]
  int64_t weight_stride;
  int heads;
  const KvCache* cache;
  int layer;
};

size_t score_scratch_bytes(const KvShape&, int heads);
// Scores of a token, whose position ends its context so far, against the keys of chunks first .. past - 1: scores[i] of
// position i. What it is does not depend on how chunks are divided among calls.
void score_tokens(const ScoreCall&, const Step&, const Kernels&, int token, int first, int past, float* scores,
                  std::byte* scratch);

// The `count` highest of `seen` scores, of equals the earliest, as ascending positions; all where there are no more. A
// NaN is higher than all numbers.
void choose_highest(const float* scores, int seen, int count, float* positions);

}  // namespace homenode
