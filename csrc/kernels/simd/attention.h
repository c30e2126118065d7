// Attention of a few rows over one chunk of keys, written on Lanes.
//
// What fixes the value of a row, bit by bit, and so must not depend on which rows are computed together:
//   score      one chain of multiply-adds over the head's elements in order, for each key;
//   largest    over the visible keys of the chunk; scores are in base 2 (see AttendArgs);
//   sum        lane i adds the keys i, i + 16, ... of the chunk (masked keys add +0), then sum_lanes;
//   output     for each element one chain of multiply-adds over the visible keys in order. Other keys' values are not
//              touched at all.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/attention_sums.h"
#include "kernels/simd/attention_turned.h"
#include "kernels/simd/math.h"
#include "kernels/simd/prefetch.h"

namespace homenode {
namespace {

// How keys and values lie in memory (see kv/cache.h): kStep head elements of keys, or tokens of values, in one load,
// and a vector of lanes after the other. `add` adds to sums of R rows and T vectors of lanes the products with one load
// each, that at `at[t]`; a row's factors lie `stride` apart from those of the row before.
struct StoredF32 {
  using Element = float;
  static constexpr int kStep = 1;
  static void load_lanes(const float* p, Lanes (&out)[1]) { out[0] = load(p); }
  template <int R, int T>
  HOMENODE_ATTEND static void add(const float* x, int64_t stride, const float* const (&at)[T], Lanes (&sums)[R][T]) {
    add_floats(x, stride, at, sums);
  }
};

struct StoredBf16 {
  using Element = uint16_t;
  static constexpr int kStep = 2;
  static void load_lanes(const uint16_t* p, Lanes (&out)[2]) { load_pairs(p, out[0], out[1]); }
  template <int R, int T>
  HOMENODE_ATTEND static void add(const float* x, int64_t stride, const uint16_t* const (&at)[T], Lanes (&sums)[R][T]) {
    add_pairs(x, stride, at, sums);
  }
};

// Scores of R rows against T tiles.
template <class Stored, int R, int T>
__attribute__((noinline)) void score_block(const AttendArgs& a, Prefetch& prefetch, int row, int tile) {
  using Element = typename Stored::Element;
  constexpr int kStep = Stored::kStep;
  const int64_t head_dim = a.head_dim;
  const float* q = static_cast<const float*>(a.queries) + row * head_dim;
  const Element* keys[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) keys[t] = static_cast<const Element*>(a.keys[tile + t]);
  Lanes sums[R][T];
  clear_sums(sums);
  PrefetchCursor cursor = prefetch.begin();
  for (int64_t d = 0; d < head_dim;) {
    prefetch.look(cursor);
    const int64_t end = d + kStep * kStepsBetweenChecks < head_dim ? d + kStep * kStepsBetweenChecks : head_dim;
#pragma GCC unroll 1
    for (; d < end; d += kStep) {
      cursor.step();
      Stored::add(q + d, head_dim, keys, sums);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) keys[t] += kStep * kTileKeys;
    }
  }
  prefetch.end(cursor);
  store_sums(sums, a.scores + int64_t(row) * kChunkKeys + tile * kTileKeys, kChunkKeys);
}

template <class Stored, int R>
inline void score_rows(const AttendArgs& a, Prefetch& prefetch, int row, int tile, int tile_end) {
  constexpr int T = lanes_beside(R);
  for (; tile + T <= tile_end; tile += T) score_block<Stored, R, T>(a, prefetch, row, tile);
  for (; tile < tile_end; ++tile) {
    for_row_blocks<kRowsBesideOne>(
        R, [&]<int F>(int first) { score_block<Stored, F, 1>(a, prefetch, row + first, tile); });
  }
}

// The keys of the chunk that any of some rows see, and those that all of them see.
struct Seen {
  int begin = kChunkKeys, end = 0, all_begin = 0, all_end = kChunkKeys;
  int first_tile() const { return begin / kTileKeys; }
  int last_tile() const { return begin < end ? (end - 1) / kTileKeys + 1 : first_tile(); }
};

inline Seen seen_by(const AttendArgs& a, int row, int rows) {
  Seen seen;
  for (int r = row; r < row + rows; ++r) {
    const int begin = a.begin[r], end = a.end[r];
    seen.all_begin = begin > seen.all_begin ? begin : seen.all_begin;
    seen.all_end = end < seen.all_end ? end : seen.all_end;
    if (begin >= end) continue;
    seen.begin = begin < seen.begin ? begin : seen.begin;
    seen.end = end > seen.end ? end : seen.end;
  }
  return seen;
}

// Calls work(arguments) with values as they lie in tiles of their own: all of them at once where they do, else a few
// elements of each key after the other, turned.
template <class Element, class Work>
inline void for_value_strips(const AttendArgs& a, Work work) {
  if (!a.turned) return work(a);
  const Seen any = seen_by(a, 0, a.rows);
  const void* tiles[kChunkTiles];
  AttendArgs strip = a;
  strip.values = tiles;
  for (int d = 0; d < a.value_dim; d += kTurnedColumns) {
    const int left = static_cast<int>(padded_head(a.value_dim - d));
    strip.value_dim = left < kTurnedColumns ? left : kTurnedColumns;
    strip.out = a.out + d;
    for (int tile = any.first_tile(); tile < any.last_tile(); ++tile) {
      Element* to = static_cast<Element*>(a.turned) + tile * int64_t(kTileKeys) * kTurnedColumns;
      turn_tile(static_cast<const Element*>(a.keys[tile]), a.head_dim, d, strip.value_dim, to);
      tiles[tile] = to;
    }
    work(strip);
  }
}

constexpr int kRun = 4;  // tiles

// Steps of all loops together, about; `step`: head elements of keys, or tokens of values, in one load.
template <int Most>
inline int64_t count_steps(const AttendArgs& a, int step) {
  const Seen any = seen_by(a, 0, a.rows);
  const int64_t tiles = any.last_tile() - any.first_tile();
  int64_t steps = 0;
  for_row_blocks<Most>(a.rows, [&]<int R>(int) {
    constexpr int T = lanes_beside(R);
    steps += (tiles * a.head_dim + padded_head(a.value_dim) * tiles) / (step * T);
  });
  return steps;
}

// Calls work.operator()<R>(first row, tile begin, tile end) until all that any row sees has been worked on: tiles in
// runs of a few, which stay in the first cache while every block of rows is multiplied with them.
template <int Most, class Work>
inline void for_key_runs(const AttendArgs& a, Work work) {
  const Seen any = seen_by(a, 0, a.rows);
  for (int tile = any.first_tile() / kRun * kRun; tile < any.last_tile(); tile += kRun) {
    for_row_blocks<Most>(a.rows, [&]<int R>(int row) {
      const Seen seen = seen_by(a, row, R);
      const int first = seen.first_tile() > tile ? seen.first_tile() : tile,
                last = seen.last_tile() < tile + kRun ? seen.last_tile() : tile + kRun;
      if (first < last) work.template operator()<R>(row, first, last);
    });
  }
}

// The tiles a row sees something of: calls work.operator()<Whole>(tile) for each in order, Whole where all of it is
// visible.
template <class Work>
HOMENODE_ATTEND void for_tiles(const AttendArgs& a, int row, Work work) {
  const int begin = a.begin[row], end = a.end[row], whole_begin = (begin + kTileKeys - 1) / kTileKeys,
            whole_end = end / kTileKeys;
  if (begin >= end) return;
  int tile = begin / kTileKeys;
  if (tile < whole_begin) work.template operator()<false>(tile++);
#pragma GCC unroll 2
  for (; tile < whole_end; ++tile) work.template operator()<true>(tile);
  if (tile * kTileKeys < end) work.template operator()<false>(tile);
}

inline float* tile_scores(const AttendArgs& a, int row, int tile) {
  return a.scores + int64_t(row) * kChunkKeys + tile * kTileKeys;
}

// The lanes of x that a row sees, `other` elsewhere.
template <bool Whole>
inline Lanes visible(const AttendArgs& a, int row, int tile, const Lanes& x, float other) {
  if constexpr (Whole) return x;
  return keep(x, a.begin[row] - tile * kTileKeys, a.end[row] - tile * kTileKeys, fill(other));
}

// cap * tanh(score / cap) for all tiles a row sees.
inline void cap_scores(const AttendArgs& a, int row) {
  const Lanes slope = fill(1 / a.softcap), cap = fill(a.softcap);
  for_tiles(a, row, [&]<bool>(int t) {
    store(tile_scores(a, row, t), multiply(cap, tanh_of(multiply(load(tile_scores(a, row, t)), slope))));
  });
}

// Adds to the scores of all tiles a row sees what its slope makes of their keys' distances, to either side.
inline void slope_scores(const AttendArgs& a, int row) {
  alignas(64) static constexpr float kFirst[kTileKeys] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Lanes slope = fill(a.slopes[row]), first = load(kFirst);
  for_tiles(a, row, [&]<bool>(int t) {
    const Lanes apart = add(first, fill(static_cast<float>(a.apart[row] + t * kTileKeys)));
    const Lanes less = smaller(apart, subtract(fill(0), apart));
    store(tile_scores(a, row, t), multiply_add(less, slope, load(tile_scores(a, row, t))));
  });
}

// Adds to the scores of all tiles a row sees the biases of their keys' distances.
inline void bias_scores(const AttendArgs& a, int row) {
  const float* biases = a.biases[row] + a.reach;  // of distance 0
  for_tiles(a, row, [&]<bool>(int t) {
    const int first = a.apart[row] + t * kTileKeys;
    float added[kTileKeys];
    for (int k = 0; k < kTileKeys; ++k) {
      const int apart = first + k;
      added[k] = biases[apart < -a.reach ? -a.reach : apart > a.reach ? a.reach : apart];
    }
    store(tile_scores(a, row, t), add(load(tile_scores(a, row, t)), load(added)));
  });
}

// Caps, slopes or biases of a row, where there are any.
inline void adjust_scores(const AttendArgs& a, int row) {
  if (a.softcap != 0) cap_scores(a, row);
  if (a.slopes) slope_scores(a, row);
  if (a.biases) bias_scores(a, row);
}

// The largest visible score of a row, adjusted first.
inline float largest_score(const AttendArgs& a, int row) {
  adjust_scores(a, row);
  constexpr float kLowest = -__builtin_inff();
  Lanes top = fill(kLowest);
  for_tiles(a, row, [&]<bool Whole>(int t) {
    top = larger(visible<Whole>(a, row, t, load(tile_scores(a, row, t)), kLowest), top);
  });
  return largest_lane(top);
}

// Weight 2^(score - largest) of each key of a tile, 0 where masked.
template <bool Whole>
inline Lanes weights_of(const AttendArgs& a, int row, int tile, const Lanes& largest) {
  return visible<Whole>(a, row, tile, power_of_two_below_1(subtract(load(tile_scores(a, row, tile)), largest)), 0);
}

// The largest score of each row, -infinity where it sees nothing: of all rows first, so that what follows need not wait
// for them.
inline void find_largest_scores(const AttendArgs& a) {
  for (int r = 0; r < a.rows; ++r) a.largest[r] = a.begin[r] < a.end[r] ? largest_score(a, r) : -__builtin_inff();
}

// Scores become weights.
inline void apply_softmax_row(const AttendArgs& a, int row) {
  const Lanes top = fill(a.largest[row]);
  Lanes sum = fill(0);
  for_tiles(a, row, [&]<bool Whole>(int t) {
    const Lanes weights = weights_of<Whole>(a, row, t, top);
    sum = add(sum, weights);
    store(tile_scores(a, row, t), weights);
  });
  a.sum[row] = sum_lanes(sum);
}

// Adds the values of keys key + First .. key + Last - 1, all within one load, to the sums. Every index is a constant,
// so sums stay in registers.
template <class Stored, int First, int Last, int R, int T>
inline void add_values(const AttendArgs& a, const float* weights, int64_t d, int key, Lanes (&sums)[R][T]) {
  const auto* at = static_cast<const typename Stored::Element*>(a.values[key / kTileKeys]) +
                   key % kTileKeys * int64_t(a.value_dim) + Stored::kStep * d;
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    Lanes v[Stored::kStep];
    Stored::load_lanes(at + 16 * Stored::kStep * t, v);
#pragma GCC unroll 4
    for (int s = First; s < Last; ++s) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) add_product(fill(weights[int64_t(r) * kChunkKeys + key + s]), v[s], sums[r][t]);
    }
  }
}

