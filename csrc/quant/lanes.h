// Sixteen bytes at once, as four words: vectors of the compiler, so that the portable part needs no instruction set of
// its own.
#pragma once
#include <cstdint>
#include <cstring>

namespace homenode {

using Words [[gnu::vector_size(16)]] = uint32_t;

inline Words load_words(const uint8_t* from) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}
inline void store_words(Words words, uint8_t* to) { std::memcpy(to, &words, sizeof words); }

// In each of 16 bytes, bits `from` .. `from + bits - 1`, moved to the bottom.
inline Words bits_of(Words words, int from, int bits) {
  return words >> uint32_t(from) & ((1u << bits) - 1) * 0x01010101u;
}

// Four rows of four words: columns become rows.
inline void transpose(Words (&rows)[4]) {
#if defined(__clang__) || __GNUC__ >= 12
  const Words a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5),
              b = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Words c = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7),
              d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
#else
  const Words was[4] = {rows[0], rows[1], rows[2], rows[3]};
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) rows[i][j] = was[j][i];
  }
#endif
}

}  // namespace homenode
