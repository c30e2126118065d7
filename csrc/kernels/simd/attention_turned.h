// Values that are the first elements of keys: some elements of a tile of keys, put in the order in which values lie in
// tiles of their own (see kv/cache.h), so that the same loops multiply both.
//
// What is turned are words of 16 bytes, four by four or two by two: every level has registers of that size.
#pragma once
#include "kernels/kernels.h"

namespace homenode {
namespace {

using FourWords = uint32_t __attribute__((vector_size(16)));
using EightHalves = uint16_t __attribute__((vector_size(16)));
using TwoPairs = uint64_t __attribute__((vector_size(16)));

inline FourWords load_four(const void* p) {
  FourWords words;
  __builtin_memcpy(&words, p, sizeof words);
  return words;
}

template <class Vector>
inline void store_turned(void* p, const Vector& words) {
  __builtin_memcpy(p, &words, sizeof words);
}

// Row r of `x` becomes word r of the four rows that lie `stride` bytes apart from `out` on.
inline void turn_words(const FourWords (&x)[4], char* out, int64_t stride) {
  const FourWords low01 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5),
                  high01 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7),
                  low23 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5),
                  high23 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  store_turned(out, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
  store_turned(out + stride, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
  store_turned(out + 2 * stride, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
  store_turned(out + 3 * stride, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
}

// Two elements of each of two tokens, side by side by token, become so by element.
inline FourWords swap_middle_bytes(FourWords x) {
  return (x & 0xff0000ffu) | (x >> 8 & 0xff00u) | (x << 8 & 0xff0000u);
}

// Elements d .. d + columns - 1 of the 16 keys of a tile as a tile of values of so many elements. Both are multiples of
// 16. Elements past the end of a key are those at its end again.
inline void turn_tile(const float* keys, int head_dim, int d, int columns, float* values) {
  const int last = head_dim - 1;
  for (int column = 0; column < columns; column += 4) {
    const float* rows[4];
    for (int i = 0; i < 4; ++i) rows[i] = keys + int64_t(kTileKeys) * (d + column + i < last ? d + column + i : last);
    for (int key = 0; key < kTileKeys; key += 4) {
      const FourWords x[4] = {load_four(rows[0] + key), load_four(rows[1] + key), load_four(rows[2] + key),
                              load_four(rows[3] + key)};
      turn_words(x, reinterpret_cast<char*>(values + int64_t(key) * columns + column),
                 int64_t(columns) * static_cast<int64_t>(sizeof(float)));
    }
  }
}

inline void turn_tile(const uint16_t* keys, int head_dim, int d, int columns, uint16_t* values) {
  const int last = head_dim / 2 - 1;
  for (int column = 0; column < columns; column += 4) {
    const int pair = (d + column) / 2, first = pair < last ? pair : last, second = pair + 1 < last ? pair + 1 : last;
    const uint16_t *above = keys + int64_t(2) * kTileKeys * first, *below = keys + int64_t(2) * kTileKeys * second;
    for (int key = 0; key < kTileKeys; key += 4) {
      const auto a = reinterpret_cast<EightHalves>(load_four(above + 2 * key)),
                 b = reinterpret_cast<EightHalves>(load_four(below + 2 * key));
      const auto x = reinterpret_cast<TwoPairs>(__builtin_shufflevector(a, a, 0, 2, 1, 3, 4, 6, 5, 7)),
                 y = reinterpret_cast<TwoPairs>(__builtin_shufflevector(b, b, 0, 2, 1, 3, 4, 6, 5, 7));
      uint16_t* out = values + int64_t(key) * columns + 2 * column;
      store_turned(out, __builtin_shufflevector(x, y, 0, 2));
      store_turned(out + 2 * int64_t(columns), __builtin_shufflevector(x, y, 1, 3));
    }
  }
}

inline void turn_tile(const int8_t* keys, int head_dim, int d, int columns, int8_t* values) {
  const int last = head_dim / 2 - 1;
  for (int column = 0; column < columns; column += 8) {
    const int8_t* rows[4];
    for (int i = 0; i < 4; ++i) {
      const int pair = (d + column) / 2 + i;
      rows[i] = keys + int64_t(2) * kTileKeys * (pair < last ? pair : last);
    }
    for (int key = 0; key < kTileKeys; key += 8) {
      FourWords x[4];
      for (int i = 0; i < 4; ++i) x[i] = swap_middle_bytes(load_four(rows[i] + 2 * key));
      turn_words(x, reinterpret_cast<char*>(values + int64_t(key) * columns + 2 * column), 2 * int64_t(columns));
    }
  }
}

}  // namespace
}  // namespace homenode
