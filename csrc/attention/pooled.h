// Attention of each token to the keys of a window of tokens and to rows of windows that were pooled, in one softmax:
// see homenode.compute.ops.PooledKeys. Values are columns of the keys of one head.
//
// Rows are brought together into tiles once: in steps of few tokens by all threads, each those at its home, for all of
// them; in others by each thread, for all heads and tokens it has one after the other.
#pragma once
#include "attention/pieces.h"
#include "kv/keys.h"

namespace homenode {

// The rows that each token attends to.
struct PooledRows {
  WindowRows rows;
  const float* chosen;  // [tokens] rows of `count` last positions of windows; null: all up to the token's
  int64_t stride;
  int count;

  // How many rows a token at this position attends to.
  int of(int position) const { return chosen ? std::min(count, rows.seen(position)) : rows.seen(position); }
  // Which: null where these are all it sees. What is chosen is not written where all tokens of a step see no more.
  const float* numbers(int token, int position) const {
    return chosen && rows.seen(position) > count ? chosen + token * stride : nullptr;
  }
};

struct PooledScratch {
  std::byte* own;  // of the thread
  std::byte* shared;  // rows that are brought together, of few tokens; null: each thread does that for itself
  int windows;        // of a context, at most: it is as large as these need

  static size_t own_bytes(const AttentionShape&, const WindowRows&, int windows);
  static size_t shared_bytes(const WindowRows&, int windows, int tokens);
};

// Rows of few tokens into what is shared: the share of one thread.
void share_rows(const PooledRows&, const Step&, std::byte* shared, int windows, int thread, int threads);
// The share of one thread of all tokens and heads.
void attend_pooled(const AttentionCall&, const PooledRows&, const Step&, const AttentionShape&, const Kernels&,
                   const PooledScratch&, int thread, int threads);

}  // namespace homenode
