#include "host/lane.h"

#include <sched.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "host/event_count.h"
#include "host/file.h"

namespace homenode {
namespace {

constexpr int kLooks = 64;    // at the lanes, before others may run
constexpr int kMostVainHints = 16;  // promises in a row that were not kept

std::shared_ptr<const int> handle_of(int fd) {
  return {new int(fd), [](const int* held) {
            close(*held);
            delete held;
          }};
}

uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Around the end of the lane.
void copy_in(std::byte* lane, uint64_t place, const void* from, size_t bytes) {
  if (!bytes) return;
  const size_t at = place % kLaneBytes, whole = std::min(bytes, kLaneBytes - at);
  std::memcpy(lane + at, from, whole);
  std::memcpy(lane, static_cast<const std::byte*>(from) + whole, bytes - whole);
}

void copy_out(void* to, const std::byte* lane, uint64_t place, size_t bytes) {
  if (!bytes) return;
  const size_t at = place % kLaneBytes, whole = std::min(bytes, kLaneBytes - at);
  std::memcpy(to, lane + at, whole);
  std::memcpy(static_cast<std::byte*>(to) + whole, lane, bytes - whole);
}

bool any_news(std::span<const LaneReader* const> lanes) {
  return std::any_of(lanes.begin(), lanes.end(), [](const LaneReader* lane) { return lane->has_news(); });
}

}  // namespace

struct LaneEnd::Words {
  alignas(kLine) std::atomic<uint64_t> written;
  std::atomic<uint32_t> hints;
  alignas(kLine) std::atomic<uint64_t> taken;
  alignas(kLine) std::atomic<uint32_t> watched;
};

std::byte* LaneEnd::data() const { return file_.pages.data + kSmallPage; }

Result<std::shared_ptr<LaneReader>> LaneReader::create() {
  static_assert(sizeof(Words) <= kSmallPage && kLaneBytes % 8 == 0 && kMostRecordBytes + 8 <= kLaneBytes);
  auto file = create_shared(kSmallPage + kLaneBytes, "homenode lane", Sharing::writable);
  if (!file) return file.error();
  if (auto error = populate(file.value().pages)) return std::move(*error);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK)) return system_error("pipe of a lane");
  return std::shared_ptr<LaneReader>(new LaneReader(std::move(file.value()), handle_of(ends[0]), handle_of(ends[1])));
}

void LaneReader::wake() const { (void)!write(*waker_, "", 1); }

void LaneReader::clear_wake() const {
  std::byte written[256];
  (void)!read(*wake_, written, sizeof written);
}

bool LaneReader::has_news() const { return words().written.load(std::memory_order_acquire) != place_; }

void LaneReader::set_watched(bool watched) const {
  words().watched.store(watched, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool LaneReader::wake_hinted() const {
  return vain_hints_ < kMostVainHints && words().hints.load(std::memory_order_acquire) != hints_seen_;
}

void LaneReader::clear_hint() {
  hints_seen_ = words().hints.load(std::memory_order_relaxed);
  vain_hints_ = std::min(vain_hints_ + 1, kMostVainHints);
}

Came LaneReader::take(std::vector<std::byte>& record) {
  const uint64_t waiting = words().written.load(std::memory_order_acquire) - place_;
  if (!waiting) return Came::nothing;
  uint64_t bytes = 0;
  if (waiting > kLaneBytes || waiting < sizeof bytes) return Came::garbage;
  copy_out(&bytes, data(), place_, sizeof bytes);
  if (bytes > kMostRecordBytes || sizeof bytes + padded(bytes) > waiting) return Came::garbage;
  record.resize(bytes);
  copy_out(record.data(), data(), place_ + sizeof bytes, bytes);
  place_ += sizeof bytes + padded(bytes);
  vain_hints_ = 0;
  hints_seen_ = words().hints.load(std::memory_order_relaxed);
  words().taken.store(place_, std::memory_order_release);
  return Came::record;
}

Result<std::shared_ptr<LaneWriter>> LaneWriter::attach(int fd, int waker_fd) {
  struct stat found;
  if (fstat(waker_fd, &found) || !S_ISFIFO(found.st_mode))
    return Error{Fault::user, 0, "a lane's wake pipe that is no pipe"};
  const int own = open(("/proc/self/fd/" + std::to_string(waker_fd)).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (own < 0) return system_error("opening a lane's wake pipe");
  Handle held = handle_of(own);
  auto pages = map_shared(fd, kSmallPage + kLaneBytes, true);
  if (!pages) return pages.error();
  return std::shared_ptr<LaneWriter>(new LaneWriter(SharedFile{nullptr, std::move(pages.value())}, std::move(held)));
}

void LaneWriter::hint_wake() const {
  words().hints.fetch_add(1, std::memory_order_seq_cst);
  wake();
}

void LaneWriter::wake() const {
  // Either this side sees that the reader looks no more, or the reader sees what was written
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (words().watched.load(std::memory_order_seq_cst)) return;
  (void)!write(*waker_, "", 1);
}

bool LaneWriter::put(std::span<const std::byte> record) {
  const uint64_t bytes = record.size(), wanted = sizeof bytes + padded(bytes);
  const uint64_t waiting = place_ - words().taken.load(std::memory_order_acquire);
  if (bytes > kMostRecordBytes || waiting > kLaneBytes || wanted > kLaneBytes - waiting) return false;
  copy_in(data(), place_, &bytes, sizeof bytes);
  copy_in(data(), place_ + sizeof bytes, record.data(), record.size());
  place_ += wanted;
  words().written.store(place_, std::memory_order_seq_cst);
  wake();
  sched_yield();  // some kernels bring those who are woken to the CPU of who wakes them
  return true;
}

bool watch_lanes(std::span<const LaneReader* const> lanes, int epoll, int64_t until_ns) {
  for (const LaneReader* lane : lanes) lane->set_watched(true);
  bool found = false;
  epoll_event event;
  do {
    for (int i = 0; i < kLooks && !found; ++i) {
      found = any_news(lanes);
      relax();
    }
    if (found || epoll_wait(epoll, &event, 1, 0) != 0) found = true;
    else sched_yield();
  } while (!found && now_ns() < until_ns);
  for (const LaneReader* lane : lanes) lane->set_watched(false);
  return found || any_news(lanes);
}

}  // namespace homenode
