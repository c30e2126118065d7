#include "kv/write.h"

namespace homenode {
namespace {

// Whether token i + 1 follows token i in the same pair of slots: then both are one store.
bool completes_pair(const Step& step, size_t i, size_t end) {
  return i + 1 < end && step.token_slot[i] % 2 == 0 && step.token_block[i + 1] == step.token_block[i] &&
         step.token_slot[i + 1] == step.token_slot[i] + 1;
}

// The first token from `i` on that begins a group of slots, or follows none of its own.
int group_begin(const Step& step, int i, int together) {
  const auto goes_on = [&](size_t at) {
    return step.token_slot[at] % together && step.token_block[at] == step.token_block[at - 1] &&
           step.token_slot[at] == step.token_slot[at - 1] + 1;
  };
  while (i > 0 && i < step.tokens && goes_on(static_cast<size_t>(i))) ++i;
  return i;
}

}  // namespace

RowRange whole_groups(const Step& step, RowRange tokens, int together) {
  return {group_begin(step, tokens.begin, together), group_begin(step, tokens.end, together)};
}

RowRange tokens_to_write(const KvCache& cache, const Step& step, int thread, int threads) {
  const RowRange mine = rows_of(step.tokens, thread, threads);
  const int together = tokens_together(coding_of(cache.shape().type));
  return together == 1 ? mine : whole_groups(step, mine, together);
}

void write_keys_values(const KvWrite& call, const Step& step, const Kernels& kernels, int token_begin, int token_end,
                       int head_begin, int head_end) {
  const KvKernels& kv = call.cache->kernels(kernels);
  const int64_t head_dim = call.cache->shape().head_dim;
  float transformed[kMostHead];
  const auto end = static_cast<size_t>(token_end);
  for (int head = head_begin; head < head_end; ++head) {
    for (auto i = static_cast<size_t>(token_begin); i < end; ++i) {
      const auto row = static_cast<int64_t>(i);
      const float* key = call.keys + row * call.key_stride + head * head_dim;
      kv.put_key(call.key_transform.apply(kernels, key, row, head_dim, transformed), head_dim,
                 step.token_slot[i] % kTileKeys,
                 call.cache->key_tile(call.layer, step.token_block[i], head, step.token_slot[i]));
    }
    if (!call.values) continue;
    for (auto i = static_cast<size_t>(token_begin); i < end;) {
      const float* value = call.values + static_cast<int64_t>(i) * call.value_stride + head * head_dim;
      const bool pair = completes_pair(step, i, end);
      kv.put_values(value, pair ? value + call.value_stride : nullptr, head_dim, step.token_slot[i] % kTileKeys,
                    call.cache->value_tile(call.layer, step.token_block[i], head, step.token_slot[i]));
      i += pair ? 2 : 1;
    }
  }
}

}  // namespace homenode
