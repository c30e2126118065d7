#include "quant/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace homenode {
namespace {

// Odd numbers without pattern: the fractional parts of the golden ratio and of the square root of three.
constexpr uint64_t kStep = 0x9e3779b97f4a7c15u, kSpread = 0xbb67ae8584caa73bu;
constexpr int kColumns = 8, kLanes = 4, kVectors = kColumns / kLanes;
constexpr size_t kLine = 8 * kColumns, kLines = 64;

// Of 32 bytes: two registers where a processor has only half as wide ones.
using Lanes [[gnu::vector_size(8 * kLanes)]] = uint64_t;

// The two sums of each column over the lines since the last link of the chains.
struct Sums {
  Lanes words[kVectors] = {}, places[kVectors] = {};

  [[gnu::always_inline]] void add(const uint8_t* line) {
    for (int i = 0; i < kVectors; ++i) {
      Lanes lanes;
      std::memcpy(&lanes, line + sizeof lanes * size_t(i), sizeof lanes);
      words[i] += lanes ^ lanes >> 32u;
      places[i] += words[i];
    }
  }
};

uint64_t mixed(uint64_t chain, uint64_t word) { return std::rotl((chain ^ word) * kStep, 29); }

// A chain for each sum.
struct Chains {
  uint64_t chains[2 * kColumns];

  explicit Chains(uint64_t index) {
    for (uint64_t i = 0; i < 2 * kColumns; ++i) chains[i] = (index * 2 * kColumns + i + 1) * kSpread;
  }
  [[gnu::always_inline]] void add(const Sums& sums) {
    for (int i = 0; i < kColumns; ++i) {
      chains[i] = mixed(chains[i], sums.words[i / kLanes][i % kLanes]);
      chains[kColumns + i] = mixed(chains[kColumns + i], sums.places[i / kLanes][i % kLanes]);
    }
  }
  uint64_t end(uint64_t count) const {
    uint64_t sum = count * kSpread;
    for (const uint64_t chain : chains) {
      sum = mixed(sum, chain);
      sum ^= sum >> 32;
    }
    return sum * kSpread ^ sum >> 31;
  }
};

[[gnu::always_inline]] inline uint64_t checksum_of(const uint8_t* bytes, size_t count, uint64_t index) {
  Chains chains(index);
  size_t at = 0;
  while (count - at >= kLine) {
    Sums sums;
    for (const size_t end = at + std::min(kLines, (count - at) / kLine) * kLine; at < end; at += kLine)
      sums.add(bytes + at);
    chains.add(sums);
  }
  uint8_t rest[kLine] = {};
  std::memcpy(rest, bytes + at, count - at);
  Sums last;
  last.add(rest);
  chains.add(last);
  return chains.end(count);
}

#if defined(__x86_64__)
// The same, compiled for registers of 32 bytes, which halves its time.
[[gnu::target("avx2")]] uint64_t checksum_of_avx2(const uint8_t* bytes, size_t count, uint64_t index) {
  return checksum_of(bytes, count, index);
}
#endif

}  // namespace

uint64_t block_checksum(const uint8_t* bytes, size_t count, uint64_t index) {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return checksum_of_avx2(bytes, count, index);
#endif
  return plain_block_checksum(bytes, count, index);
}

uint64_t plain_block_checksum(const uint8_t* bytes, size_t count, uint64_t index) {
  return checksum_of(bytes, count, index);
}

}  // namespace homenode
