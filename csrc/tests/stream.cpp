// Pages over a socket pair: written and read in shares of any size, with bytes that were read before, and streams that
// end too soon.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "host/shared_memory.h"
#include "kv/copy.h"
#include "kv/stream.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

struct SocketPair {
  int ends[2] = {-1, -1};
  explicit SocketPair(Random& random) {
    require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "a socket pair can be had");
    const int bytes = 1 << random.between(11, 18);  // so that writers find no room
    for (const int end : ends) {
      setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
      require(fcntl(end, F_SETFL, O_NONBLOCK) == 0, "a socket can be told not to wait");
    }
  }
  void end() {
    if (ends[0] >= 0) close(ends[0]);
    ends[0] = -1;
  }
  ~SocketPair() {
    end();
    close(ends[1]);
  }
};

// Blocks in any order in one region, or heads and layers in several.
std::shared_ptr<KvMemory> memory_of(Random& random, const KvShape& shape, int64_t blocks) {
  if (random.one_in(2)) return taken(KvMemory::pool(shape, blocks, Sharing::readable, {}));
  KvLayout layout{shape, tile_bytes_of(shape), blocks, 0, {}};
  for (int head = 0; head < shape.kv_heads; ++head) {
    const int64_t step = head_bytes_of(shape) + kTileAlignment * random.between(0, 2);
    layout.regions.push_back({head, head + 1, layout.nbytes, blocks * step, step, step, 0, shape.layers});
    layout.nbytes += blocks * step * shape.layers + kKvSlack;
  }
  const auto file = taken(create_shared(static_cast<size_t>(layout.nbytes), "stream", Sharing::writable));
  return taken(KvMemory::map(*file.fd, layout, true));
}

std::vector<int32_t> some_blocks(Random& random, int64_t blocks, int pages) {
  std::vector<int32_t> found(static_cast<size_t>(blocks));
  std::iota(found.begin(), found.end(), 0);
  for (size_t i = found.size(); i > 1; --i)
    std::swap(found[i - 1], found[static_cast<size_t>(random.between(0, static_cast<int>(i) - 1))]);
  found.resize(static_cast<size_t>(pages));
  return found;
}

// What a sender's pages are, and the memories they go from and to.
struct Case {
  KvShape shape;
  int pages;
  int64_t tokens;  // of all of them
  std::shared_ptr<KvMemory> source, target;
  std::vector<int32_t> from, to, tiles;

  explicit Case(Random& random)
      : shape{random.between(1, 3),
              random.between(1, 4),
              2 * random.between(1, 40),
              32 * random.between(1, 4),
              static_cast<KvType>(random.between(0, 2)),
              random.between(1, 2)},
        pages(random.between(1, 9)),
        tokens(int64_t{shape.block_size} * pages - random.between(0, shape.block_size - 1)),
        source(memory_of(random, shape, pages + 2)),
        target(memory_of(random, shape, pages + 2)),
        from(some_blocks(random, pages + 2, pages)),
        to(some_blocks(random, pages + 2, pages)) {
    for (const KvMemory::Extent& extent : source->extents()) {
      for (int64_t i = 0; i < extent.bytes; ++i) extent.data[i] = static_cast<std::byte>(random.bits() >> 24);
    }
    for (int page = 0; page < pages; ++page) {
      const int64_t count = std::min<int64_t>(shape.block_size, tokens - int64_t{page} * shape.block_size);
      tiles.push_back(static_cast<int32_t>((count + kTileKeys - 1) / kTileKeys));
    }
  }
  int64_t bytes() const {
    return int64_t{shape.sides} * shape.layers * shape.kv_heads * source->layout().tile_bytes *
           std::accumulate(tiles.begin(), tiles.end(), int64_t{0});
  }
  KvDigests digests(const KvMemory& memory, const std::vector<int32_t>& table) const {
    const KvPages pages_there{&memory, table, 0, pages, tokens, shape.block_size, 0, shape.kv_heads};
    return *taken(copy_pages(pages_there, nullptr, nullptr, kernels(Level::scalar), 1));
  }
};

