// Paged memory of keys and values.
//
// KV heads are shared among the pool's homes (see host/arena.h), as many for a home as it has threads; the heads of a
// home lie in a region of its memory. With fewer heads than homes, such as the one head of latents, all heads of a
// block lie together, so many blocks at each home in turn (BlockHomes). In a region blocks in order, so that the memory
// of a block can be taken and given back by itself; in a block, layers in order; in a layer, heads in order; for each
// head first the keys, then the values:
//   f32   keys   [tile of 16 tokens][head element][16]           values [token][head element]
//   bf16  keys   [tile of 16 tokens][pair of elements][16][2]
//         values [tile of 16 tokens][pair of tokens][head element][2]
//   int8  as bf16, and behind each tile the scales of its 16 tokens: float32 [16], value = scale * code
// A thread working on one KV head reads both as streams, with a token of keys in each lane. Where the values are the
// first elements of the keys (KvShape::sides 1), there are keys alone.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "host/memory.h"
#include "host/shared_memory.h"
#include "kernels/kernels.h"
#include "kv/layout.h"

namespace homenode {

class KvMemory;
class ThreadPool;
struct Homes;

// The KV heads of a home and its threads, counted from where the group before ends.
struct HeadGroup {
  int past_head, past_thread;
  bool operator==(const HeadGroup&) const = default;
};

// At which home a block lies where all its heads lie together: `stripe` blocks at the first, as many at the next, and
// so on, again and again; stripe 0: blocks have no homes. The threads of a home end at `past_thread`.
struct BlockHomes {
  int64_t stripe = 0;
  std::vector<int> past_thread = {};
  size_t of(int64_t block) const { return static_cast<size_t>(block / stripe) % past_thread.size(); }
  size_t of_thread(int thread) const {
    return static_cast<size_t>(std::upper_bound(past_thread.begin(), past_thread.end(), thread) - past_thread.begin());
  }
  bool operator==(const BlockHomes&) const = default;
};

// Bytes offset .. offset + bytes - 1 of a memfd that others have made; `offset` is a multiple of kHugePage.
struct FileShare {
  int fd;
  size_t offset, bytes;
};

class KvCache {
 public:
  // Zeroed; all is one region without homes, when pages come from all homes in turn, as is asked for, and where there
  // are fewer heads than homes. With `touched` every
  // page is there at once, taken by a thread of the pool at its home; without, a page comes when it is first written,
  // or when whoever made the cache has the kernel take it. With `sharing` the regions lie in one sealed memfd, which
  // others may map, and are touched. Error when the shape is impossible or the memory is not to be had.
  static Result<std::shared_ptr<KvCache>> create(ThreadPool&, const KvShape&, int64_t blocks,
                                                 const Homes* homes = nullptr, bool interleaved = false,
                                                 std::optional<Sharing> sharing = std::nullopt, bool touched = true);
  // In memory that belongs to somebody else and outlives this; what it holds is left as it is. Error when it is too
  // small.
  static Result<std::shared_ptr<KvCache>> create_in(const FileShare&, ThreadPool&, const KvShape&, int64_t blocks,
                                                    const Homes* homes = nullptr, bool interleaved = false);

  const KvShape& shape() const { return shape_; }
  int64_t blocks() const { return blocks_; }
  size_t bytes() const { return bytes_; }

  // The heads first_head .. past_head - 1, at a home; -1: at all of them in turn.
  struct Region {
    int home, first_head, past_head;
    Pages pages;
  };
  const std::vector<Region>& regions() const { return regions_; }
  // Of the memfd, or of the share of one, or, in private memory, as if the regions lay one behind the other. Its
  // regions are those above.
  KvLayout layout() const;
  // The memfd; null: private memory, or somebody else's
  const std::shared_ptr<const int>& file() const { return file_.fd; }
  // Which threads had best attend to which heads: those at their home. Empty where there is one home, a home has no
  // heads, or threads that are neighbours in number are not at home together.
  const std::vector<HeadGroup>& head_groups() const { return head_groups_; }
  // Which threads had best attend to which blocks: those at their home, which has a stripe of them in turn.
  const BlockHomes& block_homes() const { return block_homes_; }
  // The errno with which the kernel last refused to take a region from its home, or 0.
  int refused() const { return refused_; }

