#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "operations/attention.h"
#include "operations/chosen.h"
#include "operations/common.h"
#include "operations/pooled.h"
#include "recorder/recorder.h"

namespace homenode {

using std::to_string;

Result<Tensor> Recorder::rope_angles(std::vector<float> inverse_frequencies, float scale, int behind,
                                     std::vector<int> axes) {
  const auto half = static_cast<int64_t>(inverse_frequencies.size());
  if (half < 1) return misuse("rope_angles: no frequencies");
  if (behind < 0) return misuse("rope_angles: " + to_string(behind) + " positions behind");
  if (!axes.empty() && static_cast<int64_t>(axes.size()) != half)
    return misuse("rope_angles: " + to_string(axes.size()) + " axes of " + to_string(half) + " frequencies");
  for (const int axis : axes)
    if (axis < 0 || axis >= kRopeAxes) return misuse("rope_angles: axis " + to_string(axis));
  const Tensor out = make(2 * half, RowKind::tokens);
  auto angles =
      std::make_unique<RopeAnglesOperation>(std::move(inverse_frequencies), scale, behind, std::move(axes), out);
  return append(std::move(angles), out, {});
}

Result<Tensor> Recorder::rope(const Tensor& x, const Tensor& angles, int head_dim, bool adjacent) {
  if (auto error = check_input(x, "rope")) return *error;
  if (auto error = check_input(angles, "rope")) return *error;
  if (head_dim < 2 || head_dim > kMostHead || x.columns % head_dim || angles.columns > head_dim || angles.columns % 2 ||
      angles.rows != RowKind::tokens) {
    return misuse("rope: heads of " + to_string(head_dim) + " in rows of " + to_string(x.columns) + " with angles of " +
                  to_string(angles.columns) +
                  "; wanted whole heads and the angles of rope_angles, no longer than a head");
  }
  if (x.rows == RowKind::sampled) return misuse("rope: rows after select have no angles");
  const Tensor out = make(x.columns, RowKind::tokens);
  return append(std::make_unique<RopeOperation>(x, angles, head_dim, adjacent, out), out, {{x, angles}});
}

std::optional<Error> Recorder::check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const KvCache& cache,
                                               const AttentionParams& params) {
  const bool stores = k.value || v.value, beside = cache.shape().sides == 2;
  const int layer = params.layer, window = params.window, columns = params.value_columns;
  const KvShape& shape = cache.shape();
  if (beside == (columns > 0) || columns < 0 || columns > shape.head_dim || (!beside && v.value)) {
    return misuse("attention: values of " + to_string(columns) + " columns of keys of " + to_string(shape.head_dim) +
                  " with KV memory of " + to_string(shape.sides) + " sides");
  }
  for (const Tensor* t : {&q, &k, &v}) {
    if (t != &q && (!stores || (t == &v && !beside))) continue;
    if (auto error = check_input(*t, "attention")) return error;
    if (t->rows == RowKind::sampled) return misuse("attention: rows after select");
  }
  const int64_t width = int64_t(shape.kv_heads) * shape.head_dim;
  const int64_t keys = stores ? k.columns : width, values = stores && beside ? v.columns : width;
  if (keys != width || values != width || q.columns < width || q.columns % width) {
    return misuse("attention: q, k, v of " + to_string(q.columns) + ", " + to_string(keys) + ", " + to_string(values) +
                  " columns with KV memory of " + to_string(shape.kv_heads) + " heads of " + to_string(shape.head_dim));
  }
  if (window < 0) return misuse("attention: a window of " + to_string(window));
  return check_cache(cache, layer);
}

std::optional<Error> Recorder::check_cache(const KvCache& cache, int layer) {
  const KvShape& shape = cache.shape();
  if (layer < 0 || layer >= shape.layers)
    return misuse("attention: layer " + to_string(layer) + " of " + to_string(shape.layers));
  StepBounds& bounds = program_->bounds_;
  if (bounds.blocks && (bounds.block_size != shape.block_size))
    return misuse("attention: KV memories with different block sizes in one program");
  bounds.blocks = bounds.blocks ? std::min(bounds.blocks, cache.blocks()) : cache.blocks();
  bounds.block_size = shape.block_size;
  // In order of address, so that all programs wait for their caches in the same order.
  auto& caches = program_->caches_;
  const auto at = std::lower_bound(caches.begin(), caches.end(), &cache, std::less<>());
  if (at == caches.end() || *at != &cache) caches.insert(at, &cache);
  return {};
}

namespace {

// A bias by distance needs a number of every head in each of its buckets.
std::optional<Error> check_bias(const AttentionParams& params, int64_t heads) {
  const RelativeBias& bias = params.bias;
  const Tensor& values = bias.values;
  if (!values.value) return {};
  const auto is_missing = [&](int bucket) { return bucket < 0 || (bucket + 1) * int64_t(bias.heads) > values.columns; };
  if (values.rows != RowKind::fixed || values.fixed_rows != 1 || bias.first < 0 || bias.first + heads > bias.heads ||
      bias.buckets.size() % 2 != 1 || std::any_of(bias.buckets.begin(), bias.buckets.end(), is_missing)) {
    return misuse(
        "attention: a bias of " + to_string(values.columns) + " numbers for " + to_string(bias.heads) + " heads and " +
        to_string(bias.buckets.size()) +
        " distances; wanted a parameter with a number of each head for every bucket, and as many distances to "
        "either side");
  }
  if (params.softcap > 0 || params.chosen.value) return misuse("attention: a bias beside a cap or chosen tokens");
  return {};
}

}  // namespace

