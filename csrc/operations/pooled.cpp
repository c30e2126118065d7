#include "operations/pooled.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"

namespace homenode {

float PoolOperation::pooled(const Step& step, size_t sequence, const Columns& at, int64_t column, int token,
                            int position) const {
  const int begin = step.query_start[sequence], slot = step.state_slot[sequence], ratio = windows.ratio;
  const auto taps = static_cast<int>(memory->layers()[static_cast<size_t>(layer)].taps);
  const View rows(x);
  const int64_t series = windows.overlap ? 2 : 1, each = series * at.width;
  // What the token `back` positions before this one has, and the bias of its place in the window.
  const auto input = [&](int back) {
    return token - back >= 0 ? rows.row(begin + token - back) : memory->tail(layer, slot, (position - back) % taps);
  };
  float largest = 0, sum = 0, total = 0;
  // Of tokens in the order of their positions; a new largest gate makes what was added so far smaller.
  const auto add = [&](int back, int64_t half, bool first) {
    const float* row = input(back) + at.from;
    const int place = (position - back) % ratio;
    const float gate = row[each + half * at.width + column] + at.bias[place * each + half * at.width + column],
                value = row[half * at.width + column];
    if (first || gate > largest) {
      const float smaller = first ? 0 : std::exp(largest - gate);
      sum *= smaller, total *= smaller, largest = gate;
    }
    const float share = std::exp(gate - largest);
    sum += share, total += share * value;
  };
  const bool before = windows.overlap && position >= ratio;
  for (int back = 2 * ratio - 1; before && back >= ratio; --back) add(back, 0, back == 2 * ratio - 1);
  for (int back = ratio - 1; back >= 0; --back) add(back, series - 1, !before && back == ratio - 1);
  return total / sum;
}

void PoolOperation::pool_sequence(const Step& step, int sequence, const Columns& at) const {
  const auto i = static_cast<size_t>(sequence);
  const int begin = step.query_start[i], tokens = step.query_start[i + 1] - begin, slot = step.state_slot[i],
            past = step.context_len[i], first = past - tokens;
  const auto taps = static_cast<int>(memory->layers()[static_cast<size_t>(layer)].taps);
  const View rows(x), found(out);
  for (int t = 0; t < tokens; ++t) {
    float* to = found.row(begin + t) + at.to;
    const bool ends = (first + t) % windows.ratio == windows.ratio - 1;
    for (int64_t c = at.first; c < at.first + at.count; ++c) to[c] = ends ? pooled(step, i, at, c, t, first + t) : 0;
  }
  // What is kept after `done` tokens of the step: of each tap the last position that has it.
  const int64_t parts = windows.overlap ? 4 : 2;
  const auto keep = [&](int done, int to) {
    const int end = first + done;
    for (int position = std::max(end - taps, 0); position < end; ++position) {
      if (position < first && to == slot) continue;  // it is there
      const float* from =
          position < first ? memory->tail(layer, slot, position % taps) : rows.row(begin + position - first);
      float* kept = memory->tail(layer, to, position % taps);
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t column = at.from + part * at.width + at.first;
        std::memcpy(kept + column, from + column, static_cast<size_t>(at.count) * sizeof(float));
      }
    }
  };
  for (const StateCopy& copy : step.copies_of(i)) keep(copy.tokens, copy.slot);
  keep(tokens, slot);
}

void PoolOperation::lower(Lowering& to) {
  to.phase({"pool windows",
            [this](const Step& step, int thread, int threads) {
              int64_t from = 0, result = 0;
              for (size_t w = 0; w < windows.widths.size(); ++w) {
                const int64_t width = windows.widths[w];
                const RowRange mine = rows_of(static_cast<int>((width + kPanel - 1) / kPanel), thread, threads);
                const int64_t first = mine.begin * kPanel, past = std::min(width, mine.end * kPanel);
                const Columns at{first, past - first, width, from, result, View(biases[w]).row(0)};
                for (int i = 0; first < past && i < step.sequences; ++i) pool_sequence(step, i, at);
                from += (windows.overlap ? 4 : 2) * width, result += width;
              }
            }},
           {memory_of(x), memory_of(out)});
}

void PooledAttentionOperation::lower(Lowering& to) {
  const KvShape& kept = cache->shape();
  AttentionShape shape{1, static_cast<int>(q.columns / kept.head_dim), kept.head_dim, params.window};
  shape.value_columns = params.value_columns;
  const Kernels* table = &kernels(to.level());
  const int64_t context = int64_t(to.limits().max_blocks_per_sequence) * kept.block_size;
  const int64_t seen = context / windows.ratio;
  const auto most = static_cast<int>(params.chosen.value ? std::min(seen, params.chosen.columns) : seen);
  Memory* own = to.own_scratch(
      std::max(PooledScratch::own_bytes(shape, windows, most), static_cast<size_t>(windows.tile_bytes())));
  const bool alone = to.threads() == 1;
  Memory* shared = to.scratch(alone ? 0 : PooledScratch::shared_bytes(windows, most, to.limits().max_tokens));
  const auto shares = [=](const Step& step) { return !alone && step.tokens <= kFewTokens; };
  const auto own_of = [=](int thread) { return own->data + own->own_bytes * static_cast<size_t>(thread); };
  const auto rows = [this] {
    const View chosen(params.chosen);
    if (!chosen.exists()) return PooledRows{windows, nullptr, 0, 0};
    return PooledRows{windows, chosen.row(0), chosen.stride(), static_cast<int>(params.chosen.columns)};
  };
  to.phase({"kv",
            [=, this](const Step& step, int thread, int threads) {
              const RowRange mine = tokens_to_write(*cache, step, thread, threads);
              const View keys(k), of_windows(pooled);
              const KvWrite write{keys.row(0), keys.stride(), nullptr, 0, cache.get(), params.layer, {}};
              write_keys_values(write, step, *table, mine.begin, mine.end, 0, 1);
              windows.write(of_windows.row(0), of_windows.stride(), step, *table, mine.begin, mine.end, own_of(thread));
            },
            true},
           {memory_of(k), memory_of(pooled), own});
  const float* sinks = params.sinks.value ? View(params.sinks).row(0) : nullptr;
  std::vector<Memory*> touched{memory_of(q), memory_of(out), own, shared};
  if (params.chosen.value) touched.push_back(memory_of(params.chosen));
  to.phase({"attention",  // rows that are brought together
            [=](const Step& step, int thread, int threads) {
              share_rows(rows(), step, shared->data, most, thread, threads);
            },
            false, shares},
           touched);
  to.phase({"attention",
            [=, this, y = View(out)](const Step& step, int thread, int threads) {
              const View queries(q);
              const AttentionCall call{queries.row(0), queries.stride(), y.row(0), y.stride(), cache.get(),
                                       params.layer,   params.scale,     0,        {},         sinks};
              const PooledScratch scratch{own_of(thread), shares(step) ? shared->data : nullptr, most};
              attend_pooled(call, rows(), step, shape, *table, scratch, thread, threads);
            }},
           touched);
}

}  // namespace homenode
