#include "kv/cache.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "host/arena.h"
#include "host/thread_pool.h"

namespace homenode {
namespace {

// For each home the first KV head that is not its own: heads in proportion to threads.
std::vector<int> past_heads(const Homes& homes, int kv_heads) {
  std::vector<int> ends;
  int64_t threads = 0;
  for (int home = 0; home < homes.count(); ++home) {
    threads += std::count(homes.of_thread.begin(), homes.of_thread.end(), home);
    ends.push_back(static_cast<int>(kv_heads * threads / static_cast<int64_t>(homes.of_thread.size())));
  }
  return ends;
}

std::vector<HeadGroup> groups_of(const Homes& homes, const std::vector<int>& past_heads) {
  const std::vector<int>& of = homes.of_thread;
  if (past_heads.size() < 2 || !std::is_sorted(of.begin(), of.end())) return {};
  std::vector<HeadGroup> groups;
  for (size_t home = 0; home < past_heads.size(); ++home) {
    if (past_heads[home] == (home ? past_heads[home - 1] : 0)) return {};
    groups.push_back({past_heads[home],
                      static_cast<int>(std::upper_bound(of.begin(), of.end(), static_cast<int>(home)) - of.begin())});
  }
  return groups;
}

constexpr int64_t kMostStripes = 4096;  // the kernel keeps a record of the memory of each

// Blocks of a stripe: whole chunks of positions, as blocks that follow each other are mostly of one sequence, and a
// page at least.
int64_t stripe_of(const KvShape& shape, int64_t block_bytes, int64_t blocks) {
  const auto over = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto page = static_cast<int64_t>(block_bytes * blocks >= int64_t(kHugePage) ? kHugePage : kSmallPage);
  const int64_t chunk = over(kChunkKeys, shape.block_size);
  const int64_t least = std::max(over(page, block_bytes), over(blocks, kMostStripes));
  return over(least, chunk) * chunk;
}

// Where the blocks of so many bytes lie. Nowhere, where threads that are neighbours in number are not at home together,
// or a home has none.
BlockHomes homes_of_blocks(const Homes& homes, int64_t stripe) {
  const std::vector<int>& of = homes.of_thread;
  BlockHomes found{stripe, {}};
  if (homes.count() < 2 || !std::is_sorted(of.begin(), of.end())) return {};
  for (int home = 0, before = 0; home < homes.count(); ++home) {
    const auto past = static_cast<int>(std::upper_bound(of.begin(), of.end(), home) - of.begin());
    if (past == before) return {};
    found.past_thread.push_back(before = past);
  }
  return found;
}

}  // namespace

Result<std::shared_ptr<KvCache>> KvCache::create(ThreadPool& pool, const KvShape& shape, int64_t blocks,
                                                 const Homes* homes, bool interleaved, std::optional<Sharing> sharing,
                                                 bool touched) {
  if (!sharing) return make(pool, shape, blocks, homes, interleaved, nullptr, touched);
  return make(
      pool, shape, blocks, homes, interleaved,
      [&](size_t bytes) { return create_shared(bytes, "homenode KV cache", *sharing); }, true);
}

Result<std::shared_ptr<KvCache>> KvCache::create_in(const FileShare& share, ThreadPool& pool, const KvShape& shape,
                                                    int64_t blocks, const Homes* homes, bool interleaved) {
  return make(
      pool, shape, blocks, homes, interleaved,
      [&](size_t bytes) -> Result<SharedFile> {
        if (bytes > share.bytes)
          return Error{
              Fault::user, 0,
              "a share of " + std::to_string(share.bytes) + " bytes for KV memory of " + std::to_string(bytes)};
        auto pages = map_shared(share.fd, share.bytes, true, share.offset);
        if (!pages) return pages.error();
        return SharedFile{nullptr, std::move(pages.value())};
      },
      true);
}

Result<std::shared_ptr<KvCache>> KvCache::make(ThreadPool& pool, const KvShape& shape, int64_t blocks,
                                               const Homes* homes, bool interleaved, const TakeFile& take_file,
                                               bool touched) {
  if (auto error = check(shape)) return std::move(*error);
  int64_t total;
  if (blocks < 1 || blocks > INT32_MAX ||
      __builtin_mul_overflow(head_bytes_of(shape) * shape.kv_heads, shape.layers * blocks, &total)) {
    return Error{Fault::user, 0,
                 std::to_string(blocks) + " KV blocks; wanted at least 1 and no more bytes than an address space"};
  }
  auto cache = std::make_shared<KvCache>();
  cache->shape_ = shape;
  cache->blocks_ = blocks;
  cache->tile_bytes_ = tile_bytes_of(shape);
  cache->head_bytes_ = head_bytes_of(shape);
  cache->bytes_ = static_cast<size_t>(total);
  const bool whole = interleaved || !homes || shape.kv_heads < homes->count();
  const std::vector<int> ends = whole ? std::vector<int>{shape.kv_heads} : past_heads(*homes, shape.kv_heads);
  if (take_file) {
    size_t bytes = 0;
    for (size_t home = 0; home < ends.size(); ++home)
      bytes += cache->region_room(ends[home] - (home ? ends[home - 1] : 0));
    auto file = take_file(bytes);
    if (!file) return file.error();
    cache->file_ = std::move(file.value());
  }
  for (int home = 0, first = 0; home < static_cast<int>(ends.size()); first = ends[static_cast<size_t>(home++)]) {
    std::vector<int> nodes;
    if (homes && !homes->nodes.empty())
      nodes = whole ? homes->nodes : std::vector<int>{homes->nodes[static_cast<size_t>(home)]};
    if (auto error = cache->add_region(whole ? -1 : home, first, ends[static_cast<size_t>(home)], nodes))
      return std::move(*error);
  }
  if (!whole) cache->head_groups_ = groups_of(*homes, ends);
  if (whole && homes && !interleaved) {
    cache->block_homes_ = homes_of_blocks(*homes, stripe_of(shape, cache->block_bytes(), blocks));
    if (cache->block_homes_.stripe) cache->place_stripes(*homes);
  }
  if (touched && cache->block_homes_.stripe) cache->clear_stripes(pool, *homes);
  else if (touched) cache->clear(pool, whole ? nullptr : homes);
  if (!cache->in_file()) {
    for (Region& region : cache->regions_)
      shrink(region.pages, cache->region_bytes(region.past_head - region.first_head));
  }
  return cache;
}

size_t KvCache::region_bytes(int heads) const {
  return static_cast<size_t>(head_bytes_ * heads * shape_.layers * blocks_) + kKvSlack;
}

// In a file a region has huge pages of its own where all of it is large, so that no page has two homes.
size_t KvCache::region_room(int heads) const {
  const size_t page = bytes_ >= kHugePage ? kHugePage : kSmallPage;
  return heads ? (region_bytes(heads) + page - 1) / page * page : 0;
}

Result<Pages> KvCache::take_pages(int heads) {
  const size_t bytes = region_bytes(heads);
  if (!in_file()) return allocate_pages(bytes);
  Pages pages = file_.pages;
  pages.data += taken_;
  pages.bytes = region_room(heads);
  taken_ += pages.bytes;
  forbid(pages.data + bytes, pages.bytes - bytes);
  return pages;
}

std::optional<Error> KvCache::add_region(int home, int first_head, int past_head, const std::vector<int>& nodes) {
  if (first_head == past_head) return std::nullopt;
  const int64_t step = head_bytes_ * (past_head - first_head);
  auto pages = take_pages(past_head - first_head);
  if (!pages) return pages.error();
  if (const int code = prefer_nodes(pages.value(), nodes)) refused_ = code;
  for (int head = first_head; head < past_head; ++head)
    places_.push_back({pages.value().data + (head - first_head) * head_bytes_, step});
  regions_.push_back({home, first_head, past_head, pages.value()});
  return std::nullopt;
}

KvLayout KvCache::layout() const {
  KvLayout layout{shape_, tile_bytes_, blocks_, 0, {}};
  for (const Region& region : regions_) {
    const int64_t step = head_bytes_ * (region.past_head - region.first_head);
    layout.regions.push_back({region.first_head, region.past_head, layout.nbytes, step, shape_.layers * step,
                              head_bytes_, 0, shape_.layers});
    layout.nbytes += static_cast<int64_t>(region.pages.bytes);
  }
  if (in_file()) layout.nbytes = static_cast<int64_t>(file_.pages.bytes);
  return layout;
}

// Takes pages without changing what they hold, whoever else writes there now.
void touch(std::byte* data, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kSmallPage)
    __atomic_fetch_or(reinterpret_cast<uint8_t*>(data + at), uint8_t{0}, __ATOMIC_RELAXED);
}

