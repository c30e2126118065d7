// Tiles of the block formats for many tokens. See linear/tiles.h for the values.
//
// Some parts of a group are unpacked once, for all the tokens at hand: their codes to bytes, their scales to factors,
// one for each of the eight q a row's scale can have. Then a tile needs no multiplication but those of the integer dot
// products and one fused multiply-add for each sum: the sums start as the bits of the row's anchor, so they end as
// floats that are 2^e times the sum above it, which one subtraction takes away. Subtractions and the rest go to units
// of the processor that the products do not need.
#pragma once
#include "linear/coded.h"

namespace homenode {
namespace {

// Codes of one line and vector.
template <PanelKind K>
HOMENODE_INLINE Ints panel_codes(const uint8_t* codes, int line, int v) {
  if constexpr (!K.nibbles) return load_codes(codes + kLineBytes * line + kVectorBytes * v);
  const Ints both = load_bytes(codes + kLineBytes * (line % 4) + kVectorBytes * v);
  return masked(line < 4 ? both : shift_right16<4>(both), 15);
}

template <Coding C, int Line = 0>
HOMENODE_INLINE void unpack_codes(const uint8_t* lines, uint8_t* codes) {
  constexpr int kMove = C.zero == 0 ? 0 : 128 - C.zero;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const uint8_t* high = lines + v * kVectorBytes;
    // Codes are smaller than 128 wherever they are moved, so that no byte carries into the next.
    const Ints moved = add_ints(line_codes<C, Line>(high, high + Packed<C>::high), broadcast_int(kMove * 0x01010101));
    store_ints(codes + kLineBytes * Line + kVectorBytes * v, moved);
  }
  if constexpr (Line < 7) unpack_codes<C, Line + 1>(lines, codes);
}

template <Coding C>
HOMENODE_INLINE void unpack_factors(const BlockScale (&block)[kVectors], const uint8_t* at, uint8_t* factors) {
  constexpr PanelKind K = panel_kind<C>();
  for (int h = 0; h < K.halves; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Floats scale = part_scale<C>(block[v], at, h, v);
#pragma GCC unroll 8
      for (int q = 0; q < kEighths; ++q) {
        const float times = 1.0f + 0.125f * float(q);
        auto* to = reinterpret_cast<float*>(factors + (kEighths * h + q) * kPanelFloats + kVectorBytes * v);
        store_floats(to, multiply(scale, broadcast_float(&times)));
      }
    }
  }
  if constexpr (K.minimum) {
    for (int h = 0; h < K.halves; ++h) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        auto* to = reinterpret_cast<float*>(factors + (kEighths * K.halves + h) * kPanelFloats + kVectorBytes * v);
        store_floats(to, part_minimum<C>(block[v], at, h, v));
      }
    }
  }
}

template <Coding C>
Panel unpack_panel(const uint8_t* packed, int64_t parts, PanelSpace& space) {
  using At = Packed<C>;
  uint8_t *codes = space.codes, *factors = space.factors;
  constexpr bool kStays = stays_packed(C);
  const Panel panel{kStays ? packed + At::head + At::scale + At::minimum : codes,
                    size_t(!kStays        ? kPanelPartCodes
                           : C.parts == 1 ? At::bytes
                                          : At::part),
                    factors};
  for (; parts > 0; parts -= C.parts, packed += At::bytes) {
    BlockScale block[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) block[v] = block_scale<C>(packed, v);
    const uint8_t* at = packed + At::head;
    for (int p = 0; p < C.parts; ++p, at += At::part) {
      unpack_factors<C>(block, at, factors);
      factors += panel_kind<C>().factors();
      if constexpr (!kStays) {
        unpack_codes<C>(at + At::scale + At::minimum, codes);
        codes += kPanelPartCodes;
      }
    }
  }
  return panel;
}

