// Attention over bf16 KV memory by dot products of bfloat16 pairs; everything else of kernels.h as the level avx512 has
// it.
//
// One instruction multiplies two elements of 16 keys, or two tokens' values, as they lie in memory. It wants both
// factors as bfloat16: queries are rounded once when they are loaded, softmax weights when they are computed, and a
// row's sum is that of its rounded weights, so that what rounding adds to all of them alike cancels.
// tests/native/test_attention.py measures the error.
//
// What fixes the value of a row, bit by bit:
//   score      one chain of dot products over pairs of the head's elements in order, for each key;
//   largest    over the visible keys of the chunk;
//   sum        one chain of dot products with ones over runs of 32 keys counted from the chunk's start; lane i adds
//              keys 2i and 2i + 1, then sum_lanes;
//   output     for each element one chain of dot products over the pairs of keys with a visible one. The value of a key
//              that is not visible is taken as 0: it may be anything, and belong to another sequence.
// GCC 12 takes the deliberately undefined operands inside its own intrinsics for a fault of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "kernels/simd/avx512.h"

#include "kernels/avx512bf16/pair_rows.h"
#include "kernels/avx512bf16/softmax.h"
#include "kernels/simd/table.h"

namespace homenode {
namespace {

// bf16 elements of a cache line: two of each of 16 keys, or two tokens' values of 16 elements
constexpr int kPairLine = 2 * kTileKeys;

inline __m512i load_line(const void* p) { return _mm512_loadu_si512(p); }

float load_query_pairs(const float* q, int64_t head_dim, float scale, void* out) {
  auto* codes = static_cast<uint16_t*>(out);
  const __m512 scales = _mm512_set1_ps(scale);
  for (int64_t d = 0; d < head_dim; d += 32) {
    const uint32_t present = head_dim - d >= 32 ? ~0u : (1u << (head_dim - d)) - 1;
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(present), q + d);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(present >> 16), q + d + 16);
    _mm512_mask_storeu_epi16(codes + d, present, round_line(_mm512_mul_ps(low, scales), _mm512_mul_ps(high, scales)));
  }
  return 1;
}

// Calls work.operator()<R>(first row) for all rows: few of them at once, so that every key and value is read once only,
// many in blocks of four.
template <class Work>
inline void for_pair_blocks(int rows, Work work) {
  switch (rows) {
    case 5: return work.template operator()<5>(0);
    case 6: return work.template operator()<6>(0);
    case 7: return work.template operator()<7>(0);
    case 8: return work.template operator()<8>(0);
    default: return for_row_blocks<kPairRowBlock>(rows, work);
  }
}
inline int count_blocks(int rows) { return rows <= 8 ? 1 : (rows + kPairRowBlock - 1) / kPairRowBlock; }

// Tiles, or vectors of a head, beside R rows: about sixteen sums are enough to hide how long one takes.
constexpr int beside(int rows) { return rows > 4 ? 2 : 4; }

// The sums of some rows and some tiles of keys, or vectors of lanes of values.
template <int R, int C>
struct Sums {
  __m512 at[R][C];
  Sums() {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) at[r][c] = _mm512_setzero_ps();
    }
  }
  void store(float* out, int64_t row, int64_t column) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) _mm512_storeu_ps(out + r * row + c * column, at[r][c]);
    }
  }
  // One pair of each row times a line for each column.
  void add(const __m512bh (&lines)[C], const PairRows<R>& rows) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512bh x = broadcast_pair(rows[r]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) at[r][c] = _mm512_dpbf16_ps(at[r][c], lines[c], x);
    }
  }
};

