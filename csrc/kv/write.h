// Keys and values of a step's tokens into the KV memory.
#pragma once
#include "graph/operation.h"
#include "graph/step.h"
#include "kernels/norm_rope.h"
#include "kv/cache.h"

namespace homenode {

struct KvWrite {
  const float* keys;  // [tokens, kv_heads * head_dim], rows `key_stride` apart
  int64_t key_stride;
  const float* values;  // null: there are keys alone
  int64_t value_stride;
  KvCache* cache;
  int layer;
  NormRope key_transform;
};

// The tokens of a step that this of so many threads writes, so that no other has part of the same bytes.
RowRange tokens_to_write(const KvCache&, const Step&, int thread, int threads);
// The same of tokens that were cut anywhere: each begins and ends where groups of `together` slots do. Parts that
// follow each other still do.
RowRange whole_groups(const Step&, RowRange, int together);

// Tokens token_begin .. token_end - 1 of KV heads head_begin .. head_end - 1. Threads may write any parts that do not
// overlap at the same time, of tokens as `tokens_to_write` cuts them.
void write_keys_values(const KvWrite&, const Step&, const Kernels&, int token_begin, int token_end, int head_begin,
                       int head_end);

}  // namespace homenode
