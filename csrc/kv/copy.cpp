#include "kv/copy.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <system_error>
#include <thread>

namespace homenode {
namespace {

using std::to_string;

Error wrong(const std::string& what) { return Error{Fault::user, 0, "copying KV memory: " + what}; }

std::optional<Error> check_source(const KvPages& pages) {
  const KvShape& shape = pages.memory->shape();
  if (pages.page_tokens < kTileKeys || pages.page_tokens % kTileKeys || pages.page_tokens > INT32_MAX) {
    return wrong("pages of " + to_string(pages.page_tokens) + " tokens; wanted a multiple of " + to_string(kTileKeys));
  }
  if (pages.first < 0 || pages.count < 0 || pages.first > INT32_MAX || pages.count > INT32_MAX || pages.tokens < 0) {
    return wrong(to_string(pages.count) + " pages from page " + to_string(pages.first) + " of " +
                 to_string(pages.tokens) + " tokens");
  }
  if (pages.count && (pages.first + pages.count - 1) * pages.page_tokens >= pages.tokens) {
    return wrong("page " + to_string(pages.first + pages.count - 1) + " of " + to_string(pages.page_tokens) +
                 " tokens is past the " + to_string(pages.tokens) + " there are");
  }
  if (pages.first_head < 0 || pages.first_head >= pages.past_head || pages.past_head > shape.kv_heads) {
    return wrong("heads " + to_string(pages.first_head) + " to " + to_string(pages.past_head) + " of " +
                 to_string(shape.kv_heads));
  }
  return std::nullopt;
}

// Where a page ends, in positions.
int64_t past_position(const KvPages& pages, int64_t page) {
  return std::min(pages.tokens, (page + 1) * pages.page_tokens);
}

// Calls look(entry of the table) for the blocks that hold a page, until one returns false; returns whether none did.
template <class Look>
bool each_block(const KvPages& pages, int64_t page, int block_size, Look&& look) {
  for (int64_t i = page * pages.page_tokens / block_size; i * block_size < past_position(pages, page); ++i) {
    if (!look(i)) return false;
  }
  return true;
}

// Does a table hold the blocks of all pages that are there?
std::optional<Error> check_table(const KvPages& pages, const char* which, std::span<const int32_t> table,
                                 const KvMemory& memory, int32_t least) {
  const auto listed = static_cast<int64_t>(table.size());
  std::optional<Error> error;
  for (int64_t page = pages.first; page < pages.first + pages.count && !error; ++page) {
    if (least >= 0 && !is_there(pages, page)) continue;
    each_block(pages, page, memory.shape().block_size, [&](int64_t i) {
      const int64_t block = i < listed ? table[static_cast<size_t>(i)] : -2;
      if (i >= listed)
        error = wrong(std::string("a ") + which + " table of " + to_string(listed) + " blocks is too short for page " +
                      to_string(page));
      else if (block < least || block >= memory.blocks())
        error = wrong(std::string(which) + " block " + to_string(block) + " of " + to_string(memory.blocks()));
      return !error;
    });
  }
  return error;
}

std::optional<Error> check_target(const KvPages& pages, const KvTarget& target) {
  const KvShape &from = pages.memory->shape(), &to = target.memory->shape();
  if (from.layers != to.layers || from.head_dim != to.head_dim || from.type != to.type || from.sides != to.sides)
    return wrong("the memories differ in layers, head, type or sides");
  if (!target.memory->writable()) return wrong("the target is mapped for reading only");
  if (target.first_head < 0 || target.first_head > to.kv_heads - (pages.past_head - pages.first_head)) {
    return wrong(to_string(pages.past_head - pages.first_head) + " heads from head " + to_string(target.first_head) +
                 " of " + to_string(to.kv_heads) + " on");
  }
  return check_table(pages, "target", target.table, *target.memory, 0);
}

std::optional<Error> check_epochs(const KvPages& pages, const KvEpochs& epochs) {
  const auto given = static_cast<int64_t>(epochs.expected.size());
  if (given != pages.count) return wrong(to_string(given) + " epochs for " + to_string(pages.count) + " pages");
  if (epochs.words->count() < pages.memory->blocks())
    return wrong(to_string(epochs.words->count()) + " epoch words for " + to_string(pages.memory->blocks()) +
                 " blocks");
  return std::nullopt;
}

// One page, head by head.
class PageWork {
 public:
  PageWork(const KvPages& pages, const KvTarget* target, const Kernels& kernels, int64_t page, KvDigest* digests)
      : pages_(pages),
        target_(target),
        kernels_(kernels),
        digests_(digests),
        tile_bytes_(pages.memory->layout().tile_bytes),
        source_tiles_(pages.memory->tiles()),
        sides_(pages.memory->shape().sides),
        target_tiles_(target ? target->memory->tiles() : source_tiles_),
        first_(page * pages.page_tokens / kTileKeys),
        past_((past_position(pages, page) + kTileKeys - 1) / kTileKeys),
        whole_(past_ - first_ == source_tiles_ && source_tiles_ == target_tiles_ && first_ % source_tiles_ == 0) {}

