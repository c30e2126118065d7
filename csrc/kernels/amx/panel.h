// Block formats by tiles, from the panels the level avx512 unpacks. See linear_panel.h for the values and
// linear_table.h for what a panel holds.
//
// A panel's codes are what the products want: the eight lines of a part, or the four of half a part, are the weights of
// two tiles. Their integer sums are stored, part by part, and taken up by AVX-512 while the tiles multiply the next
// part.
#pragma once
#include <immintrin.h>

#include "kernels/amx/shapes.h"
#include "kernels/panel_kind.h"

namespace homenode {
namespace {

constexpr int kLeastTileTokens = 5;  // fewer leave most of a tile's rows empty
constexpr int kTileSums = kTileTokens * kGroupRows;  // of one half of a part, or the whole

// The eight lines of a part whose codes are the halves of four lines of bytes.
inline void split_nibbles(const uint8_t* packed, uint8_t* lines) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int i = 0; i < 4 * kLineBytes; i += 64) {
    const __m512i both = _mm512_loadu_si512(packed + i);
    _mm512_store_si512(lines + i, _mm512_and_si512(both, low));
    _mm512_store_si512(lines + 4 * kLineBytes + i, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
  }
}

// The products of some lines with up to 16 tokens, in the tiles of sums S and S + 1 and then at `out`: [token][32].
template <int S, int A>
inline void multiply_lines(const uint8_t* lines, const uint8_t* x, size_t stride, int32_t* out) {
  clear_tile<S>();
  clear_tile<S + 1>();
  load_tile<A>(x, stride);
  load_tile<6>(lines, kLineBytes);
  load_tile<7>(lines + kLineBytes / 2, kLineBytes);
  add_byte_products<S, A, 6>();
  add_byte_products<S + 1, A, 7>();
  store_tile_rows<S>(out, kSumStride);
  store_tile_rows<S + 1>(out + kTileRows, kSumStride);
}

// All sums of a part. Whole parts take turns with the tiles, so that one can be multiplied while the other is stored.
template <PanelKind K>
inline void multiply_part(bool odd, const uint8_t* codes, const uint8_t* x, size_t stride, int32_t* out) {
  alignas(64) uint8_t lines[K.nibbles ? kPanelPartCodes : 1];
  if constexpr (K.nibbles) {
    split_nibbles(codes, lines);
    codes = lines;
  }
  if constexpr (K.halves == 2) {
    multiply_lines<0, 4>(codes, x, stride, out);
    multiply_lines<2, 5>(codes + 4 * kLineBytes, x + kPartColumns / 2, stride, out + kTileSums);
  } else if (odd) {
    multiply_lines<2, 5>(codes, x, stride, out);
  } else {
    multiply_lines<0, 4>(codes, x, stride, out);
  }
}

inline __m512 fused(const float* factor, __m512 x, __m512 sum) {
  return _mm512_fmadd_ps(x, _mm512_loadu_ps(factor), sum);
}

// Adds a part's integer sums, as floats times their factors, to the totals of one token.
template <PanelKind K>
inline void add_token(const int32_t* products, const uint8_t* factors, const EncodedPart& part, float* sums) {
  __m512 f[2] = {_mm512_loadu_ps(sums), _mm512_loadu_ps(sums + kTileRows)};
  const __m512 anchor = _mm512_set1_ps(part.anchor);
  for (int h = 0; h < K.halves; ++h) {
    __m512i start = _mm512_castps_si512(anchor);
    if constexpr (K.zero != 0)
      start = _mm512_add_epi32(start,
                               _mm512_set1_epi32((K.halves == 1 ? part.minus_sum : part.minus_half_sum[h]) * K.zero));
    const auto* factor = reinterpret_cast<const float*>(factors + kEighths * h * kPanelFloats + part.factor);
    for (int v = 0; v < 2; ++v) {
      const __m512i sum = _mm512_add_epi32(_mm512_load_si512(products + h * kTileSums + v * kTileRows), start);
      f[v] = fused(factor + v * kTileRows, _mm512_sub_ps(_mm512_castsi512_ps(sum), anchor), f[v]);
    }
  }
  if constexpr (K.minimum) {
    for (int h = 0; h < K.halves; ++h) {
      const float total = K.halves == 1 ? part.minus_total : part.scale * float(part.minus_half_sum[h]);
      const auto* minimum = reinterpret_cast<const float*>(factors + (kEighths * K.halves + h) * kPanelFloats);
      for (int v = 0; v < 2; ++v) f[v] = fused(minimum + v * kTileRows, _mm512_set1_ps(total), f[v]);
    }
  }
  _mm512_storeu_ps(sums, f[0]);
  _mm512_storeu_ps(sums + kTileRows, f[1]);
}

template <PanelKind K>
void multiply_panel(int tokens, const Panel& panel, int64_t parts, const uint8_t* rows, size_t stride, float* sums,
                    bool first, Prefetch prefetch) {
  alignas(64) int32_t products[2][K.halves * kTileSums];
  for (int i = 0; first && i < tokens * kGroupRows; i += kTileRows) _mm512_storeu_ps(sums + i, _mm512_setzero_ps());
  use_shape(K.halves == 2 ? Factors::bytes16 : Factors::bytes32, tokens);
  const uint8_t *codes = panel.codes, *factors = panel.factors;
  multiply_part<K>(false, codes, rows, stride, products[0]);
  for (int64_t p = 0; p < parts; ++p, factors += K.factors(), rows += sizeof(EncodedPart)) {
    codes += panel.codes_stride + (K.gap > 0 && p % 8 == 7 ? K.gap : 0);
    if (p + 1 < parts) multiply_part<K>(p % 2 == 0, codes, rows + sizeof(EncodedPart), stride, products[(p + 1) % 2]);
    for (int i = 0; i < prefetch.lines; ++i, prefetch.from += kCacheLine) __builtin_prefetch(prefetch.from, 0, 2);
    for (int m = 0; m < tokens; ++m) {
      add_token<K>(products[p % 2] + m * kGroupRows, factors,
                   *reinterpret_cast<const EncodedPart*>(rows + size_t(m) * stride), sums + m * kGroupRows);
    }
  }
}

template <PanelKind K, int M>
void tile_panel(const Panel& panel, int64_t parts, const uint8_t* rows, size_t stride, float* sums, bool first,
                Prefetch prefetch) {
  multiply_panel<K>(M, panel, parts, rows, stride, sums, first, prefetch);
}

template <PanelKind K, int M = 1>
constexpr void fill_panel_tiles(PanelTiles& tiles) {
  tiles.tile[M - 1] = tile_panel<K, M>;
  tiles.max_tokens = M;
  if constexpr (M < kTileTokens) fill_panel_tiles<K, M + 1>(tiles);
}

template <int N = 0>
constexpr void fill_panels(LinearTable& table) {
  fill_panel_tiles<panel_kind<kCodings[N]>()>(table.panels[N]);
  table.panels[N].least_tokens = kLeastTileTokens;
  if constexpr (N + 1 < kCodingCount) fill_panels<N + 1>(table);
}

}  // namespace
}  // namespace homenode