// Through the socket in shares of any size, the first bytes past it: as if they had come with a frame.
void check_whole(Random& random) {
  const Case what(random);
  SocketPair sockets(random);
  const auto sender = taken(PageSender::create({what.source, what.from, what.tiles}));
  const auto receiver = taken(PageReceiver::create({what.target, what.to, what.tiles}, kernels(random.of(levels()))));
  require(!taken(receiver->receive(sockets.ends[1], 1 << 20, random.between(0, 100))).bytes,
          "nothing comes where nothing was sent");
  int64_t sent = 0, came = 0;
  bool early = random.one_in(2);
  while (!receiver->complete()) {
    if (!sender->done())
      sent += taken(sender->send(sockets.ends[0], random.one_in(3) ? 1 : random.between(1, 1 << 16)));
    if (early && sent) {
      std::vector<std::byte> head(static_cast<size_t>(random.between(1, 3000)));
      const ssize_t count = recv(sockets.ends[1], head.data(), head.size(), 0);
      require(count > 0 && receiver->take({head.data(), static_cast<size_t>(count)}) == count,
              "what was read before belongs to the pages");
      came += count;
      early = false;
    }
    const PageReceiver::Came more =
        taken(receiver->receive(sockets.ends[1], random.between(1, 1 << 16), random.one_in(4) ? 20 : 0));
    require(!more.ended, "a stream that is open has not ended");
    came += more.bytes;
  }
  require(sender->done() && sent == what.bytes() && came == sent, "as many bytes come as the pages have");
  require(receiver->digests() == what.digests(*what.source, what.from), "the digests are those of the source");
  require(what.digests(*what.target, what.to) == receiver->digests(), "the pages are where they belong");
  const std::byte after[4] = {};
  require(!receiver->take(after), "nothing more belongs to pages that are complete");
}

// A sender that is gone in the middle, then at a time when nothing is left to read.
void check_cut(Random& random) {
  const Case what(random);
  SocketPair sockets(random);
  const auto sender = taken(PageSender::create({what.source, what.from, what.tiles}));
  const auto receiver = taken(PageReceiver::create({what.target, what.to, what.tiles}, kernels(random.of(levels()))));
  const int64_t sent = taken(sender->send(sockets.ends[0], 1));
  if (sender->done()) return;
  sockets.end();
  int64_t came = 0;
  for (bool ended = false; !ended;) {
    const PageReceiver::Came more = taken(receiver->receive(sockets.ends[1], random.between(1, 1 << 20), 1000));
    came += more.bytes;
    ended = more.ended;
  }
  require(came == sent && !receiver->complete(), "what was not sent is missing");
  require(!sender->done() && !sender->send(sockets.ends[1], 1), "to write to nobody is an error");
}

void check_refusals(Random& random) {
  const Case what(random);
  const auto refused = [&what](std::vector<int32_t> blocks, std::vector<int32_t> tiles) {
    return !PageSender::create({what.source, blocks, tiles}) &&
           !PageReceiver::create({what.target, blocks, tiles}, kernels(Level::scalar));
  };
  require(refused({0, 1}, {1}), "as many tiles as blocks are wanted");
  require(refused({-1}, {1}) && refused({static_cast<int32_t>(what.source->blocks())}, {1}),
          "a block that is not there is refused");
  require(refused({0}, {0}) && refused({0}, {what.source->tiles() + 1}), "tiles that are not there are refused");
  const auto pool = taken(KvMemory::pool(what.shape, 1, Sharing::readable, {}));
  const auto mapped = taken(KvMemory::map(pool->fd(), pool->layout(), false));
  require(!PageReceiver::create({mapped, {0}, {1}}, kernels(Level::scalar)),
          "memory that cannot be written is refused");
  require(taken(PageReceiver::create({what.target, {}, {}}, kernels(Level::scalar)))->complete(),
          "no pages are complete from the beginning");
}

}  // namespace

void check_stream(Random& random) {
  for (int i = 0; i < 5; ++i) check_whole(random);
  check_cut(random);
  check_refusals(random);
}

}  // namespace homenode::checks
