// Records from one process to another of the same host, through memory that both map: no system call where the reader is looking.
//
// The reader makes the memory, and a bell that it sleeps on: a pipe, as who is woken by one may run in the place of who wakes it. Each side keeps to itself how far it is; what the other one says of that is read once and compared with the size, and a
// record is copied out before anything of it is looked at. So whoever writes there can spoil the lane and nothing else.
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

  int bell() const { return *bell_; }       // can be read from when somebody has rung
  int bell_rope() const { return *rope_; }  // for the writer
  void ring() const;
  void hear_bell() const;
  // Into `record`, of at most kMostRecordBytes. After garbage nothing more is to be taken.
  Came take(std::vector<std::byte>& record);
  bool has_news() const;
  // Whether the writer has promised to put something there, and nothing was taken since. Who promises again and again and puts nothing there is
  // not believed any more until he does.
  bool promised() const;
  // It was looked for in vain.
  void give_up();
  // Whether the reader looks: as long as it does the writer does not ring.
  void set_watched(bool watched) const;

 private:
  LaneReader(SharedFile file, Handle bell, Handle rope) : LaneEnd(std::move(file)), bell_(std::move(bell)), rope_(std::move(rope)) {}
  const Handle bell_, rope_;
  uint32_t heeded_ = 0;  // promises
  int unkept_ = 0;       // of these, the last ones in a row
};

class LaneWriter : public LaneEnd {
 public:
  // Another's memory and bell; the descriptors stay the caller's. The bell is opened again: whatever the other does with his, nobody waits to ring it.
  static Result<std::shared_ptr<LaneWriter>> attach(int fd, int rope);

  // It will put something there soon, and the reader could wake up meanwhile. From any thread.
  void promise() const;
  // Whether there is room.
  bool put(std::span<const std::byte> record);

 private:
  LaneWriter(SharedFile file, Handle bell) : LaneEnd(std::move(file)), bell_(std::move(bell)) {}
  void ring() const;
  const Handle bell_;
};

// Looks, and lets others run meanwhile, until one of the lanes has news or the epoll descriptor has events (true), or `until_ns` of now_ns() (false).
// The lanes are watched only meanwhile: what comes after it has returned false is rung for.
bool watch_lanes(std::span<const LaneReader* const> lanes, int epoll, int64_t until_ns);

}  // namespace homenode
