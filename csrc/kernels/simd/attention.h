// Attention of a few rows over one chunk of keys, written on Lanes.
//
// What fixes the value of a row, bit by bit, and so must not depend on which rows are computed together:
//   score      one chain of multiply-adds over the head's elements in order, for each key;
//   largest    over the visible keys of the chunk; scores are in base 2 (see AttendArgs);
//   sum        lane i adds the keys i, i + 16, ... of the chunk (masked keys add +0), then sum_lanes;
//   output     for each element one chain of multiply-adds over the visible keys in order. Other keys' values are not touched at all.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/ahead.h"
#include "kernels/simd/math.h"

namespace homenode {
namespace {

// How keys and values lie in memory: see kv_cache.h.
struct StoredF32 {
  using Element = float;
  static constexpr int kStep = 1;  // head elements of keys, or tokens of values, in one load
  static void keys(const void* tile, int64_t d, Lanes (&out)[1]) { out[0] = load(static_cast<const float*>(tile) + d * kTileKeys); }
  static void values(const void* tile, int64_t head_dim, int64_t token, int64_t d, Lanes (&out)[1]) {
    out[0] = load(static_cast<const float*>(tile) + token * head_dim + d);
  }
};

struct StoredBf16 {
  using Element = uint16_t;
  static constexpr int kStep = 2;
  static void keys(const void* tile, int64_t d, Lanes (&out)[2]) { load_pairs(static_cast<const uint16_t*>(tile) + d * kTileKeys, out[0], out[1]); }
  static void values(const void* tile, int64_t head_dim, int64_t token, int64_t d, Lanes (&out)[2]) {
    load_pairs(static_cast<const uint16_t*>(tile) + token * head_dim + 2 * d, out[0], out[1]);
  }
};

// Scores of R rows against T tiles.
template <class Stored, int R, int T>
inline void score_block(const AttendArgs& a, Ahead& ahead, int row, int tile) {
  constexpr int kStep = Stored::kStep;
  Lanes sums[R][T];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[r][t] = fill(0);
  }
  const float* q = static_cast<const float*>(a.queries) + int64_t(row) * a.head_dim;
  Pieces pieces;
  for (int64_t d = 0; d < a.head_dim; d += kStep) {
    if (d / kStep % kAskSteps == 0) ahead.take(pieces);
    pieces.ask(d / kStep);
    Lanes k[T][kStep];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) Stored::keys(a.keys[tile + t], d, k[t]);
#pragma GCC unroll 4
    for (int s = 0; s < kStep; ++s) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Lanes x = fill(q[int64_t(r) * a.head_dim + d + s]);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sums[r][t] = multiply_add(x, k[t][s], sums[r][t]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) store(a.scores + int64_t(row + r) * kChunkKeys + (tile + t) * kTileKeys, sums[r][t]);
  }
}