// Scores of R rows against T tiles.
template <int R, int T>
__attribute__((noinline)) void score_pairs(const AttendArgs& a, Prefetch& prefetch, int row, int tile) {
  Sums<R, T> sums;
  const size_t query_bytes = static_cast<size_t>(a.head_dim) * sizeof(uint16_t);
  PairRows<R> queries(static_cast<const std::byte*>(a.queries) + static_cast<size_t>(row) * query_bytes, query_bytes);
  const uint16_t* keys[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) keys[t] = static_cast<const uint16_t*>(a.keys[tile + t]);
  PrefetchCursor cursor = prefetch.begin();
  for (int64_t left = a.head_dim; left > 0; left -= 2 * kStepsBetweenChecks) {
    prefetch.look(cursor);
    const int64_t steps = left < 2 * kStepsBetweenChecks ? left / 2 : kStepsBetweenChecks;
#pragma GCC unroll 1
    for (int64_t step = 0; step < steps; ++step, queries.advance()) {
      cursor.step();
      __m512bh k[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        k[t] = as_pairs(load_line(keys[t]));
        keys[t] += kPairLine;
      }
      sums.add(k, queries);
    }
  }
  prefetch.end(cursor);
  sums.store(a.scores + int64_t(row) * kChunkKeys + tile * kTileKeys, kChunkKeys, kTileKeys);
}

template <int R>
inline void score_pair_rows(const AttendArgs& a, Prefetch& prefetch, int row, int tile, int end) {
  constexpr int T = beside(R);
  for (; tile + T <= end; tile += T) score_pairs<R, T>(a, prefetch, row, tile);
  if (T > 3 && tile + 3 == end) return score_pairs<R, T == 4 ? 3 : 1>(a, prefetch, row, tile);
  if (T > 2 && tile + 2 == end) return score_pairs<R, T == 4 ? 2 : 1>(a, prefetch, row, tile);
  if (tile < end) score_pairs<R, 1>(a, prefetch, row, tile);
}

// Adds the values of the keys begin .. end - 1 (even both), which all R rows see, to the sums of C vectors of lanes
// starting at element d.
template <int R, int C>
inline void add_pairs(const AttendArgs& a, Prefetch& prefetch, int row, int64_t d, int begin, int end,
                      Sums<R, C>& sums) {
  PairRows<R> weights(weight_pairs(a, row) + begin, 2 * kChunkKeys * sizeof(uint16_t));
  const int64_t stride = 2 * int64_t(a.value_dim);
  PrefetchCursor cursor = prefetch.begin();
  while (begin < end) {
    prefetch.look(cursor);
    const int tile = begin / kTileKeys, tile_end = (tile + 1) * kTileKeys < end ? (tile + 1) * kTileKeys : end;
    const uint16_t* values = static_cast<const uint16_t*>(a.values[tile]) + begin % kTileKeys / 2 * stride + 2 * d;
#pragma GCC unroll 1
    for (; begin < tile_end; begin += 2, weights.advance(), values += stride) {
      cursor.step();
      __m512bh v[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) v[c] = as_pairs(load_line(values + kPairLine * c));
      sums.add(v, weights);
    }
  }
  prefetch.end(cursor);
}

// The same of keys that only some of the rows see.
template <int R, int C>
inline void add_some_pairs(const AttendArgs& a, int row, int64_t d, int begin, int end, Sums<R, C>& sums) {
  for (; begin < end; begin += 2) {
    const auto* values =
        static_cast<const uint16_t*>(a.values[begin / kTileKeys]) + begin % kTileKeys * int64_t(a.value_dim) + 2 * d;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const uint32_t visible = visible_bits(a.begin[row + r], a.end[row + r], begin) & 3;
      // A row that sees neither adds nothing, not even a zero
      const __mmask16 any = static_cast<__mmask16>(visible ? 0xffff : 0);
      const __m512i kept =
          _mm512_set1_epi32(static_cast<int>((visible & 1 ? 0xffffu : 0) | (visible & 2 ? 0xffff0000u : 0)));
      const __m512bh x = broadcast_pair(weight_pairs(a, row + r) + begin);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const __m512 added =
            _mm512_dpbf16_ps(sums.at[r][c], as_pairs(_mm512_and_si512(load_line(values + kPairLine * c), kept)), x);
        // GCC 12 takes only eight bits of the masked product's mask
        sums.at[r][c] = _mm512_mask_blend_ps(any, sums.at[r][c], added);
      }
    }
  }
}

