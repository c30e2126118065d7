// KV memory copied and summed: the kernel alone in memory that ends where it says, then pages between memories of all
// kinds.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "host/arena.h"
#include "kv/copy.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

void fill(Random& random, std::byte* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random.bits() >> 24);
}

// Runs of tiles in one piece or in two, with a target and without, on any boundary a layout may have: the same digest
// and the same bytes.
void check_runs(Random& random) {
  const int64_t tile_bytes = kTileAlignment * random.between(1, 40), tiles = random.between(1, 12);
  const auto bytes = static_cast<size_t>(tile_bytes * tiles);
  const size_t lead = random.one_in(2) ? size_t(kTileAlignment) : 0;
  const Exact<std::byte> from(lead + bytes), to(lead + bytes);
  fill(random, from.get(), lead + bytes);
  KvDigest wanted;
  kernels(Level::scalar).copy_tiles({from.get() + lead, nullptr, tile_bytes, tiles, from.get()}, wanted);
  for (const Level level : levels()) {
    for (const bool writes : {false, true}) {
      std::memset(to.get(), 0, lead + bytes);
      KvDigest digest;
      for (int64_t done = 0, count; done < tiles; done += count) {
        count = random.one_in(2) ? tiles - done : random.between(1, static_cast<int>(tiles - done));
        std::byte* target = writes ? to.get() + lead + done * tile_bytes : nullptr;
        kernels(level).copy_tiles({from.get() + lead + done * tile_bytes, target, tile_bytes, count, from.get()},
                                  digest);
      }
      require(!writes || !std::memcmp(to.get() + lead, from.get() + lead, bytes), "every byte of a run is copied");
      require(digest.lines == wanted.lines && std::equal(digest.sums, digest.sums + 8, wanted.sums),
              std::string("the digest is the same at ") + level_name(level));
    }
  }
}

std::shared_ptr<KvMemory> any_memory(Random& random, const KvShape& shape, int64_t blocks) {
  const Sharing sharing = random.one_in(2) ? Sharing::readable : Sharing::writable;
  std::shared_ptr<KvMemory> memory;
  if (random.one_in(2)) {
    memory = taken(KvMemory::pool(shape, blocks, sharing, {}));
  } else {
    const auto pool = pool_of(3);
    const Homes homes{{0, 1, 1}, {}};
    const bool shared = random.one_in(2);
    memory = taken(KvMemory::of(taken(KvCache::create(*pool, shape, blocks, random.one_in(2) ? &homes : nullptr, false,
                                                      shared ? std::optional(sharing) : std::nullopt))));
  }
  for (const KvMemory::Extent& extent : memory->extents()) fill(random, extent.data, static_cast<size_t>(extent.bytes));
  return memory;
}

// Memory that several workers have made: stages of layers, ranks of heads, some of which are with two ranks.
std::shared_ptr<KvMemory> parted_memory(Random& random, const KvShape& shape, int64_t blocks) {
  KvLayout layout{shape, tile_bytes_of(shape), blocks, 0, {}};
  const auto cut = [&random](int from, int to) { return random.one_in(2) ? to : random.between(from + 1, to); };
  for (int layer = 0, past_layer; layer < shape.layers; layer = past_layer) {
    past_layer = cut(layer, shape.layers);
    for (int head = 0, past_head; head < shape.kv_heads; head = past_head) {
      past_head = cut(head, shape.kv_heads);
      const int first_head = head && random.one_in(3) ? head - 1 : head;
      const int64_t step = head_bytes_of(shape) * (past_head - first_head),
                    bytes = step * (past_layer - layer) * blocks;
      layout.regions.push_back(
          {first_head, past_head, layout.nbytes, blocks * step, step, head_bytes_of(shape), layer, past_layer});
      layout.nbytes += bytes + kKvSlack;
    }
  }
  const auto file = taken(create_shared(static_cast<size_t>(layout.nbytes), "parts", Sharing::writable));
  auto memory = taken(KvMemory::map(*file.fd, layout, true));
  for (const KvMemory::Extent& extent : memory->extents()) fill(random, extent.data, static_cast<size_t>(extent.bytes));
  return memory;
}