template <class Stored, int R>
inline void score_rows(const AttendArgs& a, Ahead& ahead, int row, int tile, int tile_end) {
  for (; tile + kLaneBlock <= tile_end; tile += kLaneBlock) score_block<Stored, R, kLaneBlock>(a, ahead, row, tile);
  for (; tile < tile_end; ++tile) score_block<Stored, R, 1>(a, ahead, row, tile);
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

// Calls block.operator()<R>(first row) for all rows, in blocks of as many as the registers hold.
template <class Block>
inline void for_row_blocks(int rows, Block block) {
  int row = 0;
  for (; row + kRowBlock <= rows; row += kRowBlock) block.template operator()<kRowBlock>(row);
  if constexpr (kRowBlock > 3) {
    if (rows - row == 3) return block.template operator()<3>(row);
    if (rows - row == 2) return block.template operator()<2>(row);
  }
  for (; row < rows; ++row) block.template operator()<1>(row);
}

constexpr int kRun = 4;  // tiles

// How often all loops together take what to ask for, about; `step`: head elements of keys, or tokens of values, in one load.
inline int64_t count_takes(const AttendArgs& a, int step) {
  const Seen any = seen_by(a, 0, a.rows);
  const int64_t blocks = (a.rows + kRowBlock - 1) / kRowBlock, tiles = any.last_tile() - any.first_tile();
  const int64_t scores = tiles / kLaneBlock * ((a.head_dim / step + kAskSteps - 1) / kAskSteps);
  const int64_t values = padded_head(a.head_dim) / (16 * kLaneBlock) * (tiles * kTileKeys / step / kAskSteps);
  return blocks * (scores + values);
}

// Calls work.operator()<R>(first row, tile begin, tile end) until all that any row sees has been worked on: tiles in runs of a few, which stay in
// the first cache while every block of rows is multiplied with them.
template <class Work>
inline void for_key_runs(const AttendArgs& a, Work work) {
  const Seen any = seen_by(a, 0, a.rows);
  for (int tile = any.first_tile() / kRun * kRun; tile < any.last_tile(); tile += kRun) {
    for_row_blocks(a.rows, [&]<int R>(int row) {
      const Seen seen = seen_by(a, row, R);
      const int first = seen.first_tile() > tile ? seen.first_tile() : tile, last = seen.last_tile() < tile + kRun ? seen.last_tile() : tile + kRun;
      if (first < last) work.template operator()<R>(row, first, last);
    });
  }
}

// Scores of a row as lanes, `other` where masked.
inline Lanes load_visible(const AttendArgs& a, int row, int tile, const Lanes& other) {
  const Lanes v = load(a.scores + int64_t(row) * kChunkKeys + tile * kTileKeys);
  const int begin = a.begin[row] - tile * kTileKeys, end = a.end[row] - tile * kTileKeys;
  return begin <= 0 && end >= kTileKeys ? v : keep(v, begin, end, other);
}

// cap * tanh(score / cap) for all tiles a row sees.
inline void cap_scores(const AttendArgs& a, int row) {
  const Lanes slope = fill(1 / a.softcap), cap = fill(a.softcap);
  for (int t = a.begin[row] / kTileKeys; t <= (a.end[row] - 1) / kTileKeys; ++t) {
    float* scores = a.scores + int64_t(row) * kChunkKeys + t * kTileKeys;
    store(scores, multiply(cap, tanh_of(multiply(load(scores), slope))));
  }
}

// The largest visible score of a row, capped first where there is a cap.
inline float largest_score(const AttendArgs& a, int row) {
  if (a.softcap != 0) cap_scores(a, row);
  Lanes top = fill(-__builtin_inff());
  for (int t = a.begin[row] / kTileKeys; t <= (a.end[row] - 1) / kTileKeys; ++t) top = larger(load_visible(a, row, t, fill(-__builtin_inff())), top);
  return largest_lane(top);
}

// Weight 2^(score - largest) of each key of a tile, 0 where masked.
inline Lanes weights_of(const AttendArgs& a, int row, int tile, const Lanes& largest) {
  const Lanes e = power_of_two_at(subtract(load(a.scores + int64_t(row) * kChunkKeys + tile * kTileKeys), largest));
  const int begin = a.begin[row] - tile * kTileKeys, end = a.end[row] - tile * kTileKeys;
  return begin <= 0 && end >= kTileKeys ? e : keep(e, begin, end, fill(0));
}

inline void forget_row(const AttendArgs& a, int row) {
  a.largest[row] = -__builtin_inff();
  a.sum[row] = 0;
}

// Scores become weights.
inline void soften_row(const AttendArgs& a, int row) {
  forget_row(a, row);
  if (a.begin[row] >= a.end[row]) return;
  const float largest = largest_score(a, row);
  Lanes sum = fill(0);
  for (int t = a.begin[row] / kTileKeys; t <= (a.end[row] - 1) / kTileKeys; ++t) {
    const Lanes weights = weights_of(a, row, t, fill(largest));
    sum = add(sum, weights);
    store(a.scores + int64_t(row) * kChunkKeys + t * kTileKeys, weights);
  }
  a.largest[row] = largest;
  a.sum[row] = sum_lanes(sum);
}

// Adds the values of keys key + First .. key + Last - 1, all within one load, to the sums. Every index is a constant, so sums stay in registers.
template <class Stored, int R, int C, int First, int Last>
inline void add_values(const AttendArgs& a, const float* weights, int64_t d, int key, Lanes (&sums)[R][C]) {
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    Lanes v[Stored::kStep];
    Stored::values(a.values[key / kTileKeys], a.head_dim, key % kTileKeys, d + 16 * c, v);
#pragma GCC unroll 4
    for (int s = First; s < Last; ++s) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[r][c] = multiply_add(fill(weights[int64_t(r) * kChunkKeys + key + s]), v[s], sums[r][c]);
    }
  }
}

