// Block formats by tiles, for many tokens: some parts of a group are unpacked once, for all the tokens at hand, then
// multiplied with 12 tokens at a time. See linear/tiles.h for the values.
//
// The panels are this level's own. Codes are signed bytes, less their zero, in the lines of the packed layout: the
// eight lines of a part are the weights of two tiles. The factors of a part are the scales of its rows.
//
// Tiles multiply a part into memory while AVX-512 turns the integer sums of the part before into floats, scales them
// and adds them to totals that stay in registers for all parts of the panel: 12 tokens have 24 registers of totals.
//
// What that takes was measured on one machine, a Xeon in a virtual machine, in cycles of the core for a part of 32 rows
// and 12 tokens: 14 for the products, 40 for storing their two tiles (20 each, whatever their height), and 36 for the
// 72 vector instructions that scale the sums, alone. Beside any tile instruction, even one that clears a tile, the
// processor runs one vector instruction of 64 bytes a cycle in place of two, so that it is 78 for all. AVX-512 alone
// has 192 dot products and 48 further instructions for the same part, two a cycle, and nothing to unpack for few
// tokens. Formats with two scales a part or with minimums have so many more vector instructions that tiles gain
// nothing: the level takes AVX-512's products for these.
#pragma once
#include "kernels/amx/shapes.h"
#include "linear/coded.h"

namespace homenode {
namespace {

constexpr int kPanelTileTokens = 12;
constexpr int kLeastPanelTokens = 48;

constexpr bool suits_tiles(const Coding& c) { return halves_of(c) == 1 && c.minimum == Minimum::none; }

template <Coding C, int Line = 0>
HOMENODE_INLINE void unpack_signed(const uint8_t* lines, uint8_t* codes) {
  const __m512i zero = _mm512_set1_epi8(char(C.zero));
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const uint8_t* high = lines + v * kVectorBytes;
    Ints line = line_codes<C, Line>(high, high + Packed<C>::high);
    if constexpr (C.zero != 0) line = _mm512_sub_epi8(line, zero);
    store_ints(codes + kLineBytes * Line + kVectorBytes * v, line);
  }
  if constexpr (Line < 7) unpack_signed<C, Line + 1>(lines, codes);
}

template <Coding C>
Panel unpack_panel(const uint8_t* packed, int64_t parts, PanelSpace& space) {
  using At = Packed<C>;
  uint8_t *codes = space.codes, *factors = space.factors;
  for (; parts > 0; parts -= C.parts, packed += At::bytes) {
    BlockScale block[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) block[v] = block_scale<C>(packed, v);
    for (const uint8_t* at = packed + At::head; at < packed + At::bytes; at += At::part) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        store_floats(reinterpret_cast<float*>(factors + v * kVectorBytes), part_scale<C>(block[v], at, 0, v));
      unpack_signed<C>(at + At::scale, codes);
      codes += kPanelPartCodes, factors += kPanelFloats;
    }
  }
  return {space.codes, kPanelPartCodes, space.factors};
}

// The products of a part with up to 16 tokens, in the tiles of sums S and S + 1 and then at `out`: [token][32].
template <int S, int A>
HOMENODE_INLINE void multiply_part(const uint8_t* lines, const uint8_t* x, size_t stride, int32_t* out) {
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

// Adds the integer sums of a part, as floats times their scales, to the totals.
template <int M>
HOMENODE_INLINE void add_scaled(const int32_t* products, const uint8_t* factors, const uint8_t* x, size_t stride,
                                Block<M>& f) {
  Floats scale[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) scale[v] = load_floats(reinterpret_cast<const float*>(factors) + kLanes * v);
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    const Floats row = broadcast_float(&reinterpret_cast<const EncodedPart*>(x + m * stride)->scale);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Ints sums = _mm512_load_si512(products + m * kGroupRows + v * kLanes);
      f[m][v] = fma(multiply(to_floats(sums), row), scale[v], f[m][v]);
    }
  }
}

template <int M>
void tile_panel(const Panel& panel, int64_t parts, const uint8_t* rows, size_t stride, float* sums, bool first,
                Prefetch prefetch) {
  alignas(64) int32_t products[2][M * kGroupRows];
  use_shape(Factors::bytes, M);
  Block<M> f;
  if (first) set_zero<M>(f);
  else load_sums<M>(sums, f);
  const uint8_t *codes = panel.codes, *factors = panel.factors;
  multiply_part<0, 4>(codes, rows, stride, products[0]);
  for (int64_t p = 0; p < parts; ++p, factors += kPanelFloats, rows += sizeof(EncodedPart)) {
    codes += kPanelPartCodes;
    // Parts take turns with the tiles, so that one can be multiplied while the other is stored
    if (p + 1 < parts && p % 2 == 0) multiply_part<2, 5>(codes, rows + sizeof(EncodedPart), stride, products[1]);
    if (p + 1 < parts && p % 2 == 1) multiply_part<0, 4>(codes, rows + sizeof(EncodedPart), stride, products[0]);
    prefetch.into_l2 = true;
    prefetch_lines(prefetch);
    add_scaled<M>(products[p % 2], factors, rows, stride, f);
  }
  store_sums<M>(f, sums);
}

template <int M = 1>
constexpr void fill_panel_tiles(PanelTiles& tiles) {
  tiles.tile[M - 1] = tile_panel<M>;
  tiles.max_tokens = M;
  if constexpr (M < kPanelTileTokens) fill_panel_tiles<M + 1>(tiles);
}

template <int N = 0>
constexpr void fill_panels(LinearTable& table) {
  if constexpr (suits_tiles(kCodings[N])) {
    table.panels[N].unpack = unpack_panel<kCodings[N]>;
    table.panels[N].max_parts = kPanelParts;
    table.panels[N].least_tokens = kLeastPanelTokens;
    fill_panel_tiles(table.panels[N]);
  }
  if constexpr (N + 1 < kCodingCount) fill_panels<N + 1>(table);
}

}  // namespace
}  // namespace homenode
