#include "bind/bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <set>

#include "host/arena.h"
#include "host/shared_words.h"
#include "kv/cache.h"
#include "kv/memory.h"
#include "weights/packed_file.h"
#include "weights/stored_table.h"

namespace homenode {
namespace {

// Matrices larger than this are not weights of anything.
constexpr int64_t kMostElements = int64_t(1) << 40;

void check_shape(int64_t rows, int64_t columns) {
  if (rows < 1 || columns < 1 || rows > kMostElements / columns) {
    raise({Fault::user, 0,
           "a weight of " + std::to_string(rows) + " x " + std::to_string(columns) +
               "; wanted positive sizes and at most 2^40 elements"});
  }
}

std::pair<uint64_t, uint64_t> numbers(const MemoryRange& range) {
  return {reinterpret_cast<uintptr_t>(range.data), range.bytes};
}

// Runs `make` without the interpreter lock.
template <class F>
WeightHandle packed(std::shared_ptr<ThreadPool> pool, F&& make) {
  auto result = [&] {
    nb::gil_scoped_release unlocked;
    return make(*pool);
  }();
  return {take(std::move(result)), std::move(pool)};
}

// The constructors that Python calls with keywords.
void make_file(WeightFile* self, int fd, uint64_t offset, int format, int permuted_heads, uint64_t stride) {
  new (self) WeightFile{.fd = fd,
                        .offset = offset,
                        .format = static_cast<Format>(format),
                        .permuted_heads = permuted_heads,
                        .stride = stride};
}

void make_shape(WeightShape* self, int format, int64_t rows, int64_t columns, NumaPolicy policy,
                std::shared_ptr<WeightMemory> shared, uint64_t shared_offset) {
  check_shape(rows, columns);
  new (self) WeightShape{.format = static_cast<Format>(format),
                         .rows = rows,
                         .columns = columns,
                         .policy = policy,
                         .shared = {std::move(shared), shared_offset}};
}

WeightHandle from_file(std::shared_ptr<ThreadPool> pool, const WeightFile& file, const WeightShape& shape,
                       Arena* arena) {
  return packed(std::move(pool), [&](ThreadPool& t) { return weight_from_file(t, file, shape, arena); });
}

WeightHandle from_rows(std::shared_ptr<ThreadPool> pool, const Array2<float>& rows, const WeightShape& shape,
                       Arena* arena) {
  const auto n = static_cast<int64_t>(rows.shape(0)), columns = static_cast<int64_t>(rows.shape(1));
  if (n != shape.rows || columns != shape.columns) {
    raise({Fault::user, 0,
           "an array of " + std::to_string(n) + " x " + std::to_string(columns) + " for a weight of " +
               std::to_string(shape.rows) + " x " + std::to_string(shape.columns)});
  }
  const float* data = rows.data();
  return packed(std::move(pool), [&](ThreadPool& t) { return weight_from_rows(t, data, shape, arena); });
}

uint64_t write(const WeightHandle& handle, int fd, uint64_t offset) {
  auto result = [&] {
    nb::gil_scoped_release unlocked;
    return write_packed(*handle.pool, *handle.weight, fd, offset);
  }();
  return take(std::move(result));
}

std::vector<std::pair<WeightHandle, uint64_t>> read(const std::shared_ptr<ThreadPool>& pool, int fd,
                                                    const std::vector<std::pair<uint64_t, WeightShape>>& weights,
                                                    Arena* arena) {
  std::vector<PackedWeight> stored;
  for (const auto& [offset, shape] : weights) stored.push_back({offset, shape});
  auto result = [&] {
    nb::gil_scoped_release unlocked;
    return read_packed(*pool, fd, stored, arena);
  }();
  std::vector<std::pair<WeightHandle, uint64_t>> found;
  for (ReadWeight& read : take(std::move(result)))
    found.emplace_back(WeightHandle{std::move(read.weight), pool}, read.checksum);
  return found;
}

WeightHandle attach(std::shared_ptr<ThreadPool> pool, const WeightShape& shape) {
  auto weight = take(attach_weight(pool->size(), shape));
  return {std::move(weight), std::move(pool)};
}

int64_t word_of(const SharedWords& words, int64_t i) {
  if (i < 0 || i >= words.count())
    raise({Fault::user, 0, "shared word " + std::to_string(i) + " of " + std::to_string(words.count())});
  return i;
}

void bind_shared_weights(nb::module_& m) {
  nb::class_<SharedWords>(m, "NativeSharedWords", "Words at the beginning of a memfd that several processes write.")
      .def_static(
          "map", [](int fd, int64_t count) { return take(SharedWords::map(fd, count)); }, nb::arg("fd"),
          nb::arg("count"))
      .def(
          "load", [](const SharedWords& words, int64_t i) { return words.load(word_of(words, i)); }, nb::arg("word"))
      .def(
          "store", [](SharedWords& words, int64_t i, uint64_t value) { words.store(word_of(words, i), value); },
          nb::arg("word"), nb::arg("value"))
      .def(
          "exchange",
          [](SharedWords& words, int64_t i, uint64_t expected, uint64_t value) {
            return words.exchange(word_of(words, i), expected, value);
          },
          nb::arg("word"), nb::arg("expected"), nb::arg("value"),
          "Write `value` where the word is `expected`; the result is what it was.");
  nb::class_<WeightMemory>(m, "WeightMemory", "Packed weights that several processes keep in one memfd.")
      .def_static(
          "map", [](int fd, uint64_t bytes) { return take(WeightMemory::map(fd, bytes)); }, nb::arg("fd"),
          nb::arg("nbytes"))
      .def_prop_ro(
          "range", [](const WeightMemory& memory) { return numbers({memory.pages().data, memory.pages().bytes}); },
          "Address and bytes.")
      .def(
          "open",
          [](WeightMemory& memory, uint64_t begin, uint64_t end) {
            if (const auto error = memory.open(begin, end)) raise(*error);
          },
          nb::arg("begin"), nb::arg("end"), "Let some of it, whole pages, be written, and nothing else.")
      .def(
          "close",
          [](WeightMemory& memory) {
            if (const auto error = memory.close()) raise(*error);
          },
          "Nothing of it can be written any more.")
      .def(
          "clear",
          [](WeightMemory& memory, uint64_t begin, uint64_t end) {
            if (const auto error = memory.clear(begin, end)) raise(*error);
          },
          nb::arg("begin"), nb::arg("end"), "Make some of it, whole pages that are open, zeros again.")
      .def(
          "enter",
          [](const WeightMemory& memory, const std::shared_ptr<ThreadPool>& pool, uint64_t begin, uint64_t end) {
            const auto error = [&] {
              nb::gil_scoped_release unlocked;
              return memory.enter(*pool, begin, end);
            }();
            if (error) raise(*error);
          },
          nb::arg("pool"), nb::arg("begin"), nb::arg("end"),
          "Enter whole pages that others have filled into this process's tables.")
      .def(
          "take_huge",
          [](const WeightMemory& memory, const std::shared_ptr<ThreadPool>& pool) {
            const nb::gil_scoped_release unlocked;
            memory.take_huge(*pool);
          },
          nb::arg("pool"), "Have what is open taken on huge pages, where the kernel gives them.")
      .def(
          "prefer",
          [](WeightMemory& memory, uint64_t begin, uint64_t end, const std::vector<int>& nodes) {
            return take(memory.prefer(begin, end, nodes));
          },
          nb::arg("begin"), nb::arg("end"), nb::arg("nodes"),
          "Where pages nobody touched yet are to come from; the result is 0 or the kernel's errno.");
}

uint64_t checksum_of_head(int fd, uint64_t bytes) {
  auto result = [&] {
    nb::gil_scoped_release unlocked;
    return head_checksum(fd, bytes);
  }();
  return take(std::move(result));
}

uint64_t bytes_of(int format, int64_t rows, int64_t columns) {
  check_shape(rows, columns);
  return take(packed_bytes(static_cast<Format>(format), rows, columns));
}

auto unpack(const WeightHandle& handle, int64_t row) {
  const Weight& w = *handle.weight;
  if (row < 0 || row >= w.rows) raise({Fault::user, 0, "row " + std::to_string(row) + " of " + std::to_string(w.rows)});
  std::vector<float> out(static_cast<size_t>(w.columns));
  unpack_row(w, row, out.data());
  return array_of(std::move(out), {static_cast<size_t>(w.columns)});
}

void make_arena(Arena* self, const ThreadPool& pool, const std::vector<int>& homes, const std::vector<int>& nodes) {
  if (homes.empty() && nodes.empty()) {
    new (self) Arena(pool.size());
    return;
  }
  const std::set<int> different(homes.begin(), homes.end());
  const auto count = static_cast<int>(different.size());
  const bool dense = count > 0 && *different.begin() == 0 && *different.rbegin() == count - 1;
  if (static_cast<int>(homes.size()) != pool.size() || !dense ||
      (!nodes.empty() && static_cast<int>(nodes.size()) != count)) {
    raise({Fault::user, 0,
           "a thread pool of " + std::to_string(pool.size()) + ", homes of " + std::to_string(homes.size()) +
               " threads and " + std::to_string(nodes.size()) +
               " nodes; wanted a home for each thread, counted from 0, and a node for each home"});
  }
  new (self) Arena(Homes{homes, nodes});
}

std::vector<std::tuple<uint64_t, uint64_t, int>> ranges_of(const Arena& arena) {
  std::vector<std::tuple<uint64_t, uint64_t, int>> found;
  for (const Arena::Range& range : arena.ranges()) {
    const auto [address, bytes] = numbers(range.memory);
    found.emplace_back(address, bytes, range.home);
  }
  return found;
}

std::vector<std::tuple<uint64_t, uint64_t, int>> regions_of(const KvCache& cache) {
  std::vector<std::tuple<uint64_t, uint64_t, int>> found;
  for (const KvCache::Region& region : cache.regions()) {
    const auto [address, bytes] = numbers({region.pages.data, region.pages.bytes});
    found.emplace_back(address, bytes, region.home);
  }
  return found;
}

std::vector<std::tuple<int64_t, int64_t, uint64_t>> pieces_of(const WeightHandle& handle) {
  const Weight& w = *handle.weight;
  std::vector<std::tuple<int64_t, int64_t, uint64_t>> found;
  for (size_t p = 0; p < w.pieces.size(); ++p) {
    found.emplace_back(w.pieces[p].row_begin, w.pieces[p].row_end,
                       reinterpret_cast<uintptr_t>(w.data(p, static_cast<int>(p))));
  }
  return found;
}

std::shared_ptr<KvCache> make_cache(std::shared_ptr<ThreadPool> pool, const KvShape& shape, int64_t blocks,
                                    const Arena* arena, bool interleaved, std::optional<Sharing> sharing,
                                    std::optional<std::tuple<int, size_t, size_t>> share, bool touched) {
  auto result = [&] {
    nb::gil_scoped_release unlocked;
    const Homes* homes = arena ? arena->homes().get() : nullptr;
    if (!share) return KvCache::create(*pool, shape, blocks, homes, interleaved, sharing, touched);
    const auto [fd, offset, bytes] = *share;
    return KvCache::create_in({fd, offset, bytes}, *pool, shape, blocks, homes, interleaved);
  }();
  return take(std::move(result));
}

}  // namespace

void bind_weights(nb::module_& m) {
  bind_shared_weights(m);
  m.def(
      "has_kernel", [](int format) { return has_kernel(static_cast<Format>(format)); }, nb::arg("format"),
      "Of a GGUF type number.");
  m.def(
      "can_decode", [](int format) { return can_decode(static_cast<Format>(format)); }, nb::arg("format"),
      "Of a GGUF type number.");
  m.def("tile_tokens", &linear_tile_tokens, nb::arg("level"),
        "Tokens that a tile of a product takes at a level: a step costs by whole tiles.");
  nb::enum_<NumaPolicy>(m, "NativeNumaPolicy", "Where a weight lies when its thread pool has several homes.")
      .value("shard", NumaPolicy::shard)
      .value("mirror", NumaPolicy::mirror)
      .value("interleave", NumaPolicy::interleave);
  nb::class_<Arena>(m, "Arena", "Memory that the weights of one thread pool share.")
      .def("__init__", &make_arena, nb::arg("pool"), nb::arg("homes") = nb::list(), nb::arg("nodes") = nb::list(),
           "homes: for each thread the number of its home, from 0; nodes: of each home the NUMA node to take memory "
           "from, or none at all.")
      .def("expect", &Arena::expect, nb::arg("nbytes"),
           "That about so many bytes will be taken for every thread at each of its homes.")
      .def("trim", &Arena::trim,
           "Give back most of what huge pages hold behind the weights; for when the last weight was made.")
      .def_prop_ro("ranges", &ranges_of,
                   "Address, bytes and home (-1: all of them in turn) of the chunks it has mapped.")
      .def_prop_ro("refused", &Arena::refused,
                   "The errno with which the kernel last refused to take a chunk from its home, or 0.");
  nb::class_<WeightHandle>(m, "Weight", "A packed matrix.")
      .def_prop_ro("rows", [](const WeightHandle& h) { return h.weight->rows; })
      .def_prop_ro("columns", [](const WeightHandle& h) { return h.weight->columns; })
      .def_prop_ro("format", [](const WeightHandle& h) { return static_cast<int>(h.weight->format); })
      .def_prop_ro(
          "nbytes", [](const WeightHandle& h) { return h.weight->memory_bytes(); }, "With all copies.")
      .def_prop_ro(
          "pieces", &pieces_of,
          "For each thread the rows it multiplies, from and past the last, and where they lie as it reads them.")
      .def("write", &write, nb::arg("fd"), nb::arg("offset"),
           "Write it as packed_bytes at `offset` of a file; the result is its checksum.")
      .def("unpack_row", &unpack, nb::arg("row"), "One row as float32.");
  nb::class_<WeightFile>(m, "WeightFile", "A matrix as it is stored in an open file.")
      .def("__init__", &make_file, nb::kw_only(), nb::arg("fd"), nb::arg("offset"), nb::arg("format"),
           nb::arg("permuted_heads") = 0, nb::arg("stride") = 0,
           "format: a GGUF type number. permuted_heads: of this many heads the stored rows have interleaved halves; 0: "
           "none. stride: bytes from the beginning "
           "of a row to that of the next; 0: rows follow each other.");
  nb::class_<WeightShape>(m, "WeightShape", "What a matrix is to be in memory.")
      .def("__init__", &make_shape, nb::kw_only(), nb::arg("format"), nb::arg("rows"), nb::arg("columns"),
           nb::arg("policy") = NumaPolicy::shard, nb::arg("shared").none() = nb::none(), nb::arg("shared_offset") = 0,
           "format: a GGUF type number. shared, shared_offset: it lies there instead of in an arena. ValueError for a "
           "matrix without elements, or of more than 2^40.");
  m.def("weight_from_file", &from_file, nb::arg("pool"), nb::arg("file"), nb::arg("shape"),
        nb::arg("arena").none() = nb::none(), "Read and pack.");
  m.def("weight_from_rows", &from_rows, nb::arg("pool"), nb::arg("rows"), nb::arg("shape"),
        nb::arg("arena").none() = nb::none(), "Pack float32 [rows, columns].");
  m.def("attach_weight", &attach, nb::arg("pool"), nb::arg("shape"), "A matrix that is in its shared memory already.");
  m.def("packed_bytes", &bytes_of, nb::arg("format"), nb::arg("rows"), nb::arg("columns"));
  m.def("head_checksum", &checksum_of_head, nb::arg("fd"), nb::arg("bytes"),
        "Of the first bytes of a file, or of all where it ends before.");
  m.def("packing_fingerprint", &packing_fingerprint, "Changes when rows are encoded or packed in another way.");
  m.def("weights_from_packed", &read, nb::arg("pool"), nb::arg("fd"), nb::arg("weights"),
        nb::arg("arena").none() = nb::none(),
        "What `Weight.write` wrote at each offset, and the checksums of what was read.");
  nb::class_<StoredTable>(m, "StoredTable",
                          "A table that stays in its file; see homenode.compute.ops.Ops.stored_rows.");
  m.def(
      "stored_table",
      [](int fd, int64_t offset, int format, int64_t rows, int64_t columns) {
        return std::const_pointer_cast<StoredTable>(
            take(StoredTable::open(fd, offset, static_cast<Format>(format), rows, columns)));
      },
      nb::arg("fd"), nb::arg("offset"), nb::arg("format"), nb::arg("rows"), nb::arg("columns"));
  nb::enum_<Sharing>(m, "Sharing", "What other processes may do with a memfd of ours.")
      .value("readable", Sharing::readable)
      .value("writable", Sharing::writable);
  nb::enum_<KvType> kv_types(m, "KvType", "How keys and values are stored.");
  for (const KvCoding& coding : kKvCodings) kv_types.value(coding.name, coding.type);
  nb::class_<KvShape>(m, "KvShape", "What a block of keys and values holds.")
      .def(
          "__init__",
          [](KvShape* self, int layers, int kv_heads, int head_dim, int block_size, KvType type, int sides) {
            new (self) KvShape{layers, kv_heads, head_dim, block_size, type, sides};
          },
          nb::kw_only(), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("block_size"),
          nb::arg("type"), nb::arg("sides") = 2, "sides: 2 of keys and values, 1 of keys alone.")
      .def_ro("layers", &KvShape::layers)
      .def_ro("kv_heads", &KvShape::kv_heads)
      .def_ro("head_dim", &KvShape::head_dim)
      .def_ro("block_size", &KvShape::block_size, "Tokens.")
      .def_ro("type", &KvShape::type)
      .def_ro("sides", &KvShape::sides);
  nb::class_<KvCache>(m, "KvCache", "Paged keys and values.")
      .def_prop_ro("blocks", &KvCache::blocks)
      .def_prop_ro("nbytes", &KvCache::bytes)
      .def_prop_ro("ranges", &regions_of, "Address, bytes and home (-1: all of them in turn) of its regions.")
      .def(
          "attach",
          [](KvCache& cache, std::shared_ptr<const KvMemory> memory, std::optional<int64_t> first) {
            return take(cache.attach(std::move(memory), first));
          },
          nb::arg("memory"), nb::arg("first") = nb::none())
      .def(
          "detach",
          [](KvCache& cache, int32_t first) {
            if (const auto error = cache.detach(first)) raise(*error);
          },
          nb::arg("first"))
      .def(
          "home_of",
          [](const KvCache& self, int64_t block) {
            const BlockHomes& homes = self.block_homes();
            return homes.stripe && block >= 0 ? static_cast<int>(homes.of(block)) : -1;
          },
          nb::arg("block"), "The home at which all heads of a block lie; -1: none, or heads have homes of their own.")
      .def_prop_ro("refused", &KvCache::refused,
                   "The errno with which the kernel last refused to take a region from its home, or 0.");
  m.def("kv_cache", &make_cache, nb::arg("pool"), nb::arg("shape"), nb::arg("blocks"), nb::kw_only(),
        nb::arg("arena") = nb::none(), nb::arg("interleaved") = false, nb::arg("sharing") = nb::none(),
        nb::arg("share") = nb::none(), nb::arg("touched") = true,
        "At the homes of `arena`, if given. share: descriptor, offset and bytes of somebody else's memfd to lie in; "
        "the descriptor is not kept. touched: "
        "whether every page of private memory is there at once.");
}

}  // namespace homenode
