// Attention over keys and values that are kept as codes of a scale, in whole numbers. `Coded` says how the codes of one
// type lie: a type whose codes fit 8 bits is another struct of the same names.
//
// Queries are codes of 15 bits and a scale for each row, so a score is an exact 32-bit sum times the query's scale,
// then the key's. Softmax weights times the values' scales are rounded to codes of 15 bits again, against the largest
// of the row's chunk, so the weighted values are an exact 32-bit sum times one scale. Both roundings are some 200 times
// finer than that of the keys and values themselves.
//
// What fixes the value of a row is what attention/attention.h says, but that sums of products, being exact, have no
// order; and the largest weight is taken over the row's own visible keys. A key a row does not see has the weight 0:
// its codes may be anything, and its scale is never used.
#pragma once
#include "kernels/simd/attention.h"

namespace homenode {
namespace {

// How codes lie (see kv/cache.h): a `Pair` is two elements of a key, or those of two tokens' values, and pairs of 16
// keys, or of 16 elements of values, lie beside each other. Codes are at most kKvLimit. `Element`: what tiles are
// turned by.
struct StoredInt8 {
  using Element = int8_t;
  using Pair = uint16_t;
  // The codes of 16 pairs, as numbers of 16 bits.
  static PairLanes load(const Pair* p) { return load_code_pairs(reinterpret_cast<const int8_t*>(p)); }
};

// The scales of a tile's tokens, behind its codes.
template <class Coded>
inline Lanes load_scales(const void* tile, int64_t head_dim) {
  const auto* pairs = static_cast<const typename Coded::Pair*>(tile);
  return load(reinterpret_cast<const float*>(pairs + kTileKeys / 2 * head_dim));
}

// A row's codes of weights take the place of its scores.
inline int16_t* weight_codes(const AttendArgs& a, int row) {
  return reinterpret_cast<int16_t*>(a.scores + int64_t(row) * kChunkKeys);
}

// sums[r][t] += the pair at x[r * stride] times the pairs of codes at at[t].
template <class Coded, int R, int T>
HOMENODE_ATTEND void add_codes(const int16_t* x, int64_t stride, const typename Coded::Pair* const (&at)[T],
                               IntLanes (&sums)[R][T]) {
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const PairLanes codes = Coded::load(at[t]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) add_products(fill_pair(x + r * stride), codes, sums[r][t]);
  }
}

// Scores of R rows against T tiles.
template <class Coded, int R, int T>
__attribute__((noinline)) void score_codes(const AttendArgs& a, Prefetch& prefetch, int row, int tile) {
  IntLanes sums[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[r][t] = zero_ints();
  }
  const int64_t head_dim = a.head_dim;
  const int16_t* q = static_cast<const int16_t*>(a.queries) + row * head_dim;
  using Pair = typename Coded::Pair;
  const Pair* keys[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) keys[t] = static_cast<const Pair*>(a.keys[tile + t]);
  PrefetchCursor cursor = prefetch.begin();
  for (int64_t d = 0; d < head_dim;) {
    prefetch.look(cursor);
    const int64_t end = d + 2 * kStepsBetweenChecks < head_dim ? d + 2 * kStepsBetweenChecks : head_dim;
#pragma GCC unroll 1
    for (; d < end; d += 2) {
      cursor.step();
      add_codes<Coded>(q + d, head_dim, keys, sums);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) keys[t] += kTileKeys;
    }
  }
  prefetch.end(cursor);
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const Lanes scales = load_scales<Coded>(a.keys[tile + t], a.head_dim);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Lanes scaled = multiply(multiply(to_floats(sums[r][t]), fill(a.query_scales[row + r])), scales);
      store(a.scores + int64_t(row + r) * kChunkKeys + (tile + t) * kTileKeys, scaled);
    }
  }
}

template <class Coded, int R>
inline void score_code_rows(const AttendArgs& a, Prefetch& prefetch, int row, int tile, int tile_end) {
  constexpr int T = lanes_beside(R);
  for (; tile + T <= tile_end; tile += T) score_codes<Coded, R, T>(a, prefetch, row, tile);
  for (; tile < tile_end; ++tile) score_codes<Coded, R, 1>(a, prefetch, row, tile);
}

// A row's scores become weights times the values' scales, 0 where masked. Returns the largest, NaN where a visible one
// is.
template <class Coded>
inline float scale_weights(const AttendArgs& a, int row) {
  const Lanes highest = fill(a.largest[row]);
  Lanes top = fill(0), sum = fill(0), scaled_sum = fill(0);
  const void* const* values = a.turned ? a.keys : a.values;
  for_tiles(a, row, [&]<bool Whole>(int t) {
    const Lanes weights = weights_of<Whole>(a, row, t, highest);
    const Lanes scaled = visible<Whole>(a, row, t, multiply(weights, load_scales<Coded>(values[t], a.head_dim)), 0);
    sum = add(sum, weights);
    top = larger(scaled, top);  // a NaN is passed over here and shows in the sum
    scaled_sum = add(scaled_sum, scaled);
    store(tile_scores(a, row, t), scaled);
  });
  a.sum[row] = sum_lanes(sum);
  const float total = sum_lanes(scaled_sum);
  return total != total ? total : largest_lane(top);
}

