// Keys and values of a step's tokens into the KV memory.
#pragma once
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

// Tokens token_begin .. token_end - 1 of KV heads head_begin .. head_end - 1. Threads may write any parts that do not
// overlap at the same time.
void write_keys_values(const KvWrite&, const Step&, const Kernels&, int token_begin, int token_end, int head_begin,
                       int head_end);

}  // namespace homenode
