#include "linear/group.h"

#include <algorithm>
#include <cstring>

#include "quant/block.h"

namespace homenode {
namespace {

// None of these sizes changes a result: the sums of a tile go on where they stopped.

constexpr int kPartSteps = 8;      // lines of a part

// Columns multiplied with all the tokens at hand before the next: about equal slices of whole steps and whole parts.
int64_t slice_columns(PackedStep step, int64_t columns, int64_t slice_bytes) {
  const int64_t unit = std::max<int64_t>(step.columns, kPartColumns), units = ceiling_of(columns, unit);
  const int64_t slices = ceiling_of(ceiling_of(columns, step.columns) * step.bytes, slice_bytes);
  return ceiling_of(units, slices) * unit;
}

// Calls tile(token, count) for about equal tiles of at most `most` of n tokens.
template <class F>
void each_tile(int64_t n, int64_t most, F&& tile) {
  const int64_t tiles = ceiling_of(n, most), least = n / tiles, larger = n % tiles;
  for (int64_t i = 0, token = 0; i < tiles; ++i) {
    const int64_t now = least + (i < larger);
    tile(token, now);
    token += now;
  }
}

// Prefetches `bytes` of weights evenly over the steps of several tiles, and nothing once that is done.
class PrefetchPlan {
 public:
  PrefetchPlan(const uint8_t* from, int64_t bytes, int64_t steps, bool into_l2 = false)
      : from_(from), lines_(ceiling_of(bytes, kCacheLine)), steps_(steps), into_l2_(into_l2) {}
  // What a tile of `steps` is to prefetch with each.
  Prefetch next(int64_t steps) {
    const Prefetch prefetch{from_, int(ceiling_of(lines_, steps_)), into_l2_};
    const int64_t fetched = std::min(lines_, prefetch.lines * steps);
    from_ += fetched * kCacheLine, lines_ -= fetched, steps_ -= steps;
    return prefetch;
  }