// The same of the keys key .. end - 1, whole loads of one tile.
template <class Stored, int R, int T>
inline void add_tile_values(const AttendArgs& a, const float* weights, int64_t d, int key, int end,
                            PrefetchCursor& cursor, Lanes (&sums)[R][T]) {
  using Element = typename Stored::Element;
  constexpr int kStep = Stored::kStep;
  const Element* at[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    at[t] = static_cast<const Element*>(a.values[key / kTileKeys]) + key % kTileKeys * int64_t(a.value_dim) +
            kStep * (d + 16 * t);
  }
#pragma GCC unroll 1
  for (; key < end; key += kStep) {
    cursor.step();
    Stored::add(weights + key, kChunkKeys, at, sums);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) at[t] += kStep * int64_t(a.value_dim);
  }
}

// Adds the values of keys begin .. end - 1 to the outputs of R rows, T vectors of lanes starting at element d.
template <class Stored, int R, int T>
__attribute__((noinline)) void value_block(const AttendArgs& a, Prefetch& prefetch, int row, int64_t d, int begin,
                                           int end) {
  constexpr int kStep = Stored::kStep, kTake = kStep * kStepsBetweenChecks;
  static_assert(kTileKeys % kTake == 0);
  float* out = a.out + row * a.out_stride + d;
  Lanes sums[R][T];
  load_sums(out, a.out_stride, sums);
  const float* weights = a.scores + int64_t(row) * kChunkKeys;
  int key = begin;
  if (key % kStep) add_values<Stored, kStep - 1, kStep>(a, weights, d, key++ - 1, sums);
  const int whole = end - end % kStep;
  PrefetchCursor cursor = prefetch.begin();
  while (key < whole) {
    prefetch.look(cursor);
    const int next = (key / kTake + 1) * kTake, stop = next < whole ? next : whole;
    add_tile_values<Stored>(a, weights, d, key, stop, cursor, sums);
    key = stop;
  }
  prefetch.end(cursor);
  if (key < end) add_values<Stored, 0, 1>(a, weights, d, key, sums);
  store_sums(sums, out, a.out_stride);
}

