// Attention of each token over the keys at chosen positions of its context, which are the same for all query heads of
// a KV head.
//
// Chosen positions ascend, and are cut into chunks as a context is: a token that attends to its whole context gets the
// same bits as from attention/attention.h. Keys that are neighbours from the beginning of a tile on are read where they
// lie, all others are brought together first, of layers that keep keys alone. In steps of few tokens every such key is
// read once, by a thread at its home: what the other homes then read of 256 keys is no more than a partial result of
// many heads is.
#pragma once
#include <algorithm>
#include <cstdint>

#include "attention/pieces.h"
#include "kv/keys.h"

namespace homenode {

// How positions are chosen: at most `count` blocks of `block` positions beside each other, ascending, for each KV head;
// or with a `ratio` above 1, whose blocks are of one position, of every ratio-th from position ratio - 1 on.
struct Choice {
  int count, block = 1, ratio = 1;

  // Contexts up to so many positions are attended to as a whole.
  int most() const {
    const int64_t whole = int64_t(count) * block;
    return static_cast<int>(std::min<int64_t>((whole + 1) * ratio - 1, INT32_MAX));
  }
  // How many blocks up to this position can be chosen.
  int seen(int position) const { return ratio == 1 ? position / block + 1 : (position + 1) / ratio; }
  // Positions that a token attends to. A token that has to choose chooses its own block, the last one, which ends with
  // it.
  int of(int position) const { return position < most() ? position + 1 : most() - block + position % block + 1; }
};

// The blocks that each token attends to.
struct ChosenTokens {
  const float* blocks;  // [tokens] rows of choice.count whole numbers of 32 bits for each KV head
  int64_t stride;  // floats from row to row
  Choice choice;
};

// Whether every token of a step attends to all there is.
bool chooses_all(const Step&, int count);

// Work space of attention over chosen tokens: a part for each thread, and what threads share.
struct ChosenScratch {
  std::byte* own;  // of the thread
  std::byte* gathered;  // keys that are brought together, of few tokens; null: each thread does that for itself
  float* partials;  // results of the chunks of few tokens; null: each thread has all chunks of its heads

  static size_t own_bytes(const AttentionShape&, const KvCache&);
  static size_t gathered_bytes(const KvCache&, const Choice&,
                               const StepLimits&);  // 0: the keys are read where they lie
  static size_t partial_bytes(const AttentionShape&, const KvCache&, const Choice&, const StepLimits&, int threads);
};

// Keys of few tokens into what is gathered: the share of one thread, of those at its home where blocks have homes.
void gather_chosen(const AttentionCall&, const ChosenTokens&, const Step&, const AttentionShape&, std::byte* gathered,
                   int thread, int threads);
// The share of one thread of all tokens and heads. Of `sampled_only` the other tokens are left out.
void attend_chosen(const AttentionCall&, const ChosenTokens&, const Step&, const AttentionShape&, const Kernels&,
                   const ChosenScratch&, int thread, int threads);
// Whether attend_chosen leaves partial results, if it has room for them, which merge_chosen then makes the results.
bool divides_chunks(const Step&, const AttentionShape&, int threads);
void merge_chosen(const AttentionCall&, const ChosenTokens&, const Step&, const AttentionShape&, const Kernels&,
                  float* partials, int thread, int threads);

}  // namespace homenode