std::vector<int32_t> any_table(Random& random, int64_t blocks, int64_t entries) {
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  for (size_t i = table.size(); i > 1; --i)
    std::swap(table[i - 1], table[static_cast<size_t>(random.between(0, static_cast<int>(i) - 1))]);
  table.resize(static_cast<size_t>(entries));
  return table;
}

const std::byte* tile_of(const KvMemory& memory, const std::vector<int32_t>& table, int layer, int head, int64_t tile,
                         int side) {
  const int64_t tiles = memory.tiles();
  return memory.head(layer, table[static_cast<size_t>(tile / tiles)], head) +
         (tile % tiles + side * tiles) * memory.layout().tile_bytes;
}

void check_pages(Random& random) {
  KvShape shape{random.between(1, 3),
                random.between(2, 5),
                2 * random.between(1, 20),
                32 * random.between(1, 4),
                static_cast<KvType>(random.between(0, 2)),
                random.between(1, 2)};
  const int64_t tokens = random.between(1, 400), pages = (tokens + shape.block_size - 1) / shape.block_size;
  const auto source = random.one_in(2) ? parted_memory(random, shape, pages + 2) : any_memory(random, shape, pages + 2);
  const std::vector<int32_t> table = any_table(random, pages + 2, pages);
  shape.block_size = 32 * random.between(1, 4);
  const int64_t blocks = (tokens + shape.block_size - 1) / shape.block_size;
  const auto target =
      random.one_in(2) ? parted_memory(random, shape, blocks + 1) : any_memory(random, shape, blocks + 1);
  const std::vector<int32_t> to_table = any_table(random, blocks + 1, blocks);
  const KvPages what{source.get(), table, 0, pages, tokens, source->shape().block_size, 0, shape.kv_heads};
  const KvTarget to{target.get(), to_table, 0};
  const auto words = taken(EpochWords::create(pages + 2));
  const std::vector<uint64_t> expected(static_cast<size_t>(pages));
  const KvEpochs epochs{words.get(), expected};
  const Kernels& table_of_level = kernels(random.of(levels()));
  const auto found = taken(copy_pages(what, &to, &epochs, table_of_level, random.between(1, 3)));
  require(found.has_value(), "epochs that nobody changes are what they were");
  require(*taken(copy_pages(what, nullptr, nullptr, kernels(Level::scalar), 1)) == *found,
          "the source's digests are those of the copy");
  const KvPages there{target.get(), to_table, 0, pages, tokens, source->shape().block_size, 0, shape.kv_heads};
  require(*taken(copy_pages(there, nullptr, nullptr, table_of_level, 2)) == *found,
          "the target's digests are the source's");
  for (int64_t tile = 0; tile * kTileKeys < tokens; ++tile) {
    for (int i = 0; i < shape.layers * shape.kv_heads * shape.sides; ++i) {
      const int sides = shape.sides, layer = i / sides / shape.kv_heads, head = i / sides % shape.kv_heads,
                side = i % sides;
      const auto bytes = static_cast<size_t>(source->layout().tile_bytes);
      const std::byte *wanted = tile_of(*source, table, layer, head, tile, side),
                      *there = tile_of(*target, to_table, layer, head, tile, side);
      require(!std::memcmp(wanted, there, bytes), "every tile is where it belongs");
      const int32_t block = to_table[static_cast<size_t>(tile / target->tiles())];
      for (const KvMemory::Place& copy : target->copies(layer, head)) {
        const std::byte* again = copy.of(block) + (there - target->head(layer, block, head));
        require(again != there && !std::memcmp(wanted, again, bytes), "every tile is wherever it belongs");
      }
    }
  }
}

// One thread changes an epoch word while another compares it: nothing but the copy's own outcome may depend on when.
void check_epochs(Random& random) {
  const KvShape shape{1, 1, 16, 32, KvType::f32};
  const auto source = any_memory(random, shape, 4), target = taken(KvMemory::pool(shape, 4, Sharing::readable, {}));
  const auto words = taken(EpochWords::create(4));
  const auto mapped = taken(EpochWords::map(words->fd(), 4));
  const std::vector<int32_t> table = {0, 1, 2, 3};
  const std::vector<uint64_t> expected(4);
  const KvPages what{source.get(), table, 0, 4, 128, 32, 0, 1};
  const KvTarget to{target.get(), table, 0};
  const KvEpochs epochs{mapped.get(), expected};
  std::thread other([&] { words->store(3, 1); });
  (void)taken(copy_pages(what, &to, &epochs, kernels(Level::scalar), 1));
  other.join();
  require(!taken(copy_pages(what, &to, &epochs, kernels(Level::scalar), 1)).has_value(), "a changed epoch is noticed");
}