  // Lets attention read other memory of the same shape in place, after a step that runs has ended: block b of it is
  // then block first + b here, and the result is `first`, which no other will get. What it holds is not verified. Error
  // for memory of another shape, or one that ends too soon for readers of whole vectors. From any thread. `first`: what
  // it is to be, if given: as several caches of one engine have to agree; Error for one that is taken or was.
  Result<int32_t> attach(std::shared_ptr<const KvMemory>, std::optional<int64_t> first = std::nullopt);
  // Its blocks are no more; a step that runs goes on reading them, and keeps the memory to its end. Error where nothing
  // is attached.
  std::optional<Error> detach(int32_t first);

  // While it lives, attached memory stays as it is: for who runs a step. Others wait for each other.
  class Reading {
   public:
    explicit Reading(const KvCache&);

   private:
    std::unique_lock<std::mutex> turn_;
    std::shared_ptr<const void> attached_;
  };
  // Of one's own, or attached. While reading.
  bool holds(int64_t block) const { return block >= 0 && (block < blocks_ || find(block)); }

  // The tile of 16 tokens that begins with slot `slot` (a multiple of 16) of a block. Of attached ones while reading.
  const std::byte* keys(int layer, int64_t block, int kv_head, int slot) const {
    return any_head(layer, block, kv_head) + slot / kTileKeys * tile_bytes_;
  }
  const std::byte* values(int layer, int64_t block, int kv_head, int slot) const {
    return any_head(layer, block, kv_head) + (shape_.block_size + slot) / kTileKeys * tile_bytes_;
  }
  int64_t tile_bytes() const { return tile_bytes_; }  // from a tile of a block to the next
  // The same for writers (see kv/write.h), for any slot of the tile of a block of one's own.
  std::byte* key_tile(int layer, int64_t block, int kv_head, int slot) {
    return head(layer, block, kv_head) + slot / kTileKeys * tile_bytes_;
  }
  std::byte* value_tile(int layer, int64_t block, int kv_head, int slot) {
    return head(layer, block, kv_head) + (shape_.block_size + slot) / kTileKeys * tile_bytes_;
  }
  const KvKernels& kernels(const Kernels& table) const { return table.kv[static_cast<int>(shape_.type)]; }

 private:
  // Where a head of the first layer of block 0 lies, and how far it is to the next layer.
  struct HeadPlace {
    std::byte* first;
    int64_t step;
  };

  std::byte* head(int layer, int64_t block, int kv_head) const {
    const HeadPlace& place = places_[static_cast<size_t>(kv_head)];
    return place.first + (block * shape_.layers + layer) * place.step;
  }
  struct Attached {
    int64_t first, past;
    std::shared_ptr<const KvMemory> memory;
  };
  const std::byte* any_head(int layer, int64_t block, int kv_head) const {
    return block < blocks_ ? head(layer, block, kv_head) : attached_head(layer, block, kv_head);
  }
  const Attached* find(int64_t block) const;
  const std::byte* attached_head(int layer, int64_t block, int kv_head) const;

  using TakeFile = std::function<Result<SharedFile>(size_t bytes)>;
  static Result<std::shared_ptr<KvCache>> make(ThreadPool&, const KvShape&, int64_t blocks, const Homes*,
                                               bool interleaved, const TakeFile&, bool touched);
  bool in_file() const { return file_.pages.data != nullptr; }
  size_t region_bytes(int heads) const;
  size_t region_room(int heads) const;
  Result<Pages> take_pages(int heads);
  std::optional<Error> add_region(int home, int first_head, int past_head, const std::vector<int>& nodes);
  int64_t block_bytes() const { return head_bytes_ * shape_.kv_heads * shape_.layers; }
  void place_stripes(const Homes&);
  void clear(ThreadPool&, const Homes*);
  void clear_stripes(ThreadPool&, const Homes&);

  KvShape shape_;
  int64_t blocks_ = 0;
  int64_t tile_bytes_ = 0;  // of the keys (or values) of 16 tokens, one head
  int64_t head_bytes_ = 0;  // of a block, one head
  size_t bytes_ = 0;
  SharedFile file_;
  size_t taken_ = 0;  // bytes of the file that are regions
  std::vector<Region> regions_;
  std::vector<HeadPlace> places_;
  std::vector<HeadGroup> head_groups_;
  BlockHomes block_homes_;
  int refused_ = 0;

  mutable std::mutex change_, one_reader_;
  // As changed last
  std::shared_ptr<const std::vector<Attached>> attached_ = std::make_shared<std::vector<Attached>>();
  mutable const std::vector<Attached>* reading_ = nullptr;  // as the step that runs found it
  int64_t next_first_ = 0;  // what is attached next begins here, so that nothing is taken for what was there before
};

}  // namespace homenode
