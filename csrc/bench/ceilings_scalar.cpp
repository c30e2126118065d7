// The portable level, on the compiler's own vectors as its kernels are; small integers are multiplied in 16 bits, the
// narrowest product that every platform's baseline has. The empty assembly keeps the accumulators in registers and the
// products from being folded.
#include "bench/ceiling_table.h"

#include <cstring>

namespace homenode {
namespace {

typedef uint64_t Words __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
typedef int16_t Shorts __attribute__((vector_size(16)));

constexpr int kChains = 6;

inline Words load(const uint8_t* p) {
  Words v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline uint64_t folded(const Words (&v)[8]) {
  Words all = v[0];
  for (int i = 1; i < 8; ++i) all ^= v[i];
  return all[0] ^ all[1];
}

uint64_t read_one_stream(const uint8_t* data, size_t bytes) {
  Words v[8] = {};
  for (size_t at = 0; at < bytes; at += sizeof v) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] ^= load(data + at + 16 * i);
  }
  return folded(v);
}

uint64_t read_eight_streams(const uint8_t* data, size_t bytes) {
  Words v[8] = {};
  for (size_t block = 0; block < bytes; block += kReadStep) {
    for (size_t at = 0; at < kStreamBytes; at += 64) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const uint8_t* p = data + block + i * kStreamBytes + at;
        v[i] ^= load(p) ^ load(p + 16) ^ load(p + 32) ^ load(p + 48);
      }
    }
  }
  return folded(v);
}

#if defined(__x86_64__)
#define HOMENODE_IN_REGISTER "+x"
#elif defined(__aarch64__)
#define HOMENODE_IN_REGISTER "+w"
#else
#define HOMENODE_IN_REGISTER "+m"
#endif

template <class V>
void multiply(int64_t rounds) {
  V sums[kChains] = {}, a = {}, b = {};
  __asm__ volatile("" : HOMENODE_IN_REGISTER(b));  // not known to be zero
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 6
    for (int c = 0; c < kChains; ++c) {
      __asm__ volatile("" : HOMENODE_IN_REGISTER(a));  // may have changed: the product must be made again
      sums[c] += a * b;
      __asm__ volatile("" : HOMENODE_IN_REGISTER(sums[c]));
    }
  }
}

constexpr MultiplyLoop kFloats = {multiply<Floats>, kChains * 4 * 2}, kShorts = {multiply<Shorts>, kChains * 8 * 2};
constexpr CeilingTable kTable = {read_one_stream, read_eight_streams, kShorts, kFloats, kFloats};

}  // namespace

const CeilingTable& ceiling_table_scalar() { return kTable; }

}  // namespace homenode
