#include "host/arena.h"

#include <algorithm>
#include <string>

namespace homenode {
namespace {

// A chunk is as large as all that was taken for its member before: much memory needs few chunks, and little memory no large one.
constexpr size_t kLargestChunk = size_t(64) << 20;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Result<Arena::Piece> Arena::take(int member, size_t bytes) {
  if (bytes > SIZE_MAX / 4) return Error{Fault::user, 0, "a piece of " + std::to_string(bytes) + " bytes is more than an address space"};
  const std::lock_guard<std::mutex> turn(lock_);
  Stream& stream = streams_[static_cast<size_t>(member)];
  const size_t at = stream.chunk ? rounded(stream.chunk->used, kAlignment) : 0;
  if (!stream.chunk || at > stream.chunk->pages.bytes || bytes > stream.chunk->pages.bytes - at || kExactPages) {
    auto chunk = map_chunk(kExactPages ? bytes : std::max(bytes, std::min(stream.taken, kLargestChunk)));
    if (!chunk) return chunk.error();
    stream.chunk = chunk.value();
  }
  Chunk& chunk = *stream.chunk;
  std::byte* data = chunk.pages.data + rounded(chunk.used, kAlignment);
  chunk.used = rounded(chunk.used, kAlignment) + bytes;
  stream.taken += bytes;
  return Piece{data, stream.chunk};
}

Result<std::shared_ptr<Arena::Chunk>> Arena::map_chunk(size_t bytes) {
  // From half a huge page on, a huge page is worth its unused rest.
  auto pages = allocate_pages(!kExactPages && bytes >= kHugePage / 2 ? std::max(bytes, kHugePage) : bytes);
  if (!pages) return pages.error();
  auto chunk = std::make_shared<Chunk>(Chunk{pages.value()});
  std::erase_if(chunks_, [](const std::weak_ptr<Chunk>& known) { return known.expired(); });
  chunks_.push_back(chunk);
  return chunk;
}

std::vector<MemoryRange> Arena::ranges() const {
  const std::lock_guard<std::mutex> turn(lock_);
  std::vector<MemoryRange> found;
  for (const std::weak_ptr<Chunk>& known : chunks_) {
    if (const std::shared_ptr<Chunk> chunk = known.lock()) found.push_back({chunk->pages.data, chunk->pages.bytes});
  }
  return found;
}

}  // namespace homenode
