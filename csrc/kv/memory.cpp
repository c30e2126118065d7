#include "kv/memory.h"

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

Result<std::shared_ptr<KvMemory>> KvMemory::pool(const KvShape& shape, int64_t blocks, Sharing sharing,
                                                 const std::vector<int>& nodes) {
  if (auto error = check(shape)) return std::move(*error);
  int64_t bytes;
  if (blocks < 1 || blocks > INT32_MAX ||
      __builtin_mul_overflow(head_bytes_of(shape) * shape.kv_heads, shape.layers * blocks, &bytes)) {
    return Error{Fault::user, 0,
                 "a pool of " + std::to_string(blocks) +
                     " KV blocks; wanted at least 1 and no more bytes than an address space"};
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
  const size_t cells = static_cast<size_t>(shape().layers) * static_cast<size_t>(shape().kv_heads);
  places_.assign(cells, Place{nullptr, 0, -1});
  for (size_t i = 0; i < regions.size(); ++i) {
    const KvRegion& region = layout_.regions[i];
    extents_.push_back({regions[i], extent_of(layout_, region)});
    for (int layer = region.first_layer; layer < region.past_layer; ++layer) {
      for (int head = region.first_head; head < region.past_head; ++head) {
        std::byte* const first = regions[i] + (layer - region.first_layer) * region.layer_stride +
                                 (head - region.first_head) * region.head_stride;
        Place& place = places_[cell(layer, head)];
        const bool again = place.region >= 0;
        if (again && copies_.empty()) copies_.resize(cells);
        (again ? copies_[cell(layer, head)].emplace_back() : place) = {first, region.block_stride, static_cast<int>(i)};
      }
    }
  }
}

std::vector<KvMemory::Part> KvMemory::parts(int64_t block, int tiles) const {
  std::vector<Part> found;
  const int64_t bytes = tiles * layout_.tile_bytes, to_values = this->tiles() * layout_.tile_bytes;
  const auto add = [&found, bytes](int region, int64_t offset) {
    if (Part* last = found.empty() ? nullptr : &found.back();
        last && last->region == region && last->offset + last->bytes == offset)
      last->bytes += bytes;
    else found.push_back({region, offset, bytes});
  };
  for (int layer = 0; layer < shape().layers && tiles; ++layer) {
    for (int head = 0; head < shape().kv_heads; ++head) {
      const Place& place = places_[cell(layer, head)];
      const int64_t keys = place.of(block) - extents_[static_cast<size_t>(place.region)].data;
      add(place.region, keys);
      if (shape().sides == 2) add(place.region, keys + to_values);
    }
  }
  return found;
}

}  // namespace homenode
