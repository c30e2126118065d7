#include "host/arena.h"

#include <algorithm>
#include <string>

namespace homenode {
namespace {

// A chunk is as large as all that was taken for its thread before, or what is still expected: much memory needs few
// chunks, little memory no large one.
constexpr size_t kLargestChunk = size_t(64) << 20;
constexpr size_t kWastedPart = 100;  // one of so many bytes

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

int Homes::count() const { return of_thread.empty() ? 1 : *std::max_element(of_thread.begin(), of_thread.end()) + 1; }

Homes::Turn Homes::turn(int thread) const {
  const auto first = of_thread.begin();
  const int home = of_thread[static_cast<size_t>(thread)];
  return {std::count(first, first + thread, home), std::count(first, of_thread.end(), home)};
}

void Arena::expect(size_t bytes) {
  const std::lock_guard<std::mutex> turn(lock_);
  expected_ = bytes;
}

Result<Arena::Piece> Arena::take(int thread, int home, size_t bytes) {
  if (bytes > SIZE_MAX / 4)
    return Error{Fault::user, 0, "a piece of " + std::to_string(bytes) + " bytes is more than an address space"};
  const std::lock_guard<std::mutex> turn(lock_);
  Stream& stream = streams_[{home, thread}];
  const size_t at = stream.chunk ? rounded(stream.chunk->used, kAlignment) : 0;
  if (!stream.chunk || at > stream.chunk->pages.bytes || bytes > stream.chunk->pages.bytes - at || kExactPages) {
    const size_t coming = std::max(stream.taken, expected_ - std::min(expected_, stream.taken));
    auto chunk = map_chunk(home, kExactPages ? bytes : std::max(bytes, std::min(coming, kLargestChunk)));
    if (!chunk) return chunk.error();
    stream.chunk = chunk.value();
  }
  Chunk& chunk = *stream.chunk;
  std::byte* data = chunk.pages.data + rounded(chunk.used, kAlignment);
  chunk.used = rounded(chunk.used, kAlignment) + bytes;
  stream.taken += bytes;
  return Piece{data, stream.chunk};
}

Result<std::shared_ptr<Arena::Chunk>> Arena::map_chunk(int home, size_t bytes) {
  // From half a huge page on, a huge page is worth its unused rest.
  auto pages = allocate_pages(!kExactPages && bytes >= kHugePage / 2 ? std::max(bytes, kHugePage) : bytes);
  if (!pages) return pages.error();
  if (!homes_->nodes.empty()) {
    const auto nodes = home == kEverywhere ? homes_->nodes : std::vector<int>{homes_->nodes[static_cast<size_t>(home)]};
    if (const int code = prefer_nodes(pages.value(), nodes)) refused_ = code;
  }
  auto chunk = std::make_shared<Chunk>(Chunk{pages.value(), home});
  std::erase_if(chunks_, [](const std::weak_ptr<Chunk>& known) { return known.expired(); });
  chunks_.push_back(chunk);
  return chunk;
}

void Arena::trim() {
  const std::lock_guard<std::mutex> turn(lock_);
  std::vector<std::pair<size_t, std::shared_ptr<Chunk>>> rests;
  size_t wasted = 0, used = 0;
  for (const std::weak_ptr<Chunk>& known : chunks_) {
    std::shared_ptr<Chunk> chunk = known.lock();
    if (!chunk) continue;
    const size_t rest = chunk->pages.huge ? rounded(chunk->used, kHugePage) - rounded(chunk->used, kSmallPage) : 0;
    wasted += rest, used += chunk->used;
    rests.emplace_back(rest, std::move(chunk));
  }
  std::sort(rests.begin(), rests.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [rest, chunk] : rests) {
    if (wasted <= used / kWastedPart) break;
    shrink(chunk->pages, chunk->used);
    wasted -= rest;
  }
}

std::vector<Arena::Range> Arena::ranges() const {
  const std::lock_guard<std::mutex> turn(lock_);
  std::vector<Range> found;
  for (const std::weak_ptr<Chunk>& known : chunks_) {
    if (const std::shared_ptr<Chunk> chunk = known.lock())
      found.push_back({{chunk->pages.data, chunk->pages.bytes}, chunk->home});
  }
  return found;
}

int Arena::refused() const {
  const std::lock_guard<std::mutex> turn(lock_);
  return refused_;
}

}  // namespace homenode
