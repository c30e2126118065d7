#include "bind/bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include "host/epoch_words.h"
#include "kernels/kv_copy.h"
#include "kernels/kv_memory.h"

namespace homenode {
namespace {

constexpr int kMostThreads = 64;

using ShapeNumbers = std::tuple<int, int, int, int, KvType>;  // layers, heads, head_dim, block_size, type
using RegionNumbers = std::tuple<int, int, int64_t, int64_t, int64_t, int64_t, int, int>;  // as KvRegion
using LayoutNumbers = std::tuple<ShapeNumbers, int64_t, int64_t, int64_t, std::vector<RegionNumbers>>;  // shape, tile_bytes, blocks, nbytes, regions

KvShape shape_of(const ShapeNumbers& numbers) {
  const auto& [layers, heads, head_dim, block_size, type] = numbers;
  return {layers, heads, head_dim, block_size, type};
}

KvLayout layout_of(const LayoutNumbers& numbers) {
  const auto& [shape, tile_bytes, blocks, nbytes, regions] = numbers;
  KvLayout layout{shape_of(shape), tile_bytes, blocks, nbytes, {}};
  for (const auto& [first, past, offset, layer, block, head, first_layer, past_layer] : regions) {
    layout.regions.push_back({first, past, offset, layer, block, head, first_layer, past_layer});
  }
  return layout;
}

LayoutNumbers numbers_of(const KvMemory& memory) {
  const KvLayout& layout = memory.layout();
  const KvShape& shape = layout.shape;
  std::vector<RegionNumbers> regions;
  for (const KvRegion& r : layout.regions) {
    regions.emplace_back(r.first_head, r.past_head, r.offset, r.layer_stride, r.block_stride, r.head_stride, r.first_layer, r.past_layer);
  }
  return {{shape.layers, shape.kv_heads, shape.head_dim, shape.block_size, shape.type}, layout.tile_bytes, layout.blocks, layout.nbytes, regions};
}

template <class Make>
auto unlocked(Make&& make) {
  auto result = [&] {
    nb::gil_scoped_release released;
    return make();
  }();
  return take(std::move(result));
}

// The bytes of each region, as arrays that keep the memory.
nb::list views_of(const std::shared_ptr<KvMemory>& memory) {
  nb::list views;
  for (const KvMemory::Extent& extent : memory->extents()) {
    const size_t bytes = static_cast<size_t>(extent.bytes);
    const nb::object owner = nb::cast(memory);
    if (memory->writable()) views.append(nb::ndarray<nb::numpy, uint8_t>(extent.data, {bytes}, owner));
    else views.append(nb::ndarray<nb::numpy, const uint8_t>(extent.data, {bytes}, owner));
  }
  return views;
}

std::vector<std::tuple<int, int64_t, int64_t>> parts_of(const KvMemory& memory, int64_t block, int tiles) {
  if (block < 0 || block >= memory.blocks() || tiles < 0 || tiles > memory.tiles()) {
    raise({Fault::user, 0, std::to_string(tiles) + " tiles of block " + std::to_string(block) + "; there are " + std::to_string(memory.blocks()) + " blocks of " + std::to_string(memory.tiles())});
  }
  std::vector<std::tuple<int, int64_t, int64_t>> found;
  for (const KvMemory::Part& part : memory.parts(block, tiles)) found.emplace_back(part.region, part.offset, part.bytes);
  return found;
}

// For each page 8 bytes for each head; none for a page that is not there.
std::vector<nb::bytes> bytes_of(const KvDigests& digests, const KvPages& pages) {
  const auto heads = static_cast<size_t>(pages.past_head - pages.first_head);
  std::vector<nb::bytes> found;
  for (size_t p = 0; p < static_cast<size_t>(pages.count); ++p) {
    const bool there = is_there(pages, pages.first + static_cast<int64_t>(p));
    found.emplace_back(reinterpret_cast<const char*>(digests.data() + p * heads), there ? heads * sizeof(uint64_t) : 0);
  }
  return found;
}

int threads_of(int threads) {
  if (threads < 1 || threads > kMostThreads) raise({Fault::user, 0, std::to_string(threads) + " threads to copy KV memory; wanted 1 to " + std::to_string(kMostThreads)});
  return threads;
}

std::vector<nb::bytes> digests(const KvMemory& memory, Level level, const std::vector<int32_t>& table, int64_t first, int64_t count, int64_t tokens,
                               int64_t page_tokens) {
  const KvPages pages{&memory, table, first, count, tokens, page_tokens, 0, memory.shape().kv_heads};
  return bytes_of(*unlocked([&] { return copy_pages(pages, nullptr, nullptr, kernels(level), 1); }), pages);
}

std::optional<std::vector<nb::bytes>> copy(Level level, KvMemory& target, const std::vector<int32_t>& target_table, const KvMemory& source,
                                           const std::vector<int32_t>& source_table, int64_t first, int64_t count, int64_t tokens,
                                           int64_t page_tokens, std::optional<std::pair<int, int>> heads, int target_first_head, const EpochWords* words,
                                           const std::vector<uint64_t>& expected, int threads) {
  const auto [first_head, past_head] = heads.value_or(std::pair<int, int>{0, source.shape().kv_heads});
  const KvPages pages{&source, source_table, first, count, tokens, page_tokens, first_head, past_head};
  const KvTarget to{&target, target_table, target_first_head};
  const KvEpochs epochs{words, expected};
  const int workers = threads_of(threads);
  const auto found = unlocked([&] { return copy_pages(pages, &to, words ? &epochs : nullptr, kernels(level), workers); });
  if (!found) return std::nullopt;
  return bytes_of(*found, pages);
}

int64_t checked(const EpochWords& words, int64_t i) {
  if (i < 0 || i >= words.count()) raise({Fault::user, 0, "epoch word " + std::to_string(i) + " of " + std::to_string(words.count())});
  return i;
}

void write_words(EpochWords& words, const std::vector<int64_t>& places, const std::vector<uint64_t>& epochs) {
  if (!words.writable()) raise({Fault::user, 0, "epoch words of another process are for reading only"});
  if (places.size() != epochs.size()) raise({Fault::user, 0, std::to_string(epochs.size()) + " epochs for " + std::to_string(places.size()) + " words"});
  for (const int64_t place : places) checked(words, place);
  for (size_t i = 0; i < places.size(); ++i) words.store(places[i], epochs[i]);
}

// Whether nothing was given to others. What was read of the parts before is what they were told of, too.
bool hold(const EpochWords& words, const std::vector<int64_t>& places, const std::vector<uint64_t>& epochs) {
  if (places.size() != epochs.size()) raise({Fault::user, 0, std::to_string(epochs.size()) + " epochs for " + std::to_string(places.size()) + " words"});
  for (size_t i = 0; i < places.size(); ++i) {
    if (words.load_again(checked(words, places[i])) != epochs[i]) return false;
  }
  __atomic_thread_fence(__ATOMIC_ACQUIRE);  // nor are the reads that come after early
  return true;
}

}  // namespace

void bind_kv_memory(nb::module_& m) {
  nb::class_<KvMemory>(m, "KvMemory", "KV memory that can be copied from and to.")
      .def_static("of", [](std::shared_ptr<KvCache> cache) { return take(KvMemory::of(std::move(cache))); }, nb::arg("cache"))
      .def_static("pool",
                  [](const ShapeNumbers& shape, int64_t blocks, Sharing sharing, const std::vector<int>& nodes) {
                    return unlocked([&] { return KvMemory::pool(shape_of(shape), blocks, sharing, nodes); });
                  },
                  nb::arg("shape"), nb::arg("blocks"), nb::arg("sharing"), nb::arg("nodes"))
      .def_static("map", [](int fd, const LayoutNumbers& layout, bool writable) { return take(KvMemory::map(fd, layout_of(layout), writable)); },
                  nb::arg("fd"), nb::arg("layout"), nb::arg("writable"), "Of another process; the descriptor is not kept.")
      .def_prop_ro("layout", &numbers_of, "Shape, bytes of a tile, blocks, bytes, regions.")
      .def_prop_ro("fd", &KvMemory::fd)
      .def_prop_ro("writable", &KvMemory::writable)
      .def_prop_ro("views", [](const std::shared_ptr<KvMemory>& memory) { return views_of(memory); }, "The bytes of each region.")
      .def("parts", &parts_of, nb::arg("block"), nb::arg("tiles"), "Region, offset and bytes of the pieces of a block.")
      .def("digests", &digests, nb::arg("level"), nb::arg("table"), nb::arg("first_page"), nb::arg("pages"), nb::arg("tokens"),
           nb::arg("page_tokens"));
  m.def("copy_kv", &copy, nb::arg("level"), nb::arg("target"), nb::arg("target_table"), nb::arg("source"), nb::arg("source_table"), nb::arg("first_page"),
        nb::arg("pages"), nb::arg("tokens"), nb::arg("page_tokens"), nb::arg("source_heads") = nb::none(), nb::arg("target_first_head") = 0, nb::arg("epoch_words") = nb::none(),
        nb::arg("epochs") = std::vector<uint64_t>(), nb::arg("threads") = 1, "The digests of the pages; None when an epoch word was not what it must be.");
  nb::class_<EpochWords>(m, "EpochWords", "Numbers for the parts of a memory, in a memfd that only its maker writes.")
      .def_static("create", [](int64_t count) { return take(EpochWords::create(count)); }, nb::arg("count"))
      .def_static("map", [](int fd, int64_t count) { return take(EpochWords::map(fd, count)); }, nb::arg("fd"), nb::arg("count"))
      .def_prop_ro("count", &EpochWords::count)
      .def_prop_ro("fd", &EpochWords::fd)
      .def("read", [](const EpochWords& words, int64_t i) { return words.load(checked(words, i)); }, nb::arg("word"))
      .def("hold", &hold, nb::arg("words"), nb::arg("epochs"), "Whether these words are still what they were.")
      .def("write", &write_words, nb::arg("words"), nb::arg("epochs"));
}

}  // namespace homenode
