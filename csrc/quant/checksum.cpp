#include "quant/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace homenode {
namespace {

// Odd numbers without pattern: the fractional parts of the golden ratio and of the square root of three.
constexpr uint64_t kStep = 0x9e3779b97f4a7c15u, kSpread = 0xbb67ae8584caa73bu;
constexpr int kColumns = 8, kVectors = kColumns / 2;
constexpr size_t kLine = 8 * kColumns, kLines = 64;

using Pair [[gnu::vector_size(16)]] = uint64_t;

// The two sums of each column over the lines since the last link of the chains.
struct Sums {
  Pair words[kVectors] = {}, places[kVectors] = {};

  void add(const uint8_t* line) {
    for (int i = 0; i < kVectors; ++i) {
      Pair pair;
      std::memcpy(&pair, line + sizeof pair * size_t(i), sizeof pair);
      words[i] += pair ^ pair >> 32u;
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
  void add(const Sums& sums) {
    for (int i = 0; i < kColumns; ++i) {
      chains[i] = mixed(chains[i], sums.words[i / 2][i % 2]);
      chains[kColumns + i] = mixed(chains[kColumns + i], sums.places[i / 2][i % 2]);
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

}  // namespace

uint64_t block_checksum(const uint8_t* bytes, size_t count, uint64_t index) {
  Chains chains(index);
  size_t at = 0;
  while (count - at >= kLine) {
    Sums sums;
    for (const size_t end = at + std::min(kLines, (count - at) / kLine) * kLine; at < end; at += kLine) sums.add(bytes + at);
    chains.add(sums);
  }
  uint8_t rest[kLine] = {};
  std::memcpy(rest, bytes + at, count - at);
  Sums last;
  last.add(rest);
  chains.add(last);
  return chains.end(count);
}

}  // namespace homenode
