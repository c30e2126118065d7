#include <string>

#include "graph/row_fields.h"
#include "operations/pooled.h"
#include "recorder/recorder.h"

namespace homenode {

using std::to_string;

namespace {

bool is_vector_of(const Tensor& x, int64_t length) { return is_vector(x) && x.columns == length; }

}  // namespace

Result<Tensor> Recorder::pool_windows(const Tensor& x, const std::vector<Tensor>& biases,
                                      std::shared_ptr<StateMemory> memory, int layer, int ratio,
                                      std::vector<int64_t> widths, bool overlap) {
  const char* const name = "pool_windows";
  if (auto error = check_input(x, name)) return *error;
  if (auto error = check_state(memory.get(), layer, name)) return *error;
  const StateShape& shape = memory->layers()[static_cast<size_t>(layer)];
  const int64_t series = overlap ? 2 : 1;
  int64_t columns = 0;
  bool fits = ratio >= 2 && biases.size() == widths.size() && !widths.empty();
  for (size_t w = 0; fits && w < widths.size(); ++w) {
    fits = widths[w] >= 1 && widths[w] <= x.columns && is_vector_of(biases[w], ratio * series * widths[w]);
    columns += widths[w];
  }
  if (!fits || x.rows != RowKind::tokens || x.columns != 2 * series * columns || shape.channels != x.columns ||
      shape.taps != ratio * series) {
    return misuse("pool_windows: windows of " + to_string(ratio) + " tokens, " + to_string(widths.size()) +
                  " widths and " + to_string(biases.size()) + " biases for rows of " + to_string(x.columns) +
                  " with a state of " + to_string(shape.channels) + " channels and " + to_string(shape.taps) + " taps");
  }
  const Tensor out = make(columns, RowKind::tokens);
  return append(std::make_unique<PoolOperation>(x, biases, PoolOperation::Windows{ratio, std::move(widths), overlap},
                                                std::move(memory), layer, out),
                out, {{x}});
}

Result<Tensor> Recorder::attention_pooled(const Tensor& q, const Tensor& k, std::shared_ptr<KvCache> cache,
                                          const AttentionParams& params, const Tensor& rows,
                                          std::shared_ptr<KvCache> window_cache, int layer, int ratio) {
  if (auto error = check_attention(q, k, {}, *cache, params)) return *error;
  if (auto error = check_input(rows, "attention")) return *error;
  if (auto error = check_cache(*window_cache, layer)) return *error;
  const KvShape &shape = cache->shape(), &kept = window_cache->shape();
  const int64_t heads = q.columns / shape.head_dim;
  const bool plain = !params.softcap && !params.slopes.value && !params.bias.values.value && params.causal &&
                     params.chosen_block == 1 && params.window_kind == WindowKind::sliding;
  const WindowRows windows{window_cache.get(), layer, ratio, rows.columns};
  if (!plain || !k.value || shape.kv_heads != 1 || !params.value_columns || rows.columns != shape.head_dim ||
      rows.rows != RowKind::tokens || !windows.fit() || kept.type != shape.type ||
      (cache == window_cache && layer == params.layer) || (params.sinks.value && !is_vector_of(params.sinks, heads))) {
    return misuse("attention: rows of " + to_string(rows.columns) + " of every " + to_string(ratio) +
                  " tokens with heads of " + to_string(shape.head_dim) + ", kept as " + to_string(kept.head_dim) +
                  " of a token; wanted keys alone of one head, and neither a cap nor slopes");
  }
  std::vector<Tensor> inputs{q, k, rows};
  if (params.chosen.value) {
    if (auto error = check_input(params.chosen, "attention")) return *error;
    inputs.push_back(params.chosen);
  }
  const Tensor out = make(heads * params.value_columns, RowKind::tokens);
  return append(std::make_unique<PooledAttentionOperation>(q, k, rows, std::move(cache), params,
                                                           std::move(window_cache), windows, out),
                out, inputs);
}

}  // namespace homenode