// Adds the values of keys begin .. end - 1 to the outputs of R rows, C vectors of lanes starting at element d.
template <class Stored, int R, int C>
inline void value_block(const AttendArgs& a, Ahead& ahead, int row, int64_t d, int begin, int end) {
  constexpr int kStep = Stored::kStep;
  const int64_t padded = padded_head(a.head_dim);
  Lanes sums[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = load(a.out + (row + r) * padded + d + 16 * c);
  }
  const float* weights = a.scores + int64_t(row) * kChunkKeys;
  int key = begin;
  if (key % kStep) {
    add_values<Stored, R, C, kStep - 1, kStep>(a, weights, d, key - 1, sums);
    ++key;
  }
  Pieces pieces;
  for (int64_t step = 0; key + kStep <= end; key += kStep, ++step) {
    if (step % kAskSteps == 0) ahead.take(pieces);
    pieces.ask(step);
    add_values<Stored, R, C, 0, kStep>(a, weights, d, key, sums);
  }
  if (key < end) add_values<Stored, R, C, 0, 1>(a, weights, d, key, sums);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(a.out + (row + r) * padded + d + 16 * c, sums[r][c]);
  }
}

template <class Stored, int R>
inline void value_rows(const AttendArgs& a, Ahead& ahead, int row, int begin, int end) {
  if (begin >= end) return;
  const int64_t padded = padded_head(a.head_dim);
  int64_t d = 0;
  for (; d + 16 * kLaneBlock <= padded; d += 16 * kLaneBlock) value_block<Stored, R, kLaneBlock>(a, ahead, row, d, begin, end);
  for (; d < padded; d += 16) value_block<Stored, R, 1>(a, ahead, row, d, begin, end);
}

// The outputs of R rows: the keys only some of them see are added row by row, before and after those that all see.
template <class Stored, int R>
inline void weigh_rows(const AttendArgs& a, Ahead& ahead, int row) {
  const Seen seen = seen_by(a, row, R);
  if (seen.all_begin >= seen.all_end) {
    for (int r = row; r < row + R; ++r) value_rows<Stored, 1>(a, ahead, r, a.begin[r], a.end[r]);
    return;
  }
  for (int r = row; r < row + R; ++r) value_rows<Stored, 1>(a, ahead, r, a.begin[r], seen.all_begin);
  value_rows<Stored, R>(a, ahead, row, seen.all_begin, seen.all_end);
  for (int r = row; r < row + R; ++r) value_rows<Stored, 1>(a, ahead, r, seen.all_end, a.end[r]);
}

inline void clear_rows(const AttendArgs& a) {
  for (int64_t i = 0; i < a.rows * padded_head(a.head_dim); i += 16) store(a.out + i, fill(0));
}

template <class Stored>
void attend(const AttendArgs& a) {
  Ahead ahead(a, a.ahead_ranges ? count_takes(a, Stored::kStep) : 0);
  for_key_runs(a, [&]<int R>(int row, int begin, int end) { score_rows<Stored, R>(a, ahead, row, begin, end); });
  for (int r = 0; r < a.rows; ++r) soften_row(a, r);
  clear_rows(a);
  for_row_blocks(a.rows, [&]<int R>(int row) { weigh_rows<Stored, R>(a, ahead, row); });
}

// The factors of 16 rows come from two vectors of exponentials.
void merge_rows(const MergeArgs& m) {
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

void divide_row(const float* x, float divisor, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, divide(load(x + i), fill(divisor)));
  for (; i < count; ++i) out[i] = x[i] / divisor;
}

}  // namespace
}  // namespace homenode
