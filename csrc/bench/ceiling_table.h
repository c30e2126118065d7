// What one instruction set level can do at most: loops that read memory or multiply and do nothing else. Filled in by
// bench/<level>/ceilings.cpp.
//
// No kernel of a level can be faster than these, for they use its widest loads and its best multiply instructions on
// registers alone.
#pragma once
#include <cstddef>
#include <cstdint>

namespace homenode {

// Reads `bytes` bytes (a multiple of kReadStep, on a 64-byte boundary) and returns something made of all of them.
using ReadLoop = uint64_t (*)(const uint8_t* data, size_t bytes);

constexpr size_t kStreamBytes = 4096;                  // of one of eight streams, before the next begins
constexpr size_t kReadStep = 8 * kStreamBytes;

// Multiplies with what is in registers. A multiply-add counts as two operations.
struct MultiplyLoop {
  void (*run)(int64_t rounds);
  int64_t operations;  // of a round
};

struct CeilingTable {
  ReadLoop one_stream, eight_streams;
  MultiplyLoop int8, bf16, f32;
  // Weights of at most six bits, which a level without dot products of bytes can multiply faster
  MultiplyLoop int6 = int8;
};

const CeilingTable& ceiling_table_scalar();
const CeilingTable& ceiling_table_avx2();
const CeilingTable& ceiling_table_avx2vnni();
const CeilingTable& ceiling_table_avx512();
const CeilingTable& ceiling_table_avx512bf16();
const CeilingTable& ceiling_table_amx();
const CeilingTable& ceiling_table_neon();
const CeilingTable& ceiling_table_dotprod();
const CeilingTable& ceiling_table_i8mm();

}  // namespace homenode
