// Tiles of Q8_0 for few tokens, from the packed group as it is. See linear/tiles.h for the values.
//
// Activations are halved instead of weights widened: code = 16 * high + low, with -8 <= high <= 8 and -8 <= low < 8.
// Then the products of all eight lines of a part with unsigned bytes stay within 16 bits, 8 * 2 * 255 * 8 = 32640, and
// a weight is taken as it is stored: nothing is unpacked, and one line serves as many tokens as there are.
#pragma once
#include "kernels/avx2/panel.h"

namespace homenode {
namespace {

constexpr int kHalvedTokens = 8;
constexpr int kHalvedParts = 16;  // of a row, halved at once

HOMENODE_INLINE void halve(const uint8_t* codes, uint8_t* to) {
  const Ints code = load_bytes(codes), low_bits = broadcast_int(0x0f0f0f0f), eight = broadcast_int(0x08080808);
  const Ints low = _mm256_sub_epi8(bit_and(_mm256_add_epi8(code, eight), low_bits), eight);
  // The upper half as a signed number, one more where the lower half has become negative.
  const Ints upper = _mm256_sub_epi8(_mm256_xor_si256(bit_and(shift_right16<4>(code), low_bits), eight), eight);
  store_ints(to, _mm256_add_epi8(upper, bit_and(shift_right16<3>(code), broadcast_int(0x01010101))));
  store_ints(to + kPartColumns, low);
}

// Integer sums of one part and token; `halves`: the activations' upper halves, then the lower ones.
HOMENODE_INLINE void sum_halves(const uint8_t* lines, const uint8_t* halves, Ints (&sums)[kVectors]) {
  Ints part[2][kVectors];
#pragma GCC unroll 8
  for (int line = 0; line < 8; ++line) {
    Ints row[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) row[h] = in_register(broadcast_bytes4(halves + h * kPartColumns + 4 * line));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Ints w = in_register(load_bytes(lines + kLineBytes * line + kVectorBytes * v));
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const Ints products = _mm256_maddubs_epi16(w, row[h]);
        part[h][v] = line == 0 ? products : in_register(_mm256_add_epi16(part[h][v], products));
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    sums[v] = add_ints(_mm256_madd_epi16(part[0][v], _mm256_set1_epi16(16)),
                       _mm256_madd_epi16(part[1][v], _mm256_set1_epi16(1)));
  }
}

// Of one token, whose sums so far are at `total`.
template <Coding C>
HOMENODE_INLINE void add_halved(const uint8_t* lines, const Floats (&scale)[kVectors], const EncodedPart* part,
                                const uint8_t* halves, float* total) {
  Ints sums[kVectors];
  sum_halves(lines, halves, sums);
  const Ints start = broadcast_int(128 * part->minus_sum);
  const Floats row = broadcast_float(&part->scale);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    float* to = total + kLanes * v;
    store_floats(to, add_product<C>(add_ints(sums[v], start), row, scale[v], load_floats(to)));
  }
}

template <Coding C, int M>
void tile_halved(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* total,
                 SpreadPrefetch prefetch) {
  using At = Packed<C>;
  alignas(64) uint8_t halves[kHalvedParts][M][2 * kPartColumns];
  const int lines = lines_of_share<C>(prefetch, M);
  for (int64_t parts = columns / kPartColumns; parts > 0; parts -= kHalvedParts) {
    const int now = int(parts < kHalvedParts ? parts : kHalvedParts);
    for (int p = 0; p < now; ++p) {
      for (int m = 0; m < M; ++m) halve(x + m * stride + p * sizeof(EncodedPart), halves[p][m]);
    }
    for (int p = 0; p < now; ++p, packed += At::bytes, x += sizeof(EncodedPart), prefetch.from += prefetch.advance) {
      Floats scale[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) scale[v] = load_scales<C>(packed + 2 * kLanes * v);
      Prefetch share{prefetch.from, lines};
      for (int m = 0; m < M; ++m) {
        prefetch_lines(share);
        add_halved<C>(packed + At::head, scale, reinterpret_cast<const EncodedPart*>(x + m * stride), halves[p][m],
                      total + kGroupRows * m);
      }
    }
  }
}

template <int N = 0>
constexpr int index_of(Format format) {
  if constexpr (N + 1 < kCodingCount) return kCodings[N].format == format ? N : index_of<N + 1>(format);
  return N;
}

template <int M = 2>
constexpr void fill_halved(LinearTable& table) {
  constexpr int kIndex = index_of(Format::q8_0);
  constexpr Coding C = kCodings[kIndex];
  static_assert(C.low_bits == 8 && C.zero == 128 && C.parts == 1 && C.minimum == Minimum::none &&
                C.table == Table::none);
  table.coded[kIndex].tile[M - 1] = tile_halved<C, M>;
  table.coded[kIndex].max_tokens = table.coded[kIndex].tokens_of_many = M;
  if constexpr (M < kHalvedTokens) fill_halved<M + 1>(table);
}

}  // namespace
}  // namespace homenode
