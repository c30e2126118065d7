// KV memory that can be copied from and to, whoever made it: a KV cache, a pool of pages, or memory of another process.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "host/shared_memory.h"
#include "kv/cache.h"
#include "kv/layout.h"

namespace homenode {

class KvMemory {
 public:
  static Result<std::shared_ptr<KvMemory>> of(std::shared_ptr<KvCache>);
  // Pages of its own, each in one piece, zeroed, all of them taken now, from `nodes` in turn unless that is empty.
  static Result<std::shared_ptr<KvMemory>> pool(const KvShape&, int64_t blocks, Sharing, const std::vector<int>& nodes);
  // Another process's, which says that this is its layout. What it holds may change at any time.
  static Result<std::shared_ptr<KvMemory>> map(int fd, const KvLayout&, bool writable);

  const KvLayout& layout() const { return layout_; }
  const KvShape& shape() const { return layout_.shape; }
  int64_t blocks() const { return layout_.blocks; }
  bool writable() const { return writable_; }
  int fd() const { return fd_ ? *fd_ : -1; }  // -1: private memory, or another process's
  int tiles() const { return shape().block_size / kTileKeys; }  // of the keys of a block

  // Keys of a head of a block; its values follow, if they are kept. Writing is for who has asked writable().
  std::byte* head(int layer, int64_t block, int kv_head) const { return places_[cell(layer, kv_head)].of(block); }

  // Where the head of a layer begins in block 0, and how far it is to the next block.
  struct Place {
    std::byte* first;
    int64_t block_stride;
    int region;
    std::byte* of(int64_t block) const { return first + block * block_stride; }
  };
  // Where else it is to be written: other regions have it, too.
  std::span<const Place> copies(int layer, int kv_head) const {
    return copies_.empty() ? std::span<const Place>() : std::span<const Place>(copies_[cell(layer, kv_head)]);
  }

  // The memory of each region, from its first head to the end of its last.
  struct Extent {
    std::byte* data;
    int64_t bytes;
  };
  const std::vector<Extent>& extents() const { return extents_; }

  struct Part {
    int region;
    int64_t offset, bytes;  // from the beginning of the region's extent
  };
  // Where the first `tiles` tiles of keys and of values of every head of a block are, layer by layer, head by head,
  // keys, values; neighbours as one.
  std::vector<Part> parts(int64_t block, int tiles) const;

 private:
  size_t cell(int layer, int kv_head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(layout_.shape.kv_heads) + static_cast<size_t>(kv_head);
  }
  void place(const std::vector<std::byte*>& regions);

  KvLayout layout_;
  bool writable_ = false;
  std::shared_ptr<const int> fd_;
  std::shared_ptr<void> owner_;
  std::vector<Place> places_;  // of each head of each layer, the first region that has it
  std::vector<std::vector<Place>> copies_;  // the same, the other regions; empty where no head has any
  std::vector<Extent> extents_;
};

}  // namespace homenode