template <class Stored, int R>
inline void value_rows(const AttendArgs& a, Prefetch& prefetch, int row, int begin, int end) {
  if (begin >= end) return;
  constexpr int T = lanes_beside(R);
  const int64_t padded = padded_head(a.value_dim);
  int64_t d = 0;
  for (; d + 16 * T <= padded; d += 16 * T) value_block<Stored, R, T>(a, prefetch, row, d, begin, end);
  for (; d < padded; d += 16) {
    for_row_blocks<kRowsBesideOne>(
        R, [&]<int F>(int first) { value_block<Stored, F, 1>(a, prefetch, row + first, d, begin, end); });
  }
}

// The outputs of R rows: the keys only some of them see are added row by row, before and after those that all see.
template <class Stored, int R>
inline void weigh_rows(const AttendArgs& a, Prefetch& prefetch, int row) {
  const Seen seen = seen_by(a, row, R);
  if (seen.all_begin >= seen.all_end) {
    for (int r = row; r < row + R; ++r) value_rows<Stored, 1>(a, prefetch, r, a.begin[r], a.end[r]);
    return;
  }
  for (int r = row; r < row + R; ++r) value_rows<Stored, 1>(a, prefetch, r, a.begin[r], seen.all_begin);
  value_rows<Stored, R>(a, prefetch, row, seen.all_begin, seen.all_end);
  for (int r = row; r < row + R; ++r) value_rows<Stored, 1>(a, prefetch, r, seen.all_end, a.end[r]);
}