// Memory is attached and detached while a reader finds what was there before, at the same place.
void check_attached(Random& random) {
  const KvShape shape{2, 2, 16, 32, KvType::bf16};
  const auto pool = pool_of(1);
  const auto cache = taken(KvCache::create(*pool, shape, random.between(1, 5)));
  const auto memory = taken(KvMemory::pool(shape, 3, Sharing::readable, {}));
  const auto mapped = taken(KvMemory::map(memory->fd(), memory->layout(), false));
  const int32_t first = taken(cache->attach(mapped));
  std::thread other([&] {
    for (int i = 0; i < 50; ++i)
      require(!cache->detach(taken(cache->attach(memory))), "what was attached can be detached");
  });
  for (int i = 0; i < 50; ++i) {
    const KvCache::Reading reading(*cache);
    require(cache->holds(first + 2) && !cache->holds(-1) && cache->holds(0), "attached blocks are held");
    require(cache->keys(1, first + 2, 1, 16) == mapped->head(1, 2, 1) + mapped->layout().tile_bytes,
            "a tile of an attached block is where its layout says");
  }
  other.join();
  {
    const KvCache::Reading reading(*cache);
    require(!cache->detach(first) && cache->holds(first), "who reads goes on");
  }
  const KvCache::Reading reading(*cache);
  require(!cache->holds(first), "others find nothing");
}

// Layouts with any numbers: what check() lets through stays within its bytes.
void check_layouts(Random& random) {
  const auto number = [&random]() -> int64_t {
    switch (random.between(0, 3)) {
      case 0: return static_cast<int64_t>(random.bits());
      case 1: return static_cast<int64_t>(random.bits() >> random.between(1, 40)) / kTileAlignment * kTileAlignment;
      default: return kTileAlignment * random.between(0, 4000);
    }
  };
  for (int i = 0; i < 200; ++i) {
    const KvShape shape{random.between(0, 3),
                        random.between(0, 3),
                        random.between(0, 20),
                        32 * random.between(0, 3),
                        static_cast<KvType>(random.between(0, 2)),
                        random.between(0, 3)};
    KvLayout layout{shape,
                    tile_bytes_of(shape),
                    random.one_in(4) ? number() : random.between(0, 9),
                    random.one_in(4) ? number() : 1 << 20,
                    {}};
    for (int first = 0; first < shape.kv_heads;) {
      const int past = random.between(first, shape.kv_heads + 1), layer = random.one_in(8) ? random.between(-1, 2) : 0;
      layout.regions.push_back({first, past, number(), number(), number(), number(), layer,
                                random.one_in(8) ? random.between(0, 4) : shape.layers});
      first = std::max(first + 1, past);
    }
    if (check(layout)) continue;
    for (const KvRegion& region : layout.regions) {
      const unsigned __int128 end =
          static_cast<unsigned __int128>(region.offset) +
          static_cast<unsigned __int128>(region.layer_stride) * unsigned(region.past_layer - region.first_layer - 1) +
          static_cast<unsigned __int128>(region.block_stride) * static_cast<uint64_t>(layout.blocks - 1) +
          static_cast<unsigned __int128>(region.head_stride) * unsigned(region.past_head - region.first_head - 1) +
          static_cast<uint64_t>(head_bytes_of(shape));
      require(region.first_layer >= 0 && region.past_layer <= shape.layers,
              "a layout that was taken has no other layers than it says");
      require(region.offset >= 0 && end <= static_cast<uint64_t>(layout.nbytes),
              "a layout that was taken stays within its bytes");
    }
  }
}

}  // namespace

void check_copy(Random& random) {
  for (int i = 0; i < 20; ++i) check_runs(random);
  for (int i = 0; i < 5; ++i) check_pages(random);
  check_epochs(random);
  check_attached(random);
  check_layouts(random);
}

}  // namespace homenode::checks
