// Memory of others that attention reads in place: see KvCache::attach.
#include <algorithm>
#include <string>

#include "kv/cache.h"
#include "kv/memory.h"

namespace homenode {
namespace {

// Whether readers that go kKvSlack bytes past the last head of a region stay within the memory.
bool has_slack(const KvMemory& memory) {
  const KvLayout& layout = memory.layout();
  return std::all_of(layout.regions.begin(), layout.regions.end(), [&layout](const KvRegion& region) {
    return layout.nbytes - region.offset - extent_of(layout, region) >= kKvSlack;
  });
}

}  // namespace

Result<int32_t> KvCache::attach(std::shared_ptr<const KvMemory> memory, std::optional<int64_t> wanted) {
  if (!(memory->shape() == shape_))
    return Error{Fault::user, 0,
                 "attached KV memory: its layers, heads, block size or type are not those of the KV cache"};
  if (!has_slack(*memory))
    return Error{Fault::user, 0,
                 "attached KV memory: wanted " + std::to_string(kKvSlack) + " bytes behind every region"};
  const std::lock_guard<std::mutex> lock(change_);
  const int64_t least = std::max(next_first_, blocks_), first = std::min<int64_t>(wanted.value_or(least), INT32_MAX),
                past = first + memory->blocks();
  if (first < least)
    return Error{Fault::user, 0,
                 "attached KV memory: block " + std::to_string(first) + " on is taken up to " + std::to_string(least)};
  if (past > INT32_MAX) return Error{Fault::user, 0, "attached KV memory: no numbers are left for its blocks"};
  auto changed = std::make_shared<std::vector<Attached>>(*attached_);
  changed->push_back({first, past, std::move(memory)});
  attached_ = std::move(changed);
  next_first_ = past;
  return static_cast<int32_t>(first);
}

std::optional<Error> KvCache::detach(int32_t first) {
  std::shared_ptr<const std::vector<Attached>> former;  // goes after the lock
  const std::lock_guard<std::mutex> lock(change_);
  auto changed = std::make_shared<std::vector<Attached>>(*attached_);
  if (!std::erase_if(*changed, [first](const Attached& a) { return a.first == first; })) {
    return Error{Fault::user, 0, "detaching KV memory: none begins with block " + std::to_string(first)};
  }
  former = std::move(attached_);
  attached_ = std::move(changed);
  return std::nullopt;
}

KvCache::Reading::Reading(const KvCache& cache) : turn_(cache.one_reader_) {
  const std::lock_guard<std::mutex> lock(cache.change_);
  cache.reading_ = cache.attached_.get();
  attached_ = cache.attached_;
}

const KvCache::Attached* KvCache::find(int64_t block) const {
  for (const Attached& attached : *reading_) {
    if (block >= attached.first && block < attached.past) return &attached;
  }
  return nullptr;
}

const std::byte* KvCache::attached_head(int layer, int64_t block, int kv_head) const {
  const Attached* attached = find(block);
  return attached->memory->head(layer, block - attached->first, kv_head);
}

}  // namespace homenode
