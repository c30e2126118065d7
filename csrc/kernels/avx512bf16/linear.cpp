// AVX-512 with dot products of bfloat16 pairs: BF16 matrices by vdpbf16ps, everything else as the level avx512 has it.
//
// One instruction multiplies two columns of 16 rows of weights, where float32 takes a shift, a mask and two
// multiply-adds. It wants both factors as bfloat16, so activations are rounded once before a product (round_columns).
// See linear/tiles.h for the arithmetic. GCC 12 takes the deliberately undefined operands inside its own intrinsics for
// a fault of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "kernels/avx512bf16/pair_rows.h"
#include "linear/table.h"

namespace homenode {
namespace {

constexpr int kVectors = 2;       // of 16 rows each
constexpr int kVectorBytes = 64;  // 16 rows x 2 columns x 2 bytes
// 12 x 2 sums, two vectors of weights and one of activations fill 27 of 32 registers. From 8 tokens on the multipliers
// are busy all the time.
constexpr int kTokens = 12;

// Asks for the weights that are due with two columns: so many lines, known when compiled, as a decision in each step
// costs more than what it asks for. With many tokens the instructions in flight reach only a few lines ahead, and what
// the processor looks ahead by itself is not enough: asked for early, the weights of eight tokens come from memory as
// fast as those of one.
template <int Lines, bool IntoL2>
inline void prefetch_lines(const char* from) {
#pragma GCC unroll 2
  for (int i = 0; i < Lines; ++i)
    IntoL2 ? _mm_prefetch(from + kCacheLine * i, _MM_HINT_T1) : _mm_prefetch(from + kCacheLine * i, _MM_HINT_T0);
}

template <int M, int Lines, bool IntoL2>
void tile_prefetching(const uint8_t* packed, int64_t columns, const uint8_t* rows, size_t stride, float* sums,
                      const uint8_t* prefetch) {
  __m512 f[M][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    f[m][0] = _mm512_loadu_ps(sums + kGroupRows * m);
    f[m][1] = _mm512_loadu_ps(sums + kGroupRows * m + 16);
  }
  PairRows<M> at(rows, stride);
  for (; columns > 0; columns -= 2, packed += kVectors * kVectorBytes, at.advance()) {
    prefetch_lines<Lines, IntoL2>(reinterpret_cast<const char*>(prefetch));
    prefetch += Lines * kCacheLine;
    const __m512bh first = reinterpret_cast<__m512bh>(_mm512_loadu_si512(packed));
    const __m512bh second = reinterpret_cast<__m512bh>(_mm512_loadu_si512(packed + kVectorBytes));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512bh pair = broadcast_pair(at[m]);
      f[m][0] = _mm512_dpbf16_ps(f[m][0], first, pair);
      f[m][1] = _mm512_dpbf16_ps(f[m][1], second, pair);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    _mm512_storeu_ps(sums + kGroupRows * m, f[m][0]);
    _mm512_storeu_ps(sums + kGroupRows * m + 16, f[m][1]);
  }
}

template <int M>
void tile_pairs(const uint8_t* packed, int64_t columns, const uint8_t* rows, size_t stride, float* sums,
                Prefetch prefetch) {
  // A single tile asks for as much as it multiplies, several for less
  static_assert(kVectors * kVectorBytes == 2 * kCacheLine);
  const auto tile = prefetch.lines == 0 ? tile_prefetching<M, 0, false>
                    : prefetch.into_l2
                        ? prefetch.lines == 1 ? tile_prefetching<M, 1, true> : tile_prefetching<M, 2, true>
                    : prefetch.lines == 1 ? tile_prefetching<M, 1, false>
                                          : tile_prefetching<M, 2, false>;
  tile(packed, columns, rows, stride, sums, prefetch.from);
}

// 32 columns at a time; those beyond the last are zeros.
void round_columns(const float* x, int64_t columns, uint16_t* out) {
  for (; columns > 0; columns -= kPartColumns, x += kPartColumns, out += kPartColumns) {
    const uint32_t present = columns >= kPartColumns ? ~0u : (1u << columns) - 1;
    const __m512 low = _mm512_maskz_loadu_ps(__mmask16(present), x),
                 high = _mm512_maskz_loadu_ps(__mmask16(present >> 16), x + 16);
    _mm512_storeu_si512(out, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

template <int M = 1>
constexpr void fill_pairs(Tiles& tiles) {
  tiles.tile[M - 1] = tile_pairs<M>;
  tiles.max_tokens = M;
  if constexpr (M < kTokens) fill_pairs<M + 1>(tiles);
}

LinearTable make_table() {
  LinearTable table = linear_table_avx512();
  fill_pairs(table.floats[2]);
  table.round = round_columns;
  return table;
}

}  // namespace

const LinearTable& linear_table_avx512bf16() {
  static const LinearTable table = make_table();
  return table;
}

}  // namespace homenode
