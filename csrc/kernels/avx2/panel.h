// Tiles of the block formats for many tokens, where products of bytes are summed to 16 bits. See linear/tiles.h for the
// values.
//
// Some parts of a group are unpacked once, for all the tokens at hand, and two tokens are multiplied with them at a
// time: eight sums, two activations, and the weights and products under way fill the sixteen registers. How codes are
// unpacked and multiplied depends on their size:
//   up to six bits   unsigned bytes times signed bytes. The sums of two products go on in 16 bits for as many lines as
//                    cannot overflow (run_lines), all eight of most formats: two instructions for 32 products
//   bytes            two products of bytes alone fill 16 bits, and widening each takes two more instructions, taking
//                    care of the sign another. Codes of 16 bits take the same four instructions for 32 products, and no
//                    widening
// The compiler would rather sum products as a tree, which has no room in sixteen registers, and load what two products
// take twice: hence in_register.
#pragma once
#include "kernels/simd/in_register.h"
#include "linear/coded.h"

namespace homenode {
namespace {

constexpr int kPanelTokens = 2;

// Codes that are multiplied as 16-bit numbers, less their zero.
constexpr bool is_wide(const Coding& c) { return c.zero == 128; }
constexpr int kWidePart = 2 * kPanelPartCodes;
constexpr int kWideParts = sizeof(PanelSpace::codes) / kWidePart;
constexpr int kWideCodes = 2 * kPartColumns;  // bytes of a token's

// 16-bit numbers: the even bytes and the odd ones, as signed.
HOMENODE_INLINE Ints even_bytes(Ints x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
HOMENODE_INLINE Ints odd_bytes(Ints x) { return _mm256_srai_epi16(x, 8); }

// A line of bytes, or of the even columns' codes and then the odd ones'.
template <Coding C, int Line = 0>
HOMENODE_INLINE void unpack_lines(const uint8_t* lines, uint8_t* codes) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const uint8_t* high = lines + v * kVectorBytes;
    const Ints w = line_codes<C, Line>(high, high + Packed<C>::high);
    if constexpr (is_wide(C)) {
      const Ints less_zero = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
      store_ints(codes + 2 * kLineBytes * Line + kVectorBytes * v, even_bytes(less_zero));
      store_ints(codes + 2 * kLineBytes * Line + kLineBytes + kVectorBytes * v, odd_bytes(less_zero));
    } else {
      store_ints(codes + kLineBytes * Line + kVectorBytes * v, w);
    }
  }
  if constexpr (Line < 7) unpack_lines<C, Line + 1>(lines, codes);
}

// Of a part: the scales of its sums, and then the minimums.
template <Coding C>
constexpr int kPartScales = halves_of(C) * (C.minimum == Minimum::none ? 1 : 2) * kPanelFloats;

template <Coding C>
HOMENODE_INLINE void unpack_scales(const BlockScale (&block)[kVectors], const uint8_t* at, uint8_t* scales) {
  for (int h = 0; h < halves_of(C); ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      auto* to = reinterpret_cast<float*>(scales + kPanelFloats * h + kVectorBytes * v);
      store_floats(to, part_scale<C>(block[v], at, h, v));
      if constexpr (C.minimum != Minimum::none)
        store_floats(to + halves_of(C) * kGroupRows, part_minimum<C>(block[v], at, h, v));
    }
  }
}

template <Coding C>
Panel unpack_panel(const uint8_t* packed, int64_t parts, PanelSpace& space) {
  using At = Packed<C>;
  constexpr int kCodes = is_wide(C) ? kWidePart : kPanelPartCodes;
  uint8_t *codes = space.codes, *scales = space.factors;
  for (; parts > 0; parts -= C.parts, packed += At::bytes) {
    BlockScale block[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) block[v] = block_scale<C>(packed, v);
    const uint8_t* at = packed + At::head;
    for (int p = 0; p < C.parts; ++p, at += At::part, codes += kCodes, scales += kPartScales<C>) {
      unpack_scales<C>(block, at, scales);
      unpack_lines<C>(at + At::scale + At::minimum, codes);
    }
  }
  return {space.codes, kCodes, space.factors};
}

