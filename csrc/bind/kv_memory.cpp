#include "bind/bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include "host/epoch_words.h"
#include "kv/copy.h"
#include "kv/memory.h"

namespace homenode {
namespace {

constexpr int kMostThreads = 64;

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
    raise({Fault::user, 0,
           std::to_string(tiles) + " tiles of block " + std::to_string(block) + "; there are " +
               std::to_string(memory.blocks()) + " blocks of " + std::to_string(memory.tiles())});
  }
  std::vector<std::tuple<int, int64_t, int64_t>> found;
  for (const KvMemory::Part& part : memory.parts(block, tiles))
    found.emplace_back(part.region, part.offset, part.bytes);
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
  if (threads < 1 || threads > kMostThreads)
    raise({Fault::user, 0,
           std::to_string(threads) + " threads to copy KV memory; wanted 1 to " + std::to_string(kMostThreads)});
  return threads;
}

// KvPages, KvTarget and KvEpochs with what they point to.
struct BoundPages {
  std::shared_ptr<KvMemory> memory;
  std::vector<int32_t> table;
  KvPages pages() const {
    KvPages found = of;
    found.memory = memory.get(), found.table = table;
    return found;
  }
  KvPages of;
};

struct BoundTarget {
  std::shared_ptr<KvMemory> memory;
  std::vector<int32_t> table;
  int first_head;
};

struct BoundEpochs {
  std::shared_ptr<EpochWords> words;
  std::vector<uint64_t> expected;
};

void make_pages(BoundPages* self, std::shared_ptr<KvMemory> memory, std::vector<int32_t> table, int64_t first,
                int64_t count, int64_t tokens, int64_t page_tokens, std::optional<std::pair<int, int>> heads) {
  const auto [first_head, past_head] = heads.value_or(std::pair<int, int>{0, memory->shape().kv_heads});
  const KvPages of{.memory = nullptr,
                   .table = {},
                   .first = first,
                   .count = count,
                   .tokens = tokens,
                   .page_tokens = page_tokens,
                   .first_head = first_head,
                   .past_head = past_head};
  new (self) BoundPages{std::move(memory), std::move(table), of};
}

std::vector<nb::bytes> digests(Level level, const BoundPages& bound) {
  const KvPages pages = bound.pages();
  return bytes_of(*unlocked([&] { return copy_pages(pages, nullptr, nullptr, kernels(level), 1); }), pages);
}

std::optional<std::vector<nb::bytes>> copy(Level level, const BoundPages& source, const BoundTarget& target,
                                           const BoundEpochs* epochs, int threads) {
  const KvPages pages = source.pages();
  const KvTarget to{.memory = target.memory.get(), .table = target.table, .first_head = target.first_head};
  const KvEpochs words{.words = epochs ? epochs->words.get() : nullptr,
                       .expected = epochs ? std::span<const uint64_t>(epochs->expected) : std::span<const uint64_t>()};
  const int workers = threads_of(threads);
  const auto found =
      unlocked([&] { return copy_pages(pages, &to, epochs ? &words : nullptr, kernels(level), workers); });
  if (!found) return std::nullopt;
  return bytes_of(*found, pages);
}

int64_t checked(const EpochWords& words, int64_t i) {
  if (i < 0 || i >= words.count())
    raise({Fault::user, 0, "epoch word " + std::to_string(i) + " of " + std::to_string(words.count())});
  return i;
}

void write_words(EpochWords& words, const std::vector<int64_t>& places, const std::vector<uint64_t>& epochs) {
  if (!words.writable()) raise({Fault::user, 0, "epoch words of another process are for reading only"});
  if (places.size() != epochs.size())
    raise({Fault::user, 0, std::to_string(epochs.size()) + " epochs for " + std::to_string(places.size()) + " words"});
  for (const int64_t place : places) checked(words, place);
  for (size_t i = 0; i < places.size(); ++i) words.store(places[i], epochs[i]);
}

// Whether nothing was given to others. What was read of the parts before is what they were told of, too.
bool hold(const EpochWords& words, const std::vector<int64_t>& places, const std::vector<uint64_t>& epochs) {
  if (places.size() != epochs.size())
    raise({Fault::user, 0, std::to_string(epochs.size()) + " epochs for " + std::to_string(places.size()) + " words"});
  for (size_t i = 0; i < places.size(); ++i) {
    if (words.load_again(checked(words, places[i])) != epochs[i]) return false;
  }
  __atomic_thread_fence(__ATOMIC_ACQUIRE);  // nor are the reads that come after early
  return true;
}