// The outputs of R rows, C vectors of lanes starting at element d: the keys only some of them see come before and after
// those that all see.
template <int R, int C>
__attribute__((noinline)) void value_pairs(const AttendArgs& a, Prefetch& prefetch, const Seen& seen, int row,
                                           int64_t d) {
  Sums<R, C> sums;
  const int first = seen.begin & ~1, last = (seen.end + 1) & ~1;
  const int begin = (seen.all_begin + 1) & ~1, end = seen.all_end & ~1;  // what all see, in whole pairs
  if (begin < end) {
    add_some_pairs(a, row, d, first, begin, sums);
    add_pairs(a, prefetch, row, d, begin, end, sums);
    add_some_pairs(a, row, d, end, last, sums);
  } else {
    add_some_pairs(a, row, d, first, last, sums);
  }
  sums.store(a.out + row * a.out_stride + d, a.out_stride, 16);
}

template <int R>
inline void weigh_pair_rows(const AttendArgs& a, Prefetch& prefetch, const Seen& seen, int row) {
  constexpr int C = beside(R);
  const int64_t padded = padded_head(a.value_dim);
  int64_t d = 0;
  for (; d + 16 * C <= padded; d += 16 * C) value_pairs<R, C>(a, prefetch, seen, row, d);
  for (; d < padded; d += 16) value_pairs<R, 1>(a, prefetch, seen, row, d);
}

// Steps of all loops together, about.
inline int64_t count_steps(const AttendArgs& a) {
  const Seen any = seen_by(a, 0, a.rows);
  const int blocks = count_blocks(a.rows), columns = beside((a.rows + blocks - 1) / blocks);
  const int64_t tiles = any.last_tile() - any.first_tile();
  return blocks * tiles * (a.head_dim / 2 + padded_head(a.value_dim) / 2) / columns;
}

// `seen`: by the first row of a block, [kQueryRows].
inline void score_all_pairs(const AttendArgs& a, Prefetch& prefetch, Seen* seen) {
  for_pair_blocks(a.rows, [&]<int R>(int row) { seen[row] = seen_by(a, row, R); });
  // A run of keys stays in the first cache while all rows are multiplied with it
  for (int tile = 0; tile < kChunkTiles; tile += kRun) {
    for_pair_blocks(a.rows, [&]<int R>(int row) {
      const int first = seen[row].first_tile(), last = seen[row].last_tile();
      score_pair_rows<R>(a, prefetch, row, first > tile ? first : tile, last < tile + kRun ? last : tile + kRun);
    });
  }
}

void score_bf16_pairs(const AttendArgs& a) {
  Prefetch prefetch(a, 0);
  Seen seen[kQueryRows];
  score_all_pairs(a, prefetch, seen);
}

void attend_pairs(const AttendArgs& a) {
  Prefetch prefetch(a, a.prefetch_ranges ? count_steps(a) : 0);
  Seen seen[kQueryRows];
  score_all_pairs(a, prefetch, seen);
  for_pair_blocks(a.rows, [&]<int R>(int row) { apply_softmax_pairs<R>(a, seen[row], row); });
  for_value_strips<uint16_t>(a, [&](const AttendArgs& strip) {
    for_pair_blocks(a.rows, [&]<int R>(int row) { weigh_pair_rows<R>(strip, prefetch, seen[row], row); });
  });
}

constexpr Kernels with_pairs(Kernels table) {
  table.kv[1].query_bytes = 2;
  table.kv[1].load_query = load_query_pairs;
  table.kv[1].attend = attend_pairs;
  table.kv[1].score = score_bf16_pairs;
  return table;
}

}  // namespace

extern const Kernels kernels_avx512bf16;
const Kernels kernels_avx512bf16 = with_pairs(kTable);

}  // namespace homenode
