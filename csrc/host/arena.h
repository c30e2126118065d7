// Memory for many things that stay: one stream of pieces for each thread of a pool and each home they lie at, in the
// order they are asked for.
//
// A home is a place memory comes from, such as a NUMA node. A thread's pieces lie one after the other, so matrices too
// small for a huge page of their own share one, and no page has two owners where every thread first touches what was
// taken for it. Memory is mapped in chunks; a chunk goes when the last piece in it does.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "host/memory.h"

namespace homenode {

// Where the threads of a pool are at home, and what memory their homes have.
struct Homes {
  std::vector<int> of_thread;  // 0 .. count() - 1
  std::vector<int> nodes;  // of each home the NUMA node its memory comes from; empty: that of whoever touches it first
  int count() const;           // at least 1

  // A thread's place among those at its home, from 0, and how many they are.
  struct Turn {
    int64_t index, of;
  };
  Turn turn(int thread) const;
};

class Arena {
 public:
  static constexpr size_t kAlignment = 128;  // of every piece: cache lines that are fetched in pairs have one owner
  static constexpr int kEverywhere = -1;     // the home of pieces whose pages come from all homes in turn

  explicit Arena(int threads) : Arena(Homes{std::vector<int>(static_cast<size_t>(threads)), {}}) {}
  explicit Arena(Homes homes) : homes_(std::make_shared<const Homes>(std::move(homes))) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  int threads() const { return static_cast<int>(homes_->of_thread.size()); }
  const std::shared_ptr<const Homes>& homes() const { return homes_; }

  struct Piece {
    std::byte* data;
    std::shared_ptr<void> owner;  // keeps the chunk
  };
  // That about so many bytes will be taken for every thread at each of its homes: its chunks are then large from the
  // first.
  void expect(size_t bytes);
  // `bytes` zeroed bytes at a home that follow the piece last taken for this thread there, where its chunk has room.
  // From any thread.
  Result<Piece> take(int thread, int home, size_t bytes);

  // Gives back what huge pages hold behind the pieces, of the chunks with most of it, until it is at most 1 % of all
  // pieces. For when the last one was taken and filled; others may still follow, in chunks of their own.
  void trim();

  struct Range {
    MemoryRange memory;
    int home;
  };
  // The chunks that hold pieces, whole: what was not taken of them is not touched.
  std::vector<Range> ranges() const;
  // The errno with which the kernel last refused to take a chunk from its home, or 0: chunks then lie where they are
  // first touched.
  int refused() const;

 private:
  struct Chunk {
    Pages pages;
    int home;
    size_t used = 0;
  };
  struct Stream {
    std::shared_ptr<Chunk> chunk;  // the one pieces come from now
    size_t taken = 0;              // of all its chunks
  };
  Result<std::shared_ptr<Chunk>> map_chunk(int home, size_t bytes);

  const std::shared_ptr<const Homes> homes_;
  mutable std::mutex lock_;
  std::map<std::pair<int, int>, Stream> streams_;  // of a home and a thread
  std::vector<std::weak_ptr<Chunk>> chunks_;
  size_t expected_ = 0;
  int refused_ = 0;
};

}  // namespace homenode
