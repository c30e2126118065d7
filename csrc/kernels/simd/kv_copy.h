// KV memory copied and summed in one loop. The levels give the same sums.
//
// A head's tiles of a page are a stream of 64-bit words w[0], w[1], ..., little-endian, the last line of a tile filled
// up with zeros. Eight sums are kept, word i belongs to sum i % 8 and to its neighbour's:
//   sums[i % 8] += low32(w[i] ^ key(i)) * high32(w[i] ^ key(i)),   sums[i % 8 ^ 1] += w[i],
//   key(i) = (i + 1) * kWordStep
// modulo 2^64. Keys are different for every place, so words that changed places are noticed; a single changed word
// always changes its neighbour's sum. kv/copy.cpp mixes the sums. It tells damage and mistakes, and is no
// protection against an adversary.
#pragma once
#include "kernels/kernels.h"

namespace homenode {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "KV memory and its digests are little-endian");

constexpr uint64_t kWordStep = 0x9e3779b97f4a7c15u;  // the fractional part of the golden ratio
constexpr int64_t kLineBytes = 64, kPrefetchBytes = 16 * kLineBytes;

struct WordSums {
  WordLine sums, keys, step;

  explicit WordSums(const KvDigest& digest) : sums(load_words(digest.sums)), step(fill_words(8 * kWordStep)) {
    uint64_t first[8];
    for (uint64_t i = 0; i < 8; ++i) first[i] = (8 * digest.lines + i + 1) * kWordStep;
    keys = load_words(first);
  }
  void add_line(const WordLine& words) {
    sums = add(add(sums, swap_pairs(words)), multiply_halves(exclusive_or(words, keys)));
    keys = add(keys, step);
  }
};

// Where lines go, and how far it is to the next one's place.
struct StreamLines {
  static constexpr int64_t kStep = kLineBytes;
  static void put(std::byte* p, const WordLine& x) { stream_words(p, x); }
};
struct StoreLines {
  static constexpr int64_t kStep = kLineBytes;
  static void put(std::byte* p, const WordLine& x) { store_words(p, x); }
};
struct DropLines {
  static constexpr int64_t kStep = 0;
  static void put(std::byte*, const WordLine&) {}
};

// Asks for a line at `ahead` with each one copied.
template <class Lines>
inline void copy_lines(const std::byte* from, std::byte* to, int64_t lines, const std::byte* ahead, WordSums& sums) {
  for (int64_t i = 0; i < lines; ++i) {
    __builtin_prefetch(ahead + i * kLineBytes, 0, 0);
    const WordLine words = load_words(from + i * kLineBytes);
    Lines::put(to + i * Lines::kStep, words);
    sums.add_line(words);
  }
}

// What is left of a tile of no whole number of lines.
inline void copy_rest(const std::byte* from, std::byte* to, int64_t bytes, WordSums& sums) {
  std::byte line[kLineBytes] = {};
  __builtin_memcpy(line, from, static_cast<size_t>(bytes));
  if (to) __builtin_memcpy(to, line, static_cast<size_t>(bytes));
  sums.add_line(load_words(line));
}

template <class Lines>
void copy_run(const TileRun& run, KvDigest& digest) {
  WordSums sums(digest);
  const int64_t rest = run.tile_bytes % kLineBytes, lines = run.tile_bytes / kLineBytes;
  if (!rest) {
    const int64_t all = run.tiles * lines, last = all < kPrefetchBytes / kLineBytes ? all : kPrefetchBytes / kLineBytes,
                  first = all - last;
    copy_lines<Lines>(run.from, run.to, first, run.from + kPrefetchBytes, sums);
    copy_lines<Lines>(run.from + first * kLineBytes, run.to + first * Lines::kStep, last, run.next, sums);
  } else {
    for (int64_t tile = 0; tile < run.tiles; ++tile) {
      const std::byte* from = run.from + tile * run.tile_bytes;
      std::byte* to = Lines::kStep ? run.to + tile * run.tile_bytes : nullptr;
      copy_lines<Lines>(from, to, lines, from + kPrefetchBytes, sums);
      copy_rest(from + lines * kLineBytes, Lines::kStep ? to + lines * kLineBytes : nullptr, rest, sums);
    }
  }
  store_words(digest.sums, sums.sums);
  digest.lines += static_cast<uint64_t>(run.tiles * (lines + (rest != 0)));
}

void copy_tiles(const TileRun& run, KvDigest& digest) {
  if (!run.to) return copy_run<DropLines>(run, digest);
  const auto places = reinterpret_cast<uintptr_t>(run.to) | static_cast<uintptr_t>(run.tile_bytes);
  // A tile of no whole lines leaves the next one's place on no boundary of a line.
  if (places % kStreamAlignment) return copy_run<StoreLines>(run, digest);
  copy_run<StreamLines>(run, digest);
}

}  // namespace
}  // namespace homenode
