#include "kernels/kv_memory.h"

#include <string>

namespace homenode {

Result<std::shared_ptr<KvMemory>> KvMemory::of(std::shared_ptr<KvCache> cache) {
  auto memory = std::make_shared<KvMemory>();
  memory->layout_ = cache->layout();
  memory->writable_ = true;
  memory->fd_ = cache->file();
  std::vector<std::byte*> regions;
  for (const KvCache::Region& region : cache->regions()) regions.push_back(region.pages.data);
  memory->place(regions);
  memory->owner_ = std::move(cache);
  return memory;
}

Result<std::shared_ptr<KvMemory>> KvMemory::pool(const KvShape& shape, int64_t blocks, Sharing sharing, const std::vector<int>& nodes) {
  if (auto error = check(shape)) return std::move(*error);
  int64_t bytes;
  if (blocks < 1 || blocks > INT32_MAX || __builtin_mul_overflow(head_bytes_of(shape) * shape.kv_heads, shape.layers * blocks, &bytes)) {
    return Error{Fault::user, 0, "a pool of " + std::to_string(blocks) + " KV blocks; wanted at least 1 and no more bytes than an address space"};
  }
  auto file = create_shared(static_cast<size_t>(bytes) + kKvSlack, "homenode KV pool", sharing);
  if (!file) return file.error();
  prefer_nodes(file.value().pages, nodes);  // where that is refused, pages come from the node of this thread
  if (auto error = populate(file.value().pages)) return std::move(*error);
  auto memory = std::make_shared<KvMemory>();
  memory->layout_ = page_layout(shape, blocks);
  memory->layout_.nbytes = static_cast<int64_t>(file.value().pages.bytes);
  memory->writable_ = true;
  memory->fd_ = file.value().fd;
  memory->owner_ = file.value().pages.owner;
  memory->place({file.value().pages.data});
  return memory;
}

Result<std::shared_ptr<KvMemory>> KvMemory::map(int fd, const KvLayout& layout, bool writable) {
  if (auto error = check(layout)) return std::move(*error);
  auto pages = map_shared(fd, static_cast<size_t>(layout.nbytes), writable);
  if (!pages) return pages.error();
  auto memory = std::make_shared<KvMemory>();
  memory->layout_ = layout;
  memory->writable_ = writable;
  memory->owner_ = pages.value().owner;
  std::vector<std::byte*> regions;
  for (const KvRegion& region : layout.regions) regions.push_back(pages.value().data + region.offset);
  memory->place(regions);
  return memory;
}

void KvMemory::place(const std::vector<std::byte*>& regions) {
  for (size_t i = 0; i < regions.size(); ++i) {
    const KvRegion& region = layout_.regions[i];
    extents_.push_back({regions[i], extent_of(layout_, region)});
    for (int head = region.first_head; head < region.past_head; ++head) {
      places_.push_back({regions[i] + (head - region.first_head) * region.head_stride, region.layer_stride, region.block_stride});
    }
  }
}

std::vector<KvMemory::Part> KvMemory::parts(int64_t block, int tiles) const {
  std::vector<Part> found;
  const int64_t bytes = tiles * layout_.tile_bytes, to_values = this->tiles() * layout_.tile_bytes;
  const auto add = [&found, bytes](int region, int64_t offset) {
    if (Part* last = found.empty() ? nullptr : &found.back(); last && last->region == region && last->offset + last->bytes == offset) last->bytes += bytes;
    else found.push_back({region, offset, bytes});
  };
  for (int layer = 0; layer < shape().layers && tiles; ++layer) {
    for (int region = 0; region < static_cast<int>(extents_.size()); ++region) {
      const KvRegion& at = layout_.regions[static_cast<size_t>(region)];
      for (int head = at.first_head; head < at.past_head; ++head) {
        const int64_t keys = this->head(layer, block, head) - extents_[static_cast<size_t>(region)].data;
        add(region, keys);
        add(region, keys + to_values);
      }
    }
  }
  return found;
}

}  // namespace homenode
