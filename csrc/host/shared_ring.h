// Rows on their way from one stage to the next: a memfd with a few slots, written by one process, read by several, each
// of which has every row.
//
// The maker, who may be neither, writes the sizes; who attaches checks them once and never reads them again. A slot is
// written again when all readers are done with it: who writes waits until then.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/status.h"
#include "host/shared_memory.h"
#include "host/shared_word.h"

namespace homenode {

struct RingSizes {
  int64_t slots, readers, rows, columns;  // rows: of a slot, at most
};

class RingMemory {
 public:
  static Result<std::shared_ptr<RingMemory>> create(const RingSizes&);
  static Result<std::shared_ptr<RingMemory>> attach(int fd);

  const RingSizes& sizes() const { return sizes_; }
  int fd() const { return file_.fd ? *file_.fd : -1; }  // -1: another's
  const Pages& pages() const { return file_.pages; }

  SharedWord& written() const { return word(0); }
  SharedWord& released(int reader) const { return word(1 + reader); }
  struct Slot {
    std::atomic<uint64_t> number, rows;
    float* data() { return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(this) + kLine); }
  };
  Slot& slot(uint32_t count) const;
  // Takes the slots' pages now. An Error when they are not to be had.
  std::optional<Error> touch_slots() const;
  // Ends all waits.
  void end();

 private:
  struct Header;
  SharedWord& word(int64_t index) const;

  SharedFile file_;
  RingSizes sizes_{};
  size_t slot_bytes_ = 0, slots_at_ = 0;
};

// One end of a ring, used by one thread at a time.
class RingEnd {
 public:
  explicit RingEnd(std::shared_ptr<RingMemory> memory, int spin_us);
  ~RingEnd() { leave(); }
  RingEnd(const RingEnd&) = delete;
  RingEnd& operator=(const RingEnd&) = delete;

  const RingMemory& memory() const { return *memory_; }
  // Tells all that the ring is over, from any thread: what was written can still be read, nobody waits any more.
  void leave() { memory_->end(); }

 protected:
  const std::shared_ptr<RingMemory> memory_;
  const int64_t spin_ns_;
  std::mutex one_user_;
  uint32_t count_ = 0;  // rows written, or asked for
};

class RingWriter : public RingEnd {
 public:
  static Result<std::unique_ptr<RingWriter>> join(std::shared_ptr<RingMemory>, int spin_us);
  // The rows of a step, `stride` floats apart; the numbers of steps ascend. Waits for room.
  std::optional<Error> write(uint64_t number, const float* data, int64_t stride, int64_t rows, int64_t columns,
                             double timeout_s);

 private:
  using RingEnd::RingEnd;
  std::optional<Error> wait_for_room(double timeout_s);
  std::optional<uint64_t> last_;
};

class RingReader : public RingEnd {
 public:
  static Result<std::unique_ptr<RingReader>> join(std::shared_ptr<RingMemory>, int reader, int spin_us);
  struct Rows {
    const float* data;
    int64_t rows, columns;
  };
  // The rows of a step, in the slot: they stay until the next read, or the release. Waits for them.
  Result<Rows> read(uint64_t number, int64_t columns, double timeout_s);
  void release();

 private:
  RingReader(std::shared_ptr<RingMemory> memory, int reader, int spin_us)
      : RingEnd(std::move(memory), spin_us), reader_(reader) {}
  void release_held();
  const int reader_;
  bool holds_ = false;
};

}  // namespace homenode