// f += (integer sum * d_row) * scale. What does not depend on the sums is multiplied first where that is exact too (see
// linear/tiles.h), so that less is left to do in turn once they are known; the exponents of other scales may leave the
// range.
template <Coding C>
HOMENODE_INLINE Floats add_product(Ints sum, Floats row, Floats scale, Floats f) {
  if constexpr (C.scale_bf16) return fma(multiply(to_floats(sum), row), scale, f);
  else return fma(to_floats(sum), multiply(row, scale), f);
}

template <Coding C, int M, int H>
HOMENODE_INLINE void add_scaled(const Sums<M>& sums, const uint8_t* scales, const uint8_t* x, size_t stride,
                                Block<M>& f) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const auto* part = reinterpret_cast<const EncodedPart*>(x + m * stride);
    const Floats row = broadcast_float(&part->scale);
    Ints start = zero_ints();
    if constexpr (C.zero != 0 && !is_wide(C))
      start = shift_left32<__builtin_ctz(C.zero | 256)>(broadcast_int(minus_sum<halves_of(C), H>(part)));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Ints sum = sums[m][v];
      if constexpr (C.zero != 0 && !is_wide(C)) sum = add_ints(sum, start);
      f[m][v] = add_product<C>(
          sum, row, load_floats(reinterpret_cast<const float*>(scales + kPanelFloats * H + kVectorBytes * v)), f[m][v]);
    }
  }
}

template <Coding C, int M, int H>
HOMENODE_INLINE void add_minimums(const uint8_t* scales, const uint8_t* x, size_t stride, Block<M>& f) {
  const uint8_t* minimum = scales + kPanelFloats * (halves_of(C) + H);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Floats row = minus_total<halves_of(C), H>(reinterpret_cast<const EncodedPart*>(x + m * stride));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      f[m][v] = fma(load_floats(reinterpret_cast<const float*>(minimum + kVectorBytes * v)), row, f[m][v]);
  }
}

template <Coding C, int M, int H>
HOMENODE_INLINE void sum_bytes(const uint8_t* codes, const uint8_t* x, size_t stride, Sums<M>& sums) {
  constexpr int kRun = kRunLines<C>, kFirst = H * kSumLines<C>;
  Sums<M> run;
#pragma GCC unroll 8
  for (int line = 0; line < kSumLines<C>; ++line) {
    Ints row[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) row[m] = in_register(broadcast_bytes4(x + m * stride + 4 * (kFirst + line)));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Ints w = in_register(load_bytes(codes + kLineBytes * (kFirst + line) + kVectorBytes * v));
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const Ints products = _mm256_maddubs_epi16(w, row[m]);
        run[m][v] = line % kRun == 0 ? products : in_register(_mm256_add_epi16(run[m][v], products));
      }
    }
    if (line % kRun != kRun - 1) continue;
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Ints widened = _mm256_madd_epi16(run[m][v], _mm256_set1_epi16(1));
        sums[m][v] = line < kRun ? widened : in_register(add_ints(sums[m][v], widened));
      }
    }
  }
}

// Asks for a part of the tile after this one: a token's parts are too few in a row for the processor to see them
// coming, and those of many tokens lie in the third cache.
template <int M>
HOMENODE_INLINE void expect_next(const uint8_t* x, size_t stride) {
#pragma GCC unroll 8
  for (int m = M; m < 2 * M; ++m) __builtin_prefetch(x + m * stride, 0, 3);
}

template <Coding C, int M>
void tile_bytes(const Panel& panel, int64_t parts, const uint8_t* x, size_t stride, float* total, bool first,
                Prefetch prefetch) {
  constexpr bool kMinimum = C.minimum != Minimum::none, kTwo = halves_of(C) == 2;
  const uint8_t *codes = panel.codes, *scales = panel.factors;
  Block<M> f;
  if (first) set_zero<M>(f);
  else load_sums<M>(total, f);
  for (; parts > 0; --parts, codes += kPanelPartCodes, scales += kPartScales<C>, x += sizeof(EncodedPart)) {
    prefetch_lines(prefetch);
    expect_next<M>(x, stride);
    Sums<M> sums;
    sum_bytes<C, M, 0>(codes, x, stride, sums);
    add_scaled<C, M, 0>(sums, scales, x, stride, f);
    if constexpr (kTwo) {
      sum_bytes<C, M, 1>(codes, x, stride, sums);
      add_scaled<C, M, 1>(sums, scales, x, stride, f);
    }
    if constexpr (kMinimum) add_minimums<C, M, 0>(scales, x, stride, f);
    if constexpr (kMinimum && kTwo) add_minimums<C, M, 1>(scales, x, stride, f);
  }
  store_sums<M>(f, total);
}