// Codes of the weights of a row, 0 in those of the tiles it sees nothing of. Returns what the codes are times: NaN if a
// visible weight is NaN.
template <class Coded>
inline float encode_weights(const AttendArgs& a, int row, int tile_begin, int tile_end) {
  const float largest = scale_weights<Coded>(a, row);
  const bool usable = largest >= 1e-30f;  // the inverse of a smaller one could overflow
  const int first = usable ? a.begin[row] / kTileKeys : tile_end,
            last = usable ? (a.end[row] - 1) / kTileKeys : tile_end;
  const Lanes inverse = fill(usable ? static_cast<float>(kWeightLimit) / largest : 0);
  const float* scores = a.scores + int64_t(row) * kChunkKeys;
  int16_t* codes = weight_codes(a, row);
  for (int t = tile_begin; t < tile_end; ++t) {  // upwards: a tile's codes end before the next tile's scores
    const bool seen = t >= first && t <= last;
    store_codes(codes + t * kTileKeys, seen ? multiply(load(scores + t * kTileKeys), inverse) : fill(0));
  }
  return usable ? largest / static_cast<float>(kWeightLimit) : largest != largest ? largest : 0;
}

// The outputs of R rows, C vectors of lanes starting at element d.
template <class Coded, int R, int C>
__attribute__((noinline)) void value_codes(const AttendArgs& a, Prefetch& prefetch, int row, int64_t d, int tile_begin,
                                           int tile_end, const float* scales) {
  IntLanes sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = zero_ints();
  }
  PrefetchCursor cursor = prefetch.begin();
  for (int t = tile_begin; t < tile_end; ++t) {
    const int16_t* weights = weight_codes(a, row) + t * kTileKeys;
    const typename Coded::Pair* values[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) values[c] = static_cast<const typename Coded::Pair*>(a.values[t]) + d + 16 * c;
    prefetch.look(cursor);
#pragma GCC unroll 1
    for (int key = 0; key < kTileKeys; key += 2) {
      cursor.step();
      add_codes<Coded>(weights + key, 2 * kChunkKeys, values, sums);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) values[c] += a.value_dim;
    }
  }
  prefetch.end(cursor);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      store(a.out + (row + r) * a.out_stride + d + 16 * c, multiply(to_floats(sums[r][c]), fill(scales[r])));
  }
}

// `scales`: of each row what encode_weights returned.
template <class Coded, int R>
inline void weigh_code_rows(const AttendArgs& a, Prefetch& prefetch, int row, const float* scales) {
  const Seen seen = seen_by(a, row, R);
  const int first = seen.first_tile(), last = seen.last_tile();
  const int64_t padded = padded_head(a.value_dim);
  constexpr int C = lanes_beside(R);
  int64_t d = 0;
  for (; d + 16 * C <= padded; d += 16 * C) value_codes<Coded, R, C>(a, prefetch, row, d, first, last, scales);
  for (; d < padded; d += 16) value_codes<Coded, R, 1>(a, prefetch, row, d, first, last, scales);
}

template <class Coded>
inline void score_all_codes(const AttendArgs& a, Prefetch& prefetch) {
  for_key_runs<kCodedRowBlock>(
      a, [&]<int R>(int row, int begin, int end) { score_code_rows<Coded, R>(a, prefetch, row, begin, end); });
}

template <class Coded>
void score_coded(const AttendArgs& a) {
  Prefetch prefetch(a, 0);
  score_all_codes<Coded>(a, prefetch);
}

template <class Coded>
void attend_coded(const AttendArgs& a) {
  Prefetch prefetch(a, a.prefetch_ranges ? count_steps<kCodedRowBlock>(a, 2) : 0);
  score_all_codes<Coded>(a, prefetch);
  find_largest_scores(a);
  float scales[kQueryRows];
  for_row_blocks<kCodedRowBlock>(a.rows, [&]<int R>(int row) {
    const Seen seen = seen_by(a, row, R);
    for (int r = row; r < row + R; ++r) scales[r] = encode_weights<Coded>(a, r, seen.first_tile(), seen.last_tile());
  });
  for_value_strips<typename Coded::Element>(a, [&](const AttendArgs& strip) {
    for_row_blocks<kCodedRowBlock>(
        a.rows, [&]<int R>(int row) { weigh_code_rows<Coded, R>(strip, prefetch, row, scales + row); });
  });
}

}  // namespace
}  // namespace homenode
