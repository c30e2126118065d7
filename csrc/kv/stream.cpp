#include "kv/stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "kv/copy.h"

namespace homenode {
namespace {

using std::to_string;
using Clock = std::chrono::steady_clock;

constexpr int kMostPieces = 256;
// Of one call: what was read must still be in the second level's cache when it is summed; what is written is taken by
// the other side meanwhile.
constexpr int64_t kMostRead = 64 << 10, kMostWritten = 512 << 10;

Error wrong(const std::string& what) { return Error{Fault::user, 0, "KV pages over a socket: " + what}; }

// The next pieces, neighbours as one.
int gather(WirePieces pieces, int64_t most, iovec* found) {
  int count = 0;
  for (int64_t bytes = 0; bytes < most && !pieces.done();) {
    std::byte* data = pieces.data();
    const int64_t size = std::min(pieces.bytes(), most - bytes);
    iovec* last = count ? &found[count - 1] : nullptr;
    if (last && static_cast<std::byte*>(last->iov_base) + last->iov_len == data)
      last->iov_len += static_cast<size_t>(size);
    else if (count < kMostPieces) found[count++] = {data, static_cast<size_t>(size)};
    else break;
    bytes += size;
    pieces.pass(size);
  }
  return count;
}

// Past so many bytes, however many pieces they are.
void pass_all(WirePieces& pieces, int64_t bytes) {
  while (bytes) {
    const int64_t size = std::min(bytes, pieces.bytes());
    pieces.pass(size);
    bytes -= size;
  }
}

bool nothing_yet(int code) { return code == EAGAIN || code == EWOULDBLOCK; }

// Until there is something to read, or `ends`; whether there is.
bool await(int socket, Clock::time_point ends) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(ends - Clock::now()).count();
    if (left <= 0) return false;
    const timespec time{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    pollfd waiting{socket, POLLIN, 0};
    const int found = ppoll(&waiting, 1, &time, nullptr);
    if (found > 0) return true;
    if (found == 0 || errno != EINTR) return false;
  }
}

}  // namespace

std::optional<Error> check(const WirePages& pages) {
  if (pages.blocks.size() != pages.tiles.size())
    return wrong(to_string(pages.tiles.size()) + " numbers of tiles for " + to_string(pages.blocks.size()) + " blocks");
  for (size_t page = 0; page < pages.blocks.size(); ++page) {
    const int32_t block = pages.blocks[page], tiles = pages.tiles[page];
    if (block < 0 || block >= pages.memory->blocks())
      return wrong("block " + to_string(block) + " of " + to_string(pages.memory->blocks()));
    if (tiles < 1 || tiles > pages.memory->tiles())
      return wrong(to_string(tiles) + " tiles of a block of " + to_string(pages.memory->tiles()));
  }
  return std::nullopt;
}

WirePieces::WirePieces(const WirePages& pages) : pages_(&pages) { find(); }

void WirePieces::find() {
  if (done()) return;
  const KvMemory& memory = *pages_->memory;
  const int64_t tiles = pages_->tiles[page_], tile_bytes = memory.layout().tile_bytes;
  whole_ = tiles == memory.tiles();
  piece_ = memory.head(layer_, pages_->blocks[page_], head_) + side_ * memory.tiles() * tile_bytes;
  bytes_ = (whole_ ? memory.shape().sides : 1) * tiles * tile_bytes;
  passed_ = 0;
}

void WirePieces::pass(int64_t bytes) {
  passed_ += bytes;
  if (passed_ < bytes_) return;
  const KvShape& shape = pages_->memory->shape();
  side_ = whole_ || shape.sides == 1 ? 0 : 1 - side_;
  if (!side_ && ++head_ == shape.kv_heads) {
    head_ = 0;
    if (++layer_ == shape.layers) {
      layer_ = 0;
      ++page_;
    }
  }
  find();
}

PageReceiver::PageReceiver(WirePages pages, const Kernels& kernels)
    : pages_(std::move(pages)),
      kernels_(kernels),
      filled_(pages_),
      summed_(pages_),
      sums_(static_cast<size_t>(heads())) {
  found_.reserve(pages_.blocks.size() * sums_.size());
}

Result<std::shared_ptr<PageReceiver>> PageReceiver::create(WirePages pages, const Kernels& kernels) {
  if (auto error = check(pages)) return std::move(*error);
  if (!pages.memory->writable()) return wrong("the memory is mapped for reading only");
  return std::shared_ptr<PageReceiver>(new PageReceiver(std::move(pages), kernels));
}

Result<PageReceiver::Came> PageReceiver::receive(int socket, int64_t most, int64_t wait_us) {
  const auto ends = Clock::now() + std::chrono::microseconds(wait_us);
  int64_t total = 0;
  iovec pieces[kMostPieces];
  while (!complete() && total < most) {
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<size_t>(gather(filled_, kMostRead, pieces));
    const ssize_t count = recvmsg(socket, &message, MSG_DONTWAIT);
    if (count == 0) return Came{total, true};
    if (count > 0) {
      total += count;
      came(count);
    } else if (nothing_yet(errno)) {
      if (!await(socket, ends)) break;
    } else if (errno != EINTR) {
      if (total) break;  // the next call tells
      return Error{Fault::host, errno, "recvmsg"};
    }
  }
  return Came{total, false};
}

int64_t PageReceiver::take(std::span<const std::byte> bytes) {
  size_t taken = 0;
  while (!complete() && taken < bytes.size()) {
    const size_t size = std::min(bytes.size() - taken, static_cast<size_t>(filled_.bytes()));
    std::memcpy(filled_.data(), bytes.data() + taken, size);
    taken += size;
    came(static_cast<int64_t>(size));
  }
  return static_cast<int64_t>(taken);
}

// Whole tiles are summed as soon as they are there.
void PageReceiver::came(int64_t bytes) {
  pass_all(filled_, bytes);
  const int64_t tile_bytes = pages_.memory->layout().tile_bytes;
  for (unsummed_ += bytes; !summed_.done();) {
    const int64_t tiles = std::min(unsummed_, summed_.bytes()) / tile_bytes;
    if (!tiles) return;
    const std::byte* from = summed_.data();
    kernels_.copy_tiles({from, nullptr, tile_bytes, tiles, from}, sums_[static_cast<size_t>(summed_.head())]);
    unsummed_ -= tiles * tile_bytes;
    const size_t page = summed_.page();
    summed_.pass(tiles * tile_bytes);
    if (summed_.page() == page) continue;
    for (KvDigest& sum : sums_) {
      found_.push_back(finish_digest(sum));
      sum = KvDigest{};
    }
  }
}

PageSender::PageSender(WirePages pages) : pages_(std::move(pages)), sent_(pages_) {}

Result<std::shared_ptr<PageSender>> PageSender::create(WirePages pages) {
  if (auto error = check(pages)) return std::move(*error);
  return std::shared_ptr<PageSender>(new PageSender(std::move(pages)));
}

Result<int64_t> PageSender::send(int socket, int64_t most) {
  int64_t total = 0;
  iovec pieces[kMostPieces];
  while (!done() && total < most) {
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<size_t>(gather(sent_, kMostWritten, pieces));
    const ssize_t count = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      total += count;
      pass_all(sent_, count);
    } else if (nothing_yet(errno)) {
      break;
    } else if (errno != EINTR) {
      if (total) break;
      return Error{Fault::host, errno, "sendmsg"};
    }
  }
  return total;
}

}  // namespace homenode