void bind_layout(nb::module_& m) {
  nb::class_<KvRegion>(m, "NativeKvRegion",
                       "Some heads of some layers: head h of block b in layer l begins at offset + (l - first_layer) * "
                       "layer_stride + b * block_stride + (h - first_head) * head_stride, in bytes.")
      .def(nb::init<>())
      .def_rw("first_head", &KvRegion::first_head)
      .def_rw("past_head", &KvRegion::past_head)
      .def_rw("offset", &KvRegion::offset)
      .def_rw("layer_stride", &KvRegion::layer_stride)
      .def_rw("block_stride", &KvRegion::block_stride)
      .def_rw("head_stride", &KvRegion::head_stride)
      .def_rw("first_layer", &KvRegion::first_layer)
      .def_rw("past_layer", &KvRegion::past_layer);
  nb::class_<KvLayout>(m, "NativeKvLayout", "Where everything in a KV memory is.")
      .def(
          "__init__",
          [](KvLayout* self, const KvShape& shape, int64_t tile_bytes, int64_t blocks, int64_t nbytes,
             std::vector<KvRegion> regions) {
            new (self) KvLayout{.shape = shape,
                                .tile_bytes = tile_bytes,
                                .blocks = blocks,
                                .nbytes = nbytes,
                                .regions = std::move(regions)};
          },
          nb::kw_only(), nb::arg("shape"), nb::arg("tile_bytes"), nb::arg("blocks"), nb::arg("nbytes"),
          nb::arg("regions"))
      .def_ro("shape", &KvLayout::shape)
      .def_ro("tile_bytes", &KvLayout::tile_bytes)
      .def_ro("blocks", &KvLayout::blocks)
      .def_ro("nbytes", &KvLayout::nbytes)
      .def_ro("regions", &KvLayout::regions);
}

void bind_copy(nb::module_& m) {
  nb::class_<BoundPages>(m, "NativeKvPages",
                         "Pages first .. first + count - 1 of a sequence, in the blocks of `table`.")
      .def("__init__", &make_pages, nb::kw_only(), nb::arg("memory"), nb::arg("table"), nb::arg("first"),
           nb::arg("count"), nb::arg("tokens"), nb::arg("page_tokens"), nb::arg("heads") = nb::none(),
           "table: the blocks of the whole sequence, of `tokens` positions; -1: one that is not there. heads: the "
           "first and one past the last; None: all.");
  nb::class_<BoundTarget>(m, "KvTarget", "Where pages are copied to.")
      .def(
          "__init__",
          [](BoundTarget* self, std::shared_ptr<KvMemory> memory, std::vector<int32_t> table, int first_head) {
            new (self) BoundTarget{std::move(memory), std::move(table), first_head};
          },
          nb::kw_only(), nb::arg("memory"), nb::arg("table"), nb::arg("first_head") = 0,
          "first_head: where the first head that is copied goes.");
  nb::class_<BoundEpochs>(m, "KvEpochs", "What the epoch words of the source's blocks must be, for each page.")
      .def(
          "__init__",
          [](BoundEpochs* self, std::shared_ptr<EpochWords> words, std::vector<uint64_t> expected) {
            new (self) BoundEpochs{std::move(words), std::move(expected)};
          },
          nb::kw_only(), nb::arg("words"), nb::arg("expected"));
  m.def("digest_kv", &digests, nb::arg("level"), nb::arg("pages"),
        "For each page 8 bytes for each head; none for a page that is not there.");
  m.def("copy_kv", &copy, nb::arg("level"), nb::arg("source"), nb::arg("target"), nb::kw_only(),
        nb::arg("epochs").none() = nb::none(), nb::arg("threads") = 1,
        "The digests of the pages; None when an epoch word was not what it must be.");
}

}  // namespace

void bind_kv_memory(nb::module_& m) {
  bind_layout(m);
  nb::class_<KvMemory>(m, "KvMemoryHandle", "KV memory that can be copied from and to.")
      .def_static(
          "of", [](std::shared_ptr<KvCache> cache) { return take(KvMemory::of(std::move(cache))); }, nb::arg("cache"))
      .def_static(
          "pool",
          [](const KvShape& shape, int64_t blocks, Sharing sharing, const std::vector<int>& nodes) {
            return unlocked([&] { return KvMemory::pool(shape, blocks, sharing, nodes); });
          },
          nb::arg("shape"), nb::arg("blocks"), nb::arg("sharing"), nb::arg("nodes"))
      .def_static(
          "map",
          [](int fd, const KvLayout& layout, bool writable) { return take(KvMemory::map(fd, layout, writable)); },
          nb::arg("fd"), nb::arg("layout"), nb::arg("writable"), "Of another process; the descriptor is not kept.")
      .def_prop_ro("layout", [](const KvMemory& memory) { return memory.layout(); })
      .def_prop_ro("fd", &KvMemory::fd)
      .def_prop_ro("writable", &KvMemory::writable)
      .def_prop_ro(
          "views", [](const std::shared_ptr<KvMemory>& memory) { return views_of(memory); },
          nb::sig("def views(self) -> list[NDArray[numpy.uint8]]"), "The bytes of each region.")
      .def("parts", &parts_of, nb::arg("block"), nb::arg("tiles"),
           "Region, offset and bytes of the pieces of a block.");
  nb::class_<EpochWords>(m, "EpochWordsHandle",
                         "Numbers for the parts of a memory, in a memfd that only its maker writes.")
      .def_static(
          "create", [](int64_t count) { return take(EpochWords::create(count)); }, nb::arg("count"))
      .def_static(
          "map", [](int fd, int64_t count) { return take(EpochWords::map(fd, count)); }, nb::arg("fd"),
          nb::arg("count"))
      .def_prop_ro("count", &EpochWords::count)
      .def_prop_ro("fd", &EpochWords::fd)
      .def(
          "read", [](const EpochWords& words, int64_t i) { return words.load(checked(words, i)); }, nb::arg("word"))
      .def("hold", &hold, nb::arg("words"), nb::arg("epochs"), "Whether these words are still what they were.")
      .def("write", &write_words, nb::arg("words"), nb::arg("epochs"));
  bind_copy(m);
}

}  // namespace homenode