template <int M>
HOMENODE_INLINE void sum_wide(const uint8_t* codes, const uint8_t* wide, Sums<M>& sums) {
#pragma GCC unroll 16
  for (int line = 0; line < 16; ++line) {  // of even columns, of odd ones, and so on
    Ints row[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      row[m] = in_register(broadcast_bytes4(wide + m * kWideCodes + line % 2 * kPartColumns + 4 * (line / 2)));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Ints w = in_register(load_bytes(codes + kLineBytes * line + kVectorBytes * v));
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const Ints products = _mm256_madd_epi16(w, row[m]);
        sums[m][v] = line == 0 ? products : in_register(add_ints(sums[m][v], products));
      }
    }
  }
}

// The codes of a part of M tokens, as 16-bit numbers.
template <int M>
HOMENODE_INLINE void widen(const uint8_t* x, size_t stride, uint8_t* to) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m, to += kWideCodes) {
    const Ints both = load_bytes(x + m * stride);
    store_ints(to, even_bytes(both));
    store_ints(to + kPartColumns, odd_bytes(both));
  }
}

// The activations' codes are widened a part ahead, while the units that multiply are busy with the one before.
template <Coding C, int M>
void tile_wide(const Panel& panel, int64_t parts, const uint8_t* x, size_t stride, float* total, bool first,
               Prefetch prefetch) {
  const uint8_t *codes = panel.codes, *scales = panel.factors;
  alignas(64) uint8_t widened[2][M * kWideCodes];
  widen<M>(x, stride, widened[0]);
  Block<M> f;
  if (first) set_zero<M>(f);
  else load_sums<M>(total, f);
  for (int now = 0; parts > 0;
       --parts, now ^= 1, codes += kWidePart, scales += kPartScales<C>, x += sizeof(EncodedPart)) {
    prefetch_lines(prefetch);
    expect_next<M>(x, stride);
    if (parts > 1) widen<M>(x + sizeof(EncodedPart), stride, widened[now ^ 1]);
    Sums<M> sums;
    sum_wide<M>(codes, widened[now], sums);
    add_scaled<C, M, 0>(sums, scales, x, stride, f);
  }
  store_sums<M>(f, total);
}

template <Coding C, int M>
constexpr PanelFunction tile_of() {
  if constexpr (is_wide(C)) return tile_wide<C, M>;
  else return tile_bytes<C, M>;
}

// From how many tokens on unpacking pays. Bytes and codes of up to six bits have tiles for few tokens that take them as
// they are (halved.h, half_groups_coded.h); nibbles alone are soon taken apart by these.
constexpr int least_tokens(const Coding& c) {
  if (is_wide(c)) return c.low_bits == 8 ? 12 : 6;
  if (c.low_bits == 2) return 4;
  return has_whole_codes(c) ? 9 : 5;
}

template <int N = 0>
constexpr void fill_panels(LinearTable& table) {
  constexpr Coding C = kCodings[N];
  static_assert(!is_wide(C) || (halves_of(C) == 1 && C.minimum == Minimum::none && C.parts <= kWideParts));
  PanelTiles& tiles = table.panels[N];
  tiles.unpack = unpack_panel<C>;
  tiles.least_tokens = least_tokens(C);
  tiles.max_parts = is_wide(C) ? kWideParts : kPanelParts / halves_of(C);
  tiles.max_tokens = kPanelTokens;
  tiles.tile[0] = tile_of<C, 1>();
  tiles.tile[1] = tile_of<C, 2>();
  if constexpr (N + 1 < kCodingCount) fill_panels<N + 1>(table);
}

}  // namespace
}  // namespace homenode