Result<Tensor> Recorder::attention(const Tensor& q, const Tensor& k, const Tensor& v, std::shared_ptr<KvCache> cache,
                                   const AttentionParams& params) {
  const float cap = params.softcap;
  if (!(cap >= 0) || std::isinf(cap))
    return misuse("attention: scores capped at " + to_string(cap) + "; wanted 0 for no cap, or more");
  if (auto error = check_attention(q, k, v, *cache, params)) return *error;
  const int64_t heads = q.columns / cache->shape().head_dim;
  const std::pair<const char*, const Tensor&> of_heads[] = {{"sinks", params.sinks}, {"slopes", params.slopes}};
  for (const auto& [what, each] : of_heads) {
    if (each.value && (each.rows != RowKind::fixed || each.fixed_rows != 1 || each.columns != heads)) {
      return misuse(std::string("attention: ") + what + " of " + to_string(each.columns) + " for " + to_string(heads) +
                    " query heads; wanted a parameter of that length");
    }
  }
  if (params.slopes.value && (cap > 0 || params.chosen.value))
    return misuse("attention: slopes, which go with neither a cap nor chosen tokens");
  if (auto error = check_bias(params, heads)) return *error;
  if (params.spans && (!params.causal || params.chosen.value || params.window_kind == WindowKind::chunked))
    return misuse("attention: spans beside another mask, chosen tokens or a chunked window");
  if (!params.causal && (params.chosen.value || params.window_kind == WindowKind::chunked))
    return misuse("attention: to what comes later, which goes with neither chosen tokens nor chunks");
  if (params.chosen.value) {
    if (auto error = check_input(params.chosen, "attention")) return *error;
    const int block = params.chosen_block, kv_heads = cache->shape().kv_heads;
    const bool whole_tiles = block >= kTileKeys && block % kTileKeys == 0;
    if (block < 1 || params.chosen.columns % kv_heads || (!params.value_columns && !whole_tiles) || params.window ||
        params.sinks.value || (params.value_columns && kv_heads != 1)) {
      return misuse(
          "attention: chosen tokens, which are without window and sinks, for one head of keys alone or in "
          "blocks of a multiple of " +
          to_string(kTileKeys) + " for each KV head");
    }
  }
  const Tensor out = make(params.value_columns ? heads * params.value_columns : q.columns, RowKind::tokens);
  auto operation = std::make_unique<AttentionOperation>(q, k, v, std::move(cache), params, out);
  std::vector<Tensor> inputs{q};
  for (const Tensor* t : {&k, &v, &params.chosen}) {
    if (t->value) inputs.push_back(*t);
  }
  return append(std::move(operation), out, inputs);
}

Result<Tensor> Recorder::choose_tokens(const Tensor& q, const Tensor& weights, const Tensor& k,
                                       std::shared_ptr<KvCache> cache, int layer, int count, int ratio) {
  for (const Tensor* t : {&q, &weights, &k}) {
    if (auto error = check_input(*t, "choose_tokens")) return *error;
    if (t->rows == RowKind::sampled) return misuse("choose_tokens: rows after select");
  }
  const KvShape& shape = cache->shape();
  const WindowRows windows{cache.get(), layer, ratio, k.columns};
  if (count < 1 || ratio < 1)
    return misuse("choose_tokens: " + to_string(count) + " tokens, of every " + to_string(ratio));
  if (shape.sides != 1 || shape.kv_heads != 1 || (ratio > 1 ? !windows.fit() : k.columns != shape.head_dim) ||
      q.columns != weights.columns * k.columns) {
    return misuse("choose_tokens: q, weights, k of " + to_string(q.columns) + ", " + to_string(weights.columns) + ", " +
                  to_string(k.columns) + " columns with KV memory of " + to_string(shape.kv_heads) + " heads of " +
                  to_string(shape.head_dim));
  }
  if (auto error = check_cache(*cache, layer)) return *error;
  const Tensor out = make(count, RowKind::tokens);
  auto operation =
      std::make_unique<ChooseOperation>(q, weights, k, std::move(cache), layer, Choice{count, 1, ratio}, 0, out);
  operation->windows = windows;
  return append(std::move(operation), out, {{q, weights, k}});
}

Result<Tensor> Recorder::choose_blocks(const Tensor& q, const Tensor& k, std::shared_ptr<KvCache> cache, int layer,
                                       const Choice& choice, int local) {
  for (const Tensor* t : {&q, &k}) {
    if (auto error = check_input(*t, "choose_blocks")) return *error;
    if (t->rows == RowKind::sampled) return misuse("choose_blocks: rows after select");
  }
  const KvShape& shape = cache->shape();
  if (shape.sides != 1 || shape.kv_heads != 1 || k.columns != shape.head_dim || q.columns % k.columns) {
    return misuse("choose_blocks: q, k of " + to_string(q.columns) + ", " + to_string(k.columns) +
                  " columns with KV memory of " + to_string(shape.kv_heads) + " heads of " + to_string(shape.head_dim));
  }
  if (choice.block < 1 || kChunkKeys % choice.block || local < 1 || local > choice.count ||
      choice.count > INT32_MAX / choice.block) {
    return misuse("choose_blocks: " + to_string(choice.count) + " blocks of " + to_string(choice.block) + ", " +
                  to_string(local) + " of them local; wanted at least one local, and blocks that divide " +
                  to_string(kChunkKeys));
  }
  if (auto error = check_cache(*cache, layer)) return *error;
  const Tensor out = make(choice.count * (q.columns / k.columns), RowKind::tokens);
  return append(std::make_unique<ChooseOperation>(q, Tensor{}, k, std::move(cache), layer, choice, local, out), out,
                {{q, k}});
}

}  // namespace homenode