  void copy() {
    for (int layer = 0; layer < pages_.memory->shape().layers; ++layer) {
      for (int head = pages_.first_head; head < pages_.past_head; ++head) {
        if (whole_) {  // values follow keys in both
          run(layer, head, first_, sides_ * source_tiles_, 0, next_head(layer, head));
        } else {
          copy_side(layer, head, 0, sides_ == 2 ? source(layer, head, first_, 1) : next_head(layer, head));
          if (sides_ == 2) copy_side(layer, head, 1, next_head(layer, head));
        }
      }
    }
  }

 private:
  // Keys (0) or values (1), cut where blocks end.
  void copy_side(int layer, int head, int side, const std::byte* next) {
    for (int64_t tile = first_, count; tile < past_; tile += count) {
      count = std::min({past_ - tile, source_tiles_ - tile % source_tiles_, target_tiles_ - tile % target_tiles_});
      run(layer, head, tile, count, side, tile + count < past_ ? source(layer, head, tile + count, side) : next);
    }
  }

  void run(int layer, int head, int64_t tile, int64_t tiles, int side, const std::byte* next) {
    const std::byte* from = source(layer, head, tile, side);
    kernels_.copy_tiles({from, place(layer, head, tile, side), tile_bytes_, tiles, next},
                        digests_[head - pages_.first_head]);
    if (!target_) return;
    for (const KvMemory::Place& copy : target_->memory->copies(layer, target_head(head))) {
      KvDigest known;
      kernels_.copy_tiles({from, copy.of(target_block(tile)) + target_offset(tile, side), tile_bytes_, tiles, next},
                          known);
    }
  }

  const std::byte* source(int layer, int head, int64_t tile, int side) const {
    return pages_.memory->head(layer, pages_.table[static_cast<size_t>(tile / source_tiles_)], head) +
           (tile % source_tiles_ + side * source_tiles_) * tile_bytes_;
  }
  // Where a tile goes; null without a target.
  std::byte* place(int layer, int head, int64_t tile, int side) const {
    return target_ ? target_->memory->head(layer, target_block(tile), target_head(head)) + target_offset(tile, side)
                   : nullptr;
  }
  int target_head(int head) const { return head - pages_.first_head + target_->first_head; }
  int32_t target_block(int64_t tile) const { return target_->table[static_cast<size_t>(tile / target_tiles_)]; }
  int64_t target_offset(int64_t tile, int side) const {
    return (tile % target_tiles_ + side * target_tiles_) * tile_bytes_;
  }
  const std::byte* next_head(int layer, int head) const {
    if (head + 1 < pages_.past_head) return source(layer, head + 1, first_, 0);
    return source(std::min(layer + 1, pages_.memory->shape().layers - 1), pages_.first_head, first_, 0);
  }