template <PanelKind K, int M, int H>
HOMENODE_INLINE void add_panel_sum(const uint8_t* codes, const uint8_t* factors, const uint8_t* x, size_t stride,
                                   Block<M>& f) {
  constexpr int kLines = 8 / K.halves, kFirst = H * kLines;
  Sums<M> sums;
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const auto* part = reinterpret_cast<const EncodedPart*>(x + m * stride);
    Ints start = as_ints(broadcast_float(&part->anchor));
    if constexpr (K.zero)
      start = add_ints(start, shift_left32<__builtin_ctz(K.zero | 256)>(broadcast_int(minus_sum<K.halves, H>(part))));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[m][v] = start;
  }
#pragma GCC unroll 8
  for (int line = kFirst; line < kFirst + kLines; ++line) {
    Ints w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) w[v] = panel_codes<K>(codes, line, v);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Ints row = broadcast_bytes4(x + m * stride + 4 * line);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[m][v] = add_wide_products(sums[m][v], w[v], row);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const auto* part = reinterpret_cast<const EncodedPart*>(x + m * stride);
    const Floats anchor = broadcast_float(&part->anchor);
    const uint8_t* factor = factors + kEighths * H * kPanelFloats + part->factor;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      f[m][v] = fma(subtract(as_floats(sums[m][v]), anchor),
                    load_floats(reinterpret_cast<const float*>(factor + kVectorBytes * v)), f[m][v]);
    }
  }
}

template <PanelKind K, int M, int H>
HOMENODE_INLINE void add_panel_minimum(const uint8_t* factors, const uint8_t* x, size_t stride, Block<M>& f) {
  const uint8_t* minimum = factors + (kEighths * K.halves + H) * kPanelFloats;
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Floats row = minus_total<K.halves, H>(reinterpret_cast<const EncodedPart*>(x + m * stride));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      f[m][v] = fma(load_floats(reinterpret_cast<const float*>(minimum + kVectorBytes * v)), row, f[m][v]);
  }
}

template <PanelKind K, int M>
void tile_panel(const Panel& panel, int64_t parts, const uint8_t* x, size_t stride, float* total, bool first,
                Prefetch prefetch) {
  const uint8_t *codes = panel.codes, *factors = panel.factors;
  Block<M> f;
  if (first) set_zero<M>(f);
  else load_sums<M>(total, f);
  for (; parts > 0; --parts, codes += panel.codes_stride, factors += K.factors(), x += sizeof(EncodedPart)) {
    prefetch_lines(prefetch);
    add_panel_sum<K, M, 0>(codes, factors, x, stride, f);
    if constexpr (K.halves == 2) add_panel_sum<K, M, 1>(codes, factors, x, stride, f);
    if constexpr (K.minimum) add_panel_minimum<K, M, 0>(factors, x, stride, f);
    if constexpr (K.minimum && K.halves == 2) add_panel_minimum<K, M, 1>(factors, x, stride, f);
    if constexpr (K.gap > 0) codes += parts % 8 == 1 ? K.gap : 0;
  }
  store_sums<M>(f, total);
}

template <PanelKind K, int M = 1>
constexpr void fill_panel_tiles(PanelTiles& tiles) {
  tiles.tile[M - 1] = tile_panel<K, M>;
  tiles.max_tokens = M;
  if constexpr (M < kPanelTokens) fill_panel_tiles<K, M + 1>(tiles);
}

template <int N = 0>
constexpr void fill_panels(LinearTable& table) {
  table.panels[N].unpack = unpack_panel<kCodings[N]>;
  table.panels[N].max_parts = kPanelParts / halves_of(kCodings[N]);
  fill_panel_tiles<panel_kind<kCodings[N]>()>(table.panels[N]);
  if constexpr (N + 1 < kCodingCount) fill_panels<N + 1>(table);
}

constexpr LinearTable with_panels(LinearTable table) {
  fill_panels(table);
  return table;
}

}  // namespace
}  // namespace homenode
