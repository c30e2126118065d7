// Memory for many things that stay: one stream of pieces for each member of a team, in the order they are asked for.
//
// A member's pieces lie one after the other, so matrices too small for a huge page of their own share one, and no page has two owners where
// every member first touches what was taken for it. Memory is mapped in chunks; a chunk goes when the last piece in it does.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "host/memory.h"

namespace homenode {

class Arena {
 public:
  static constexpr size_t kAlignment = 128;  // of every piece: cache lines that are fetched in pairs have one owner

  explicit Arena(int members) : streams_(static_cast<size_t>(members)) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  int members() const { return static_cast<int>(streams_.size()); }

  struct Piece {
    std::byte* data;
    std::shared_ptr<void> owner;  // keeps the chunk
  };
  // `bytes` zeroed bytes that follow the piece last taken for this member, where its chunk has room. May be called from any thread.
  Result<Piece> take(int member, size_t bytes);

  // The chunks that hold pieces, whole: what was not taken of them is not touched.
  std::vector<MemoryRange> ranges() const;

 private:
  struct Chunk {
    Pages pages;
    size_t used = 0;
  };
  struct Stream {
    std::shared_ptr<Chunk> chunk;  // the one pieces come from now
    size_t taken = 0;              // of all its chunks
  };
  Result<std::shared_ptr<Chunk>> map_chunk(size_t bytes);

  mutable std::mutex lock_;
  std::vector<Stream> streams_;
  std::vector<std::weak_ptr<Chunk>> chunks_;
};

}  // namespace homenode
