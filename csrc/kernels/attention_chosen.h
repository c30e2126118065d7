// Attention of each token over the keys at chosen positions of its context, which are the same for all query heads of
// a KV head; and what chooses them.
//
// Chosen positions ascend, and are cut into chunks as a context is: a token that attends to its whole context gets the
// same bits as from attention.h. Keys that are neighbours from the beginning of a tile on are read where they lie, all
// others are brought together first, of layers that keep keys alone.
#pragma once
#include <cstdint>

#include "kernels/attention.h"

namespace homenode {

// How positions are chosen: at most `count` blocks of `block` positions beside each other, ascending, for each KV head.
struct Choice {
  int count, block = 1;

  // Contexts up to so many positions are attended to as a whole.
  int most() const { return count * block; }
  // Positions that a token attends to. A token that has to choose chooses its own block, the last one, which ends with it.
  int of(int position) const { return position < most() ? position + 1 : most() - block + position % block + 1; }
};

// The blocks that each token attends to.
struct ChosenTokens {
  const float* blocks;  // [tokens] rows of choice.count whole numbers of 32 bits for each KV head
  int64_t stride;       // floats from row to row
  Choice choice;
};

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
  const float* weights;  // [tokens, heads]; null where blocks are scored
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
// The same for each head by itself of blocks of `block` positions, a divisor of a chunk: scores[head * stride + i] of
// block i is the highest of query . key in it.
void score_blocks(const ScoreCall&, int block, const Step&, const Kernels&, int token, int first, int past,
                  float* scores, int64_t stride, std::byte* scratch);

// The `count` highest of `seen` scores, of equals the earliest, as ascending positions; all where there are no more. A
// NaN is higher than all numbers.
void choose_highest(const float* scores, int seen, int count, float* positions);

}  // namespace homenode