inline void clear_rows(const AttendArgs& a) {
  for (int64_t i = 0; i < a.rows * a.out_stride; i += 16) store(a.out + i, fill(0));
}

template <class Stored>
inline void score_all(const AttendArgs& a, Prefetch& prefetch) {
  for_key_runs<kRowBlock>(
      a, [&]<int R>(int row, int begin, int end) { score_rows<Stored, R>(a, prefetch, row, begin, end); });
}

template <class Stored>
void score(const AttendArgs& a) {
  Prefetch prefetch(a, 0);
  score_all<Stored>(a, prefetch);
}

template <class Stored>
void attend(const AttendArgs& a) {
  Prefetch prefetch(a, a.prefetch_ranges ? count_steps<kRowBlock>(a, Stored::kStep) : 0);
  score_all<Stored>(a, prefetch);
  find_largest_scores(a);
  for (int r = 0; r < a.rows; ++r) apply_softmax_row(a, r);
  clear_rows(a);
  for_value_strips<typename Stored::Element>(a, [&](const AttendArgs& strip) {
    for_row_blocks<kRowBlock>(a.rows, [&]<int R>(int row) { weigh_rows<Stored, R>(strip, prefetch, row); });
  });
}

// The factors of 16 rows come from two vectors of exponentials.
inline void merge_rows(const MergeArgs& m) {
  float keep1[16], keep2[16];
  for (int r = 0; r < m.rows; ++r) {
    if (r % 16 == 0) {
      const Lanes first = load(m.largest + r), second = load(m.largest2 + r), top = larger(first, second);
      store(keep1, power_of_two_at(subtract(first, top)));
      store(keep2, power_of_two_at(subtract(second, top)));
    }
    if (m.how[r] == Merge::leave) continue;
    const bool take = m.how[r] == Merge::take;
    const float a = keep1[r % 16], b = keep2[r % 16];
    float* out = m.out + r * m.padded;
    const float* out2 = m.out2 + r * m.padded;
    for (int64_t i = 0; i < m.padded; i += 16) {
      const Lanes added = load(out2 + i);
      store(out + i, take ? added : multiply_add(load(out + i), fill(a), multiply(added, fill(b))));
    }
    m.sum[r] = take ? m.sum2[r] : m.sum[r] * a + m.sum2[r] * b;
    m.largest[r] = take || m.largest2[r] > m.largest[r] ? m.largest2[r] : m.largest[r];
  }
}

inline void divide_row(const float* x, float divisor, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, divide(load(x + i), fill(divisor)));
  for (; i < count; ++i) out[i] = x[i] / divisor;
}

}  // namespace
}  // namespace homenode
