// The functions of tiles.h in plain C++, after the operation sections of Intel's manual. What the processor would
// refuse ends the program.
#pragma once
#include <cstdint>

namespace homenode {

struct EmulatedTile {
  int rows, row_bytes;
  uint8_t data[16][64];
};
struct EmulatedTiles {
  bool configured;
  EmulatedTile tile[8];
};
inline constinit thread_local EmulatedTiles emulated{};

namespace {

inline void processor_refuses(bool fault) {
  if (fault) __builtin_trap();
}

inline void configure_tiles(const TileConfiguration& c) {
  processor_refuses(c.palette != 1 || c.start_row != 0);
  for (const uint8_t byte : c.reserved) processor_refuses(byte != 0);
  emulated = {};
  emulated.configured = true;
  for (int i = 0; i < 16; ++i) {
    processor_refuses(c.rows[i] > 16 || c.row_bytes[i] > 64 || (c.rows[i] == 0) != (c.row_bytes[i] == 0) ||
                      (i >= 8 && c.rows[i] != 0));
    if (i < 8) emulated.tile[i].rows = c.rows[i], emulated.tile[i].row_bytes = c.row_bytes[i];
  }
}
inline void release_tiles() { emulated = {}; }

inline EmulatedTile& emulated_tile(int i) {
  processor_refuses(!emulated.configured || emulated.tile[i].rows == 0);
  return emulated.tile[i];
}

template <int Tile>
inline void clear_tile() {
  EmulatedTile& t = emulated_tile(Tile);
  __builtin_memset(t.data, 0, sizeof t.data);
}
template <int Tile>
inline void load_tile(const void* p, size_t stride) {
  EmulatedTile& t = emulated_tile(Tile);
  __builtin_memset(t.data, 0, sizeof t.data);
  for (int r = 0; r < t.rows; ++r)
    __builtin_memcpy(t.data[r], static_cast<const uint8_t*>(p) + size_t(r) * stride, size_t(t.row_bytes));
}
template <int Tile>
inline void store_tile_rows(void* p, size_t stride) {
  const EmulatedTile& t = emulated_tile(Tile);
  for (int r = 0; r < t.rows; ++r)
    __builtin_memcpy(static_cast<uint8_t*>(p) + size_t(r) * stride, t.data[r], size_t(t.row_bytes));
}

// Checks the shapes of a product and calls add(row, column of 4 bytes) for every sum.
template <class Add>
inline void for_each_sum(int sum, int a, int b, Add add) {
  EmulatedTile &s = emulated_tile(sum), &x = emulated_tile(a), &y = emulated_tile(b);
  processor_refuses(sum == a || sum == b || a == b || s.row_bytes % 4 || x.row_bytes % 4 || y.row_bytes % 4);
  processor_refuses(s.rows != x.rows || s.row_bytes != y.row_bytes || x.row_bytes / 4 != y.rows);
  for (int m = 0; m < s.rows; ++m) {
    for (int n = 0; n < s.row_bytes / 4; ++n) add(s.data[m] + 4 * n, x.data[m], y.data, n, y.rows);
  }
}

template <int Sum, int A, int B>
inline void add_byte_products() {
  for_each_sum(Sum, A, B, [](uint8_t* place, const uint8_t* a, const uint8_t (*b)[64], int n, int depth) {
    int32_t sum;
    __builtin_memcpy(&sum, place, 4);
    for (int k = 0; k < depth; ++k) {
      for (int i = 0; i < 4; ++i) sum += int32_t(int8_t(a[4 * k + i])) * int32_t(int8_t(b[k][4 * n + i]));
    }
    __builtin_memcpy(place, &sum, 4);
  });
}

inline float without_denormal(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }
inline float bf16_at(const uint8_t* p) {
  uint16_t half;
  __builtin_memcpy(&half, p, 2);
  return without_denormal(__builtin_bit_cast(float, uint32_t(half) << 16));
}

template <int Sum, int A, int B>
inline void add_pair_products() {
  for_each_sum(Sum, A, B, [](uint8_t* place, const uint8_t* a, const uint8_t (*b)[64], int n, int depth) {
    float sum, chain[2] = {};
    __builtin_memcpy(&sum, place, 4);
    for (int k = 0; k < depth; ++k) {
      for (int i = 0; i < 2; ++i)
        chain[i] =
            without_denormal(__builtin_fmaf(bf16_at(a + 4 * k + 2 * i), bf16_at(b[k] + 4 * n + 2 * i), chain[i]));
    }
    sum = without_denormal(without_denormal(sum) + without_denormal(chain[0] + chain[1]));
    __builtin_memcpy(place, &sum, 4);
  });
}

}  // namespace
}  // namespace homenode