  const KvPages& pages_;
  const KvTarget* target_;
  const Kernels& kernels_;
  KvDigest* digests_;
  const int64_t tile_bytes_, source_tiles_;
  const int sides_;
  const int64_t target_tiles_;
  const int64_t first_, past_;  // tiles of the sequence
  const bool whole_;            // a block of the source becomes one of the target
};

// Are the epoch words of a page's blocks what they must be, read by `load`?
template <class Load>
bool unchanged(const KvPages& pages, const KvEpochs* epochs, int64_t page, Load&& load) {
  if (!epochs) return true;
  const uint64_t expected = epochs->expected[static_cast<size_t>(page - pages.first)];
  return each_block(pages, page, pages.memory->shape().block_size,
                    [&](int64_t i) { return load(pages.table[static_cast<size_t>(i)]) == expected; });
}

// Pages begin .. end - 1; false when an epoch word was not what it must be.
bool copy_some(const KvPages& pages, const KvTarget* target, const KvEpochs* epochs, const Kernels& kernels,
               int64_t begin, int64_t end, uint64_t* found) {
  const int heads = pages.past_head - pages.first_head;
  std::vector<KvDigest> digests(static_cast<size_t>(heads));
  bool valid = true;
  for (int64_t page = begin; page < end && valid; ++page) {
    if (!is_there(pages, page)) continue;
    if (!unchanged(pages, epochs, page, [&](int32_t block) { return epochs->words->load(block); })) return false;
    std::fill(digests.begin(), digests.end(), KvDigest{});
    PageWork(pages, target, kernels, page, digests.data()).copy();
    valid = unchanged(pages, epochs, page, [&](int32_t block) { return epochs->words->load_again(block); });
    for (int head = 0; head < heads; ++head)
      found[(page - pages.first) * heads + head] = finish_digest(digests[static_cast<size_t>(head)]);
  }
  fence_stores();
  return valid;
}

}  // namespace

uint64_t finish_digest(const KvDigest& digest) {
  // The golden ratio and the square root of three
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u, kSpread = 0xbb67ae8584caa73bu;
  uint64_t mixed = digest.lines * kSpread;
  for (const uint64_t sum : digest.sums) {
    mixed = std::rotl((mixed ^ sum) * kStep, 29);
    mixed ^= mixed >> 32;
  }
  return mixed * kSpread ^ mixed >> 31;
}

bool is_there(const KvPages& pages, int64_t page) {
  return each_block(pages, page, pages.memory->shape().block_size,
                    [&](int64_t i) { return pages.table[static_cast<size_t>(i)] >= 0; });
}

Result<std::optional<KvDigests>> copy_pages(const KvPages& pages, const KvTarget* target, const KvEpochs* epochs,
                                            const Kernels& kernels, int threads) {
  if (auto error = check_source(pages)) return std::move(*error);
  if (auto error = check_table(pages, "source", pages.table, *pages.memory, -1)) return std::move(*error);
  if (target) {
    if (auto error = check_target(pages, *target)) return std::move(*error);
  }
  if (epochs) {
    if (auto error = check_epochs(pages, *epochs)) return std::move(*error);
  }
  KvDigests found(static_cast<size_t>(pages.count * (pages.past_head - pages.first_head)));
  // Whoever is free takes the next share: where a thread cannot be had, the others do its part.
  const int64_t shares = std::min<int64_t>(pages.count, threads > 1 ? 4 * int64_t(threads) : 1);
  std::atomic<int64_t> taken = 0;
  std::atomic<bool> valid = true;
  const auto work = [&] {
    for (int64_t share; valid && (share = taken++) < shares;) {
      const int64_t begin = pages.first + pages.count * share / shares,
                    end = pages.first + pages.count * (share + 1) / shares;
      if (!copy_some(pages, target, epochs, kernels, begin, end, found.data())) valid = false;
    }
  };
  std::vector<std::thread> others;
  try {
    while (static_cast<int64_t>(others.size()) + 1 < std::min<int64_t>(threads, shares)) others.emplace_back(work);
  } catch (const std::system_error&) {
  }
  work();
  for (std::thread& other : others) other.join();
  if (!valid) return std::optional<KvDigests>{};
  return std::optional<KvDigests>{std::move(found)};
}

}  // namespace homenode
