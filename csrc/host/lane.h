// Records from one process to another of the same host, through memory that both map: no system call where the reader
// is looking.
//
// The reader makes the memory, and a pipe that it sleeps on (a pipe, as the thread that one wakes may run in the place
// of the waker). Each side keeps its own position in the lane; the other's position is read once and compared with the
// size, and a record is copied out before anything of it is looked at. So whoever writes there can spoil the lane,
// nothing else.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "host/shared_memory.h"

namespace homenode {

constexpr size_t kLaneBytes = 1 << 18, kMostRecordBytes = 1 << 16;

class LaneEnd {
 public:
  int fd() const { return file_.fd ? *file_.fd : -1; }  // -1: another's

 protected:
  struct Words;
  using Handle = std::shared_ptr<const int>;  // a descriptor, closed with the last of these
  explicit LaneEnd(SharedFile file) : file_(std::move(file)) {}
  Words& words() const { return *reinterpret_cast<Words*>(file_.pages.data); }
  std::byte* data() const;

  SharedFile file_;
  uint64_t place_ = 0;  // bytes that were written, or taken; never read back
};

enum class Came { record, nothing, garbage };

// For one thread; `watch` for the same.
class LaneReader : public LaneEnd {
 public:
  static Result<std::shared_ptr<LaneReader>> create();

  int wake_fd() const { return *wake_; }    // readable after a wake(), until clear_wake()
  int waker_fd() const { return *waker_; }  // the other end of that pipe, for the writer
  void wake() const;
  void clear_wake() const;
  // Into `record`, of at most kMostRecordBytes. After garbage nothing more is to be taken.
  Came take(std::vector<std::byte>& record);
  bool has_news() const;
  // Whether the writer has hinted that a record will come, and none was taken since. The hints of a writer that hints
  // again and again and puts nothing count no more until it puts a record.
  bool wake_hinted() const;
  // No record came after the last hint.
  void clear_hint();
  // Whether the reader looks by itself: as long as it does, the writer does not wake it.
  void set_watched(bool watched) const;

 private:
  LaneReader(SharedFile file, Handle wake_fd, Handle waker_fd)
      : LaneEnd(std::move(file)), wake_(std::move(wake_fd)), waker_(std::move(waker_fd)) {}
  const Handle wake_, waker_;
  uint32_t hints_seen_ = 0;
  int vain_hints_ = 0;  // the last ones in a row after which no record came
};

class LaneWriter : public LaneEnd {
 public:
  // Another process's memory and waker_fd; the descriptors stay the caller's. The pipe is opened again, non-blocking,
  // whatever flags the reader sets on its own end.
  static Result<std::shared_ptr<LaneWriter>> attach(int fd, int waker_fd);

  // A record will be put soon: a sleeping reader is woken meanwhile. From any thread.
  void hint_wake() const;
  // Whether there is room.
  bool put(std::span<const std::byte> record);

 private:
  LaneWriter(SharedFile file, Handle waker) : LaneEnd(std::move(file)), waker_(std::move(waker)) {}
  void wake() const;
  const Handle waker_;
};

// Looks, and lets others run meanwhile, until one of the lanes has news or the epoll descriptor has events (true), or
// `until_ns` of now_ns() (false). The lanes are watched only meanwhile: for what comes after it has returned false the
// writer wakes the reader.
bool watch_lanes(std::span<const LaneReader* const> lanes, int epoll, int64_t until_ns);

}  // namespace homenode