// Every region is shared by the threads at its home. A file is all zero from the kernel, or holds what is to stay.
void KvCache::clear(ThreadPool& pool, const Homes* homes) {
  const int64_t count = int64_t(shape_.layers) * blocks_;
  pool.run([&](int thread) {
    for (const Region& region : regions_) {
      if (homes && homes->of_thread[static_cast<size_t>(thread)] != region.home) continue;
      const Homes::Turn turn = homes ? homes->turn(thread) : Homes::Turn{thread, pool.size()};
      const int64_t begin = count * turn.index / turn.of, end = count * (turn.index + 1) / turn.of,
                    block_bytes = head_bytes_ * (region.past_head - region.first_head);
      std::byte* const data = region.pages.data + begin * block_bytes;
      const auto bytes = static_cast<size_t>((end - begin) * block_bytes);
      if (in_file()) touch(data, bytes);
      else std::memset(data, 0, bytes);
    }
  });
}

// Has the kernel take each stripe from its home, where homes have nodes. Huge pages are the home's that has most of
// them.
void KvCache::place_stripes(const Homes& homes) {
  const Pages& pages = regions_[0].pages;
  const auto page = static_cast<int64_t>(pages.bytes >= kHugePage ? kHugePage : kSmallPage);
  const auto boundary = [&](int64_t block) {
    return block >= blocks_ ? static_cast<int64_t>(pages.bytes) : (block * block_bytes() + page / 2) / page * page;
  };
  for (int64_t first = 0; first < blocks_ && !homes.nodes.empty(); first += block_homes_.stripe) {
    const int64_t begin = boundary(first), end = boundary(first + block_homes_.stripe);
    if (begin >= end) continue;
    const Pages part{nullptr, pages.data + begin, static_cast<size_t>(end - begin)};
    if (const int code = prefer_nodes(part, {homes.nodes[block_homes_.of(first)]})) refused_ = code;
  }
}

// Every stripe is shared by the threads at its home.
void KvCache::clear_stripes(ThreadPool& pool, const Homes& homes) {
  pool.run([&](int thread) {
    const Homes::Turn turn = homes.turn(thread);
    const auto home = static_cast<size_t>(homes.of_thread[static_cast<size_t>(thread)]);
    for (int64_t first = 0; first < blocks_; first += block_homes_.stripe) {
      if (block_homes_.of(first) != home) continue;
      const int64_t count = std::min(block_homes_.stripe, blocks_ - first) * block_bytes(),
                    begin = count * turn.index / turn.of, end = count * (turn.index + 1) / turn.of;
      std::byte* const data = regions_[0].pages.data + first * block_bytes() + begin;
      if (in_file()) touch(data, static_cast<size_t>(end - begin));
      else std::memset(data, 0, static_cast<size_t>(end - begin));
    }
  });
}

}  // namespace homenode
