#include "quant/checksum.h"

#include <bit>
#include <cstring>

namespace homenode {
namespace {

// Odd numbers without pattern: the fractional parts of the golden ratio and of the square root of three.
constexpr uint64_t kStep = 0x9e3779b97f4a7c15u, kSpread = 0xbb67ae8584caa73bu;
constexpr int kLanes = 8;

uint64_t word_at(const uint8_t* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

uint64_t mixed(uint64_t lane, uint64_t word) { return std::rotl((lane ^ word) * kStep, 29); }

}  // namespace

uint64_t block_checksum(const uint8_t* bytes, size_t count, uint64_t index) {
  uint64_t lanes[kLanes];
  for (uint64_t i = 0; i < kLanes; ++i) lanes[i] = (index * kLanes + i + 1) * kSpread;
  size_t at = 0;
  for (; at + 8 * kLanes <= count; at += 8 * kLanes) {
    for (int i = 0; i < kLanes; ++i) lanes[i] = mixed(lanes[i], word_at(bytes + at + 8 * size_t(i)));
  }
  uint8_t rest[8 * kLanes] = {};
  std::memcpy(rest, bytes + at, count - at);
  uint64_t sum = count * kSpread;
  for (int i = 0; i < kLanes; ++i) {
    sum = mixed(sum, mixed(lanes[i], word_at(rest + 8 * i)));
    sum ^= sum >> 32;
  }
  return sum * kSpread ^ sum >> 31;
}

}  // namespace homenode
