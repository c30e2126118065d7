// Pages of KV memory over a stream socket: straight from and into their blocks, and what comes is digested while it is
// in the caches.
//
// A page goes over the wire as its tiles, layer by layer, head by head, keys, values; only tiles that hold one of its
// tokens. The digest that comes of it is that of copy_pages. No call waits for longer than it is told.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/kernels.h"
#include "kv/memory.h"

namespace homenode {

// Pages that are blocks: which ones, and how many tiles of keys of each count.
struct WirePages {
  std::shared_ptr<KvMemory> memory;
  std::vector<int32_t> blocks, tiles;
};

std::optional<Error> check(const WirePages&);

// The pieces of such pages in the order of the wire: each some tiles of one head, in one piece of memory. The pages
// outlive it.
class WirePieces {
 public:
  explicit WirePieces(const WirePages& pages);

  bool done() const { return page_ == pages_->blocks.size(); }
  // What is left of the piece at hand; not when done.
  std::byte* data() const { return piece_ + passed_; }
  int64_t bytes() const { return bytes_ - passed_; }
  size_t page() const { return page_; }
  int head() const { return head_; }
  // Past so much of it.
  void pass(int64_t bytes);

 private:
  void find();

  const WirePages* pages_;
  size_t page_ = 0;
  int layer_ = 0, head_ = 0, side_ = 0;
  bool whole_ = false;  // values follow the keys in memory: one piece
  std::byte* piece_ = nullptr;
  int64_t bytes_ = 0, passed_ = 0;
};

class PageReceiver {
 public:
  static Result<std::shared_ptr<PageReceiver>> create(WirePages, const Kernels&);

  struct Came {
    int64_t bytes;
    bool ended;  // nothing more will come
  };
  // Reads what is there, at most about `most` bytes. Waits for more of it, but no longer than `wait_us` in all.
  Result<Came> receive(int socket, int64_t most, int64_t wait_us);
  // What has been read already; how much of it belongs to these pages.
  int64_t take(std::span<const std::byte> bytes);
  bool complete() const { return filled_.done(); }
  // Of each page and head, once complete.
  const std::vector<uint64_t>& digests() const { return found_; }
  int heads() const { return pages_.memory->shape().kv_heads; }

 private:
  PageReceiver(WirePages pages, const Kernels& kernels);
  void came(int64_t bytes);

  const WirePages pages_;
  const Kernels& kernels_;
  WirePieces filled_, summed_;
  int64_t unsummed_ = 0;
  std::vector<KvDigest> sums_;  // of each head of the page at hand
  std::vector<uint64_t> found_;
};

class PageSender {
 public:
  static Result<std::shared_ptr<PageSender>> create(WirePages);

  // Writes as much as the kernel takes without waiting, at most about `most` bytes; how much that was.
  Result<int64_t> send(int socket, int64_t most);
  bool done() const { return sent_.done(); }

 private:
  explicit PageSender(WirePages pages);

  const WirePages pages_;
  WirePieces sent_;
};

}  // namespace homenode