 private:
  const uint8_t* from_;
  int64_t lines_, steps_;  // left
  bool into_l2_;
};

// Which steps of the parts of a tile prefetch, so that `tiles` tiles fetch all the lines of a part's `bytes`, each its
// share of whole lines.
struct PartShare {
  int64_t steps = kPartSteps, bytes;
  PartShare(int64_t part_bytes, int64_t tiles) : bytes(part_bytes) {
    const int64_t lines = ceiling_of(part_bytes, kCacheLine);
    if (tiles == 1) return;
    for (steps = ceiling_of(kPartSteps, tiles);
         steps < kPartSteps && lines * steps / kPartSteps * tiles * kCacheLine < part_bytes;)
      ++steps;
    bytes = lines * steps / kPartSteps * kCacheLine;
  }
};

// Asks for a line to be this thread's alone.
inline void expect_written(const uint8_t* line) {
#if defined(__x86_64__)
  // Compiled for any x86-64 processor, the builtin asks for a copy to read
  asm volatile("prefetchw %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Asks early for the lines where `n` tokens' outputs will be: they lie a row apart, and the stores would wait for them.
void expect_written(const Destination& to, int64_t first, int64_t n) {
  const uint8_t* at = static_cast<const uint8_t*>(to.at) + size_t(first) * to.stride;
  for (int64_t i = 0; to.bytes > 0 && i < n; ++i, at += to.stride) {
    expect_written(at);
    if (to.bytes > kCacheLine) expect_written(at + to.bytes - 1);
  }
}

void add(float* sums, const float* more, int64_t tokens) {
  for (int64_t i = 0; i < tokens * kGroupRows; ++i) sums[i] += more[i];
}

// Of one of the groups that `to` is of.
Destination of_group(const Destination& to, int64_t group) {
  const size_t before = size_t(group) * to.group_bytes;
  if (to.bytes <= before) return {};
  return {static_cast<const uint8_t*>(to.at) + before, to.stride, std::min(to.group_bytes, to.bytes - before), 0};
}

void set_zero(float* sums, int64_t tokens) { std::memset(sums, 0, size_t(tokens) * kGroupRows * sizeof(float)); }

}  // namespace

int64_t block_tokens(const LinearTable& table, int64_t tokens, int64_t row_bytes) {
  // Measured with panels, whose unpacking few tokens would have to pay for: 256 tokens from the third-level cache are
  // faster than 85 from the second.
  const int64_t fit = table.block_bytes / row_bytes, most = fit < kTokensAtOnce / 2 ? kTokensAtOnce : fit;
  return ceiling_of(tokens, ceiling_of(tokens, most));
}

GroupProduct::GroupProduct(const Weight& w, const ActivationRows& rows, const LinearTable& table)
    : step_(packed_step(w.format)),
      rows_(rows),
      group_bytes_(packed_group_bytes(w.format, w.columns)),
      prefetch_bytes_{table.prefetch_bytes, table.prefetch_bytes_of_four},
      prefetch_into_l2_(table.prefetch_into_l2),
      slice_bytes_(is_coded(w) ? table.slice_bytes : table.float_slice_bytes),
      block_bytes_(table.block_bytes) {
  if (const Coding* coding = coding_of(w.format)) {
    const auto& panels = table.panels[coding - kCodings];
    coded_ = &table.coded[coding - kCodings];
    panels_ = panels.unpack ? &panels : nullptr;
  } else {
    floats_ = &table.floats[w.format == Format::f32 ? 0 : w.format == Format::f16 ? 1 : 2];
  }
}

GroupProduct::Slice GroupProduct::slice(const uint8_t* packed, int64_t first, int64_t column, int64_t columns) const {
  columns = std::min(columns, rows_.columns - column);
  return {packed + column / step_.columns * step_.bytes,
          rows_.data + size_t(first) * rows_.stride + column / kPartColumns * rows_.part_bytes, columns,
          ceiling_of(columns, step_.columns) * step_.bytes};
}

int64_t GroupProduct::groups_at_once(int64_t n) const {
  if (!floats_ || floats_->depth_bytes == 0 || rows_.rest) return 1;
  const bool exceeds_cache = n * int64_t(rows_.stride) > block_bytes_;
  return exceeds_cache && n > floats_->max_tokens ? kGroupsAtOnce : 1;
}

void GroupProduct::multiply(const uint8_t* packed, int64_t groups, int64_t first, int64_t n, float* sums,
                            const Destination& to) const {
  if (groups > 1 && groups_at_once(n) > 1) return multiply_floats(packed, groups, first, n, sums, to);
  for (int64_t group = 0; group < groups; ++group)
    multiply_one(packed + group * group_bytes_, first, n, sums + group * n * kGroupRows, of_group(to, group));
}

void GroupProduct::multiply_one(const uint8_t* packed, int64_t first, int64_t n, float* sums,
                                const Destination& to) const {
  if (panels_ && n >= panels_->least_tokens) return multiply_panels(packed, first, n, sums, to);
  if (floats_) return multiply_floats(packed, 1, first, n, sums, to);
  expect_written(to, 0, n);
  set_zero(sums, n);
  multiply_coded(packed, first, n, sums);
}

// Several groups take turns with `depth` columns of the activations, each slice by slice. What the rounding of rows
// left has sums of its own, added at the end. So slices of any size give the same bits.
void GroupProduct::multiply_floats(const uint8_t* packed, int64_t groups, int64_t first, int64_t n, float* sums,
                                   const Destination& to) const {
  const int64_t tiles = ceiling_of(n, floats_->max_tokens),
                at_once = tiles == 1 && !rows_.rest ? rows_.columns : slice_columns(step_, rows_.columns, slice_bytes_),
                column_bytes = n * rows_.part_bytes / kPartColumns,
                depth = groups == 1 ? rows_.columns
                                    : std::max<int64_t>(1, floats_->depth_bytes / column_bytes / at_once) * at_once;
  const auto at = [&](int64_t group, int64_t column) {
    return packed + group * group_bytes_ + column / step_.columns * step_.bytes;
  };
  alignas(64) float rest[kTokensAtOnce * kGroupRows];
  for (int64_t begin = 0; begin < rows_.columns; begin += depth) {
    const int64_t end = std::min(begin + depth, rows_.columns);
    for (int64_t group = 0; group < groups; ++group) {
      float* const group_sums = sums + group * n * kGroupRows;
      const Destination group_to = of_group(to, group);
      for (int64_t column = begin; column < end; column += at_once) {
        const Slice s = slice(at(group, 0), first, column, at_once);
        const uint8_t* const next = column + at_once < end ? at(group, column + at_once)
                                    : group + 1 < groups   ? at(group + 1, begin)
                                    : end < rows_.columns  ? at(0, end)
                                                           : at(groups, 0);
        const int64_t steps = ceiling_of(s.columns, floats_->prefetch_columns),
                      fetched = n < floats_->prefetch_from_tokens ? 0 : s.bytes;
        PrefetchPlan plan(tiles == 1 ? s.weights + prefetch_bytes(n) : next, fetched, tiles * steps, prefetch_into_l2_);
        const bool last = column + at_once >= rows_.columns;
        each_tile(n, floats_->max_tokens, [&](int64_t token, int64_t count) {
          if (column == 0) set_zero(group_sums + token * kGroupRows, count);
          if (last) expect_written(group_to, token, count);
          const uint8_t* row = s.row + size_t(token) * rows_.stride;
          floats_->tile[count - 1](s.weights, s.columns, row, rows_.stride, group_sums + token * kGroupRows,
                                   plan.next(steps));
          if (!rows_.rest) return;
          if (column == 0) set_zero(rest + token * kGroupRows, count);
          floats_->tile[count - 1](s.weights, s.columns, row + rows_.rest, rows_.stride, rest + token * kGroupRows, {});
        });
      }
    }
  }
  if (rows_.rest) add(sums, rest, n);
}

void GroupProduct::multiply_coded(const uint8_t* packed, int64_t first, int64_t n, float* sums) const {
  if (n <= coded_->max_tokens) {
    const bool prefetches = n >= coded_->prefetch_from_tokens;
    const SpreadPrefetch prefetch{packed + prefetch_bytes(n), prefetches ? kPartSteps : 0,
                                  group_bytes_ / (rows_.columns / kPartColumns), prefetch_into_l2_};
    const int64_t tokens =
        prefetches ? std::max(n, std::min<int64_t>(coded_->min_prefetch_tile, rows_.readable - first)) : n;
    coded_->tile[tokens - 1](packed, rows_.columns, rows_.data + size_t(first) * rows_.stride, rows_.stride, sums,
                             prefetch);
    return;
  }
  const int64_t tiles = ceiling_of(n, coded_->tokens_of_many),
                at_once = slice_columns(step_, rows_.columns, slice_bytes_);
  for (int64_t column = 0; column < rows_.columns; column += at_once) {
    const Slice s = slice(packed, first, column, at_once);
    const uint8_t* from = s.weights + s.bytes;
    const int64_t parts = s.columns / kPartColumns;
    const PartShare share(s.bytes / parts, tiles);
    each_tile(n, coded_->tokens_of_many, [&](int64_t token, int64_t count) {
      const SpreadPrefetch prefetch{from, int(share.steps), share.bytes, prefetch_into_l2_};
      coded_->tile[count - 1](s.weights, s.columns, s.row + size_t(token) * rows_.stride, rows_.stride,
                              sums + token * kGroupRows, prefetch);
      from += parts * share.bytes;
    });
  }
}

void GroupProduct::multiply_panels(const uint8_t* packed, int64_t first, int64_t n, float* sums,
                                   const Destination& to) const {
  PanelSpace space;
  const int64_t tiles = ceiling_of(n, panels_->max_tokens), blocks = ceiling_of(rows_.columns, step_.columns);
  // About equal panels of whole blocks
  const int64_t at_once =
      ceiling_of(blocks, ceiling_of(rows_.columns, panels_->max_parts * kPartColumns)) * step_.columns;
  for (int64_t column = 0; column < rows_.columns; column += at_once) {
    const Slice s = slice(packed, first, column, at_once);
    const int64_t parts = s.columns / kPartColumns;
    const Panel panel = panels_->unpack(s.weights, parts, space);
    PrefetchPlan plan(s.weights + s.bytes, s.bytes, tiles * parts);
    const bool last = column + at_once >= rows_.columns;
    each_tile(n, panels_->max_tokens, [&](int64_t token, int64_t count) {
      if (last) expect_written(to, token, count);
      panels_->tile[count - 1](panel, parts, s.row + size_t(token) * rows_.stride, rows_.stride,
                               sums + token * kGroupRows, column == 0, plan.next(parts));
    });
  }
}

}  // namespace homenode
