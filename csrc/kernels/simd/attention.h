// Attention of a few rows over one chunk of keys, written on Lanes.
//
// What fixes the value of a row, bit by bit, and so must not depend on which rows are computed together:
//   score      one chain of multiply-adds over the head's elements in order, for each key;
//   largest    over the visible keys of the chunk;
//   sum        lane i adds the keys i, i + 16, ... of the chunk (masked keys add +0), then sum_lanes;
//   output     for each element one chain of multiply-adds over the visible keys in order. Other keys' values are not touched at all.
#pragma once
#include "kernels/kernels.h"
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

// Keys and values lie in runs of a few KiB, too short for the hardware to see coming. So while keys are multiplied the chunk's values are asked for,
// a line of cache for each line of keys, and while values are, the next chunk's keys. Only the first block of rows does so.
template <class Element>
inline void fetch(const void* tile, int64_t element) {
  __builtin_prefetch(static_cast<const Element*>(tile) + element);
}

// Asks for the part of the next chunk's keys that is as long as the values of tokens key .. key + count - 1.
template <class Element>
inline void fetch_next(const AttendArgs& a, int key, int count) {
  if (key / kTileKeys >= a.next_tiles) return;
  const int64_t begin = int64_t(key % kTileKeys) * a.head_dim, end = begin + int64_t(count) * a.head_dim;
  for (int64_t i = begin; i < end; i += 64 / static_cast<int64_t>(sizeof(Element))) fetch<Element>(a.next_keys[key / kTileKeys], i);
}

// Scores of R rows against T tiles.
template <class Stored, int R, int T>
inline void score_block(const AttendArgs& a, int row, int tile) {
  constexpr int kStep = Stored::kStep;
  Lanes sums[R][T];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[r][t] = fill(0);
  }
  const float* q = static_cast<const float*>(a.queries) + int64_t(row) * a.head_dim;
  for (int64_t d = 0; d < a.head_dim; d += kStep) {
    if (row == 0) {
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) fetch<typename Stored::Element>(a.values[tile + t], d * kTileKeys);
    }
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
inline void score_rows(const AttendArgs& a, int row, int tile_begin, int tile_end) {
  int tile = tile_begin;
  for (; tile + kLaneBlock <= tile_end; tile += kLaneBlock) score_block<Stored, R, kLaneBlock>(a, row, tile);
  for (; tile < tile_end; ++tile) score_block<Stored, R, 1>(a, row, tile);
}

// Scores become weights exp(score - largest), 0 where masked.
inline void soften_row(const AttendArgs& a, int row) {
  const int begin = a.begin[row], end = a.end[row];
  float* scores = a.scores + int64_t(row) * kChunkKeys;
  const int first = begin / kTileKeys, last = (end - 1) / kTileKeys;
  Lanes top = fill(-__builtin_inff());
  for (int t = first; t <= last; ++t) {
    const Lanes v = keep(load(scores + t * kTileKeys), begin - t * kTileKeys, end - t * kTileKeys, fill(-__builtin_inff()));
    top = larger(v, top);
  }
  const float largest = largest_lane(top);
  Lanes sum = fill(0);
  for (int t = first; t <= last; ++t) {
    const Lanes e = exponential(subtract(load(scores + t * kTileKeys), fill(largest)));
    const Lanes weights = keep(e, begin - t * kTileKeys, end - t * kTileKeys, fill(0));
    sum = add(sum, weights);
    store(scores + t * kTileKeys, weights);
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
inline void value_block(const AttendArgs& a, int row, int64_t d, int begin, int end) {
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
  const bool first = row == 0 && d == 0;
  for (; key + kStep <= end; key += kStep) {
    if (first) fetch_next<typename Stored::Element>(a, key, kStep);
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
inline void value_rows(const AttendArgs& a, int row, int begin, int end) {
  if (begin >= end) return;
  const int64_t padded = padded_head(a.head_dim);
  int64_t d = 0;
  for (; d + 16 * kLaneBlock <= padded; d += 16 * kLaneBlock) value_block<Stored, R, kLaneBlock>(a, row, d, begin, end);
  for (; d < padded; d += 16) value_block<Stored, R, 1>(a, row, d, begin, end);
}

// R rows: the keys only some of them see are added row by row, before and after those that all see.
template <class Stored, int R>
inline void attend_rows(const AttendArgs& a, int row) {
  int begin = kChunkKeys, end = 0, all_begin = 0, all_end = kChunkKeys;
  for (int r = row; r < row + R; ++r) {
    a.largest[r] = -__builtin_inff();
    a.sum[r] = 0;
    all_begin = a.begin[r] > all_begin ? a.begin[r] : all_begin;
    all_end = a.end[r] < all_end ? a.end[r] : all_end;
    if (a.begin[r] >= a.end[r]) continue;
    begin = a.begin[r] < begin ? a.begin[r] : begin;
    end = a.end[r] > end ? a.end[r] : end;
  }
  const int64_t padded = padded_head(a.head_dim);
  for (int64_t i = row * padded; i < (row + R) * padded; i += 16) store(a.out + i, fill(0));
  if (begin >= end) return;
  score_rows<Stored, R>(a, row, begin / kTileKeys, (end - 1) / kTileKeys + 1);
  for (int r = row; r < row + R; ++r) {
    if (a.begin[r] < a.end[r]) soften_row(a, r);
  }
  if (all_begin >= all_end) {
    for (int r = row; r < row + R; ++r) value_rows<Stored, 1>(a, r, a.begin[r], a.end[r]);
    return;
  }
  for (int r = row; r < row + R; ++r) value_rows<Stored, 1>(a, r, a.begin[r], all_begin);
  value_rows<Stored, R>(a, row, all_begin, all_end);
  for (int r = row; r < row + R; ++r) value_rows<Stored, 1>(a, r, all_end, a.end[r]);
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

template <class Stored>
void attend(const AttendArgs& a) {
  for_row_blocks(a.rows, [&]<int R>(int row) { attend_rows<Stored, R>(a, row); });
}

void merge(float* largest, float* sum, float* out, float largest2, float sum2, const float* out2, int64_t padded) {
  const float top = *largest > largest2 ? *largest : largest2;
  const float keep1 = exponential(*largest - top), keep2 = exponential(largest2 - top);
  *sum = *sum * keep1 + sum2 * keep2;
  *largest = top;
  for (int64_t i = 0; i < padded; i += 16) store(out + i, multiply_add(load(out + i), fill(keep1), multiply(load(out2 + i), fill(keep2))));
}

}  // namespace
}  // namespace homenode
