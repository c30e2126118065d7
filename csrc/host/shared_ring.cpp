#include "host/shared_ring.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace homenode {
namespace {

using std::to_string;

constexpr uint64_t kMagic = 0x676e6972'6e6868;  // "hhnring"
constexpr uint32_t kVersion = 1;
constexpr int64_t kMostSlots = 256, kMostReaders = 1024, kMostRows = 1 << 24, kMostColumns = 1 << 24,
                  kMostBytes = int64_t(1) << 40;
constexpr double kLongestWaitS = 1e9;

size_t whole(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
size_t slot_bytes_of(const RingSizes& s) {
  return whole(kLine + static_cast<size_t>(s.rows * s.columns) * sizeof(float), kSmallPage);
}
size_t slots_at_of(const RingSizes& s) { return whole(static_cast<size_t>(2 + s.readers) * kSmallPage, kSmallPage); }

std::optional<Error> check_sizes(const RingSizes& s) {
  const auto wrong = [](int64_t seen, const char* what, int64_t most) {
    return Error{Fault::user, 0, "a ring of " + to_string(seen) + " " + what + "; wanted 1 to " + to_string(most)};
  };
  if (s.slots < 1 || s.slots > kMostSlots) return wrong(s.slots, "slots", kMostSlots);
  if (s.readers < 1 || s.readers > kMostReaders) return wrong(s.readers, "readers", kMostReaders);
  if (s.rows < 1 || s.rows > kMostRows) return wrong(s.rows, "rows", kMostRows);
  if (s.columns < 1 || s.columns > kMostColumns) return wrong(s.columns, "columns", kMostColumns);
  if (s.rows * s.columns > kMostBytes / 4 / s.slots)
    return wrong(s.rows * s.columns, "floats in a slot", kMostBytes / 4 / s.slots);
  return {};
}

int64_t deadline_of(double timeout_s) {
  return now_ns() + static_cast<int64_t>(std::clamp(timeout_s, 0.0, kLongestWaitS) * 1e9);
}

Error over() { return Error{Fault::host, ECONNABORTED, "the ring between two stages was ended"}; }

Error late(const std::string& who, double timeout_s) {
  char text[64];
  std::snprintf(text, sizeof text, " within %g s", timeout_s);
  return Error{Fault::host, ETIMEDOUT, who + text};
}

}  // namespace

struct RingMemory::Header {
  uint64_t magic;
  uint32_t version, unused;
  RingSizes sizes;
};

SharedWord& RingMemory::word(int64_t index) const {
  return *reinterpret_cast<SharedWord*>(file_.pages.data + static_cast<size_t>(1 + index) * kSmallPage);
}

RingMemory::Slot& RingMemory::slot(uint32_t count) const {
  return *reinterpret_cast<Slot*>(file_.pages.data + slots_at_ +
                                  count % static_cast<uint32_t>(sizes_.slots) * slot_bytes_);
}

Result<std::shared_ptr<RingMemory>> RingMemory::create(const RingSizes& sizes) {
  if (auto error = check_sizes(sizes)) return std::move(*error);
  auto memory = std::make_shared<RingMemory>();
  memory->sizes_ = sizes, memory->slot_bytes_ = slot_bytes_of(sizes), memory->slots_at_ = slots_at_of(sizes);
  auto file = create_shared(memory->slots_at_ + static_cast<size_t>(sizes.slots) * memory->slot_bytes_, "homenode ring",
                            Sharing::writable);
  if (!file) return file.error();
  memory->file_ = std::move(file.value());
  *reinterpret_cast<Header*>(memory->file_.pages.data) = {kMagic, kVersion, 0, sizes};
  return memory;
}

Result<std::shared_ptr<RingMemory>> RingMemory::attach(int fd) {
  auto first = map_shared(fd, sizeof(Header), false);
  if (!first) return first.error();
  const Header found = *reinterpret_cast<const Header*>(first.value().data);
  if (found.magic != kMagic || found.version != kVersion)
    return Error{Fault::user, 0, "memory that is no ring of this version"};
  if (auto error = check_sizes(found.sizes)) return std::move(*error);
  auto memory = std::make_shared<RingMemory>();
  memory->sizes_ = found.sizes, memory->slot_bytes_ = slot_bytes_of(found.sizes),
  memory->slots_at_ = slots_at_of(found.sizes);
  // Refused when the file is shorter
  auto pages = map_shared(fd, memory->slots_at_ + static_cast<size_t>(found.sizes.slots) * memory->slot_bytes_, true);
  if (!pages) return pages.error();
  memory->file_.pages = std::move(pages.value());
  return memory;
}

std::optional<Error> RingMemory::touch_slots() const {
  return populate(
      Pages{file_.pages.owner, file_.pages.data + slots_at_, static_cast<size_t>(sizes_.slots) * slot_bytes_, false});
}

void RingMemory::end() {
  for (int64_t i = 0; i <= sizes_.readers; ++i) word(i).end();
}

RingEnd::RingEnd(std::shared_ptr<RingMemory> memory, int spin_us)
    : memory_(std::move(memory)), spin_ns_(std::max(spin_us, 0) * int64_t(1000)) {}

Result<std::unique_ptr<RingWriter>> RingWriter::join(std::shared_ptr<RingMemory> memory, int spin_us) {
  if (auto error = memory->touch_slots()) return std::move(*error);
  return std::unique_ptr<RingWriter>(new RingWriter(std::move(memory), spin_us));
}

std::optional<Error> RingWriter::wait_for_room(double timeout_s) {
  if (memory_->written().is_over()) return over();
  const auto slots = static_cast<uint32_t>(memory_->sizes().slots);
  if (count_ < slots) return {};
  const int64_t until = deadline_of(timeout_s);
  for (int reader = 0; reader < memory_->sizes().readers; ++reader) {
    switch (memory_->released(reader).wait_for(count_ + 1 - slots, spin_ns_, until)) {
      case Arrival::reached: break;
      case Arrival::over: return over();
      case Arrival::late: return late("reader " + to_string(reader) + " of a ring made no room", timeout_s);
    }
  }
  return {};
}

std::optional<Error> RingWriter::write(uint64_t number, const float* data, int64_t stride, int64_t rows,
                                       int64_t columns, double timeout_s) {
  const std::lock_guard<std::mutex> turn(one_user_);
  const RingSizes& sizes = memory_->sizes();
  if (rows < 1 || rows > sizes.rows || columns != sizes.columns) {
    return Error{Fault::user, 0,
                 to_string(rows) + " x " + to_string(columns) + " values for a ring of at most " +
                     to_string(sizes.rows) + " x " + to_string(sizes.columns)};
  }
  if (last_ && number <= *last_)
    return Error{Fault::user, 0, "step " + to_string(number) + " after step " + to_string(*last_) + " in a ring"};
  if (auto error = wait_for_room(timeout_s)) return error;
  RingMemory::Slot& slot = memory_->slot(count_);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(slot.data() + r * columns, data + r * stride, static_cast<size_t>(columns) * sizeof(float));
  slot.number.store(number, std::memory_order_relaxed);
  slot.rows.store(static_cast<uint64_t>(rows), std::memory_order_relaxed);
  memory_->written().advance();
  ++count_, last_ = number;
  return {};
}

Result<std::unique_ptr<RingReader>> RingReader::join(std::shared_ptr<RingMemory> memory, int reader, int spin_us) {
  if (reader < 0 || reader >= memory->sizes().readers) {
    return Error{Fault::user, 0,
                 "reader " + to_string(reader) + " of a ring with " + to_string(memory->sizes().readers)};
  }
  return std::unique_ptr<RingReader>(new RingReader(std::move(memory), reader, spin_us));
}

Result<RingReader::Rows> RingReader::read(uint64_t number, int64_t columns, double timeout_s) {
  const std::lock_guard<std::mutex> turn(one_user_);
  const RingSizes& sizes = memory_->sizes();
  if (columns != sizes.columns)
    return Error{Fault::user, 0,
                 "rows of " + to_string(columns) + " values from a ring of " + to_string(sizes.columns)};
  release_held();
  switch (memory_->written().wait_for(count_ + 1, spin_ns_, deadline_of(timeout_s))) {
    case Arrival::reached: break;
    case Arrival::over: return over();
    case Arrival::late: return late("the stage before this one did not write step " + to_string(number), timeout_s);
  }
  RingMemory::Slot& slot = memory_->slot(count_);
  const uint64_t found = slot.number.load(std::memory_order_relaxed), rows = slot.rows.load(std::memory_order_relaxed);
  if (found != number)
    return Error{Fault::host, ECONNABORTED,
                 "step " + to_string(found) + " in a ring where step " + to_string(number) + " is wanted"};
  if (rows < 1 || rows > static_cast<uint64_t>(sizes.rows)) {
    return Error{Fault::host, ECONNABORTED, to_string(rows) + " rows in a ring of at most " + to_string(sizes.rows)};
  }
  ++count_, holds_ = true;
  return Rows{slot.data(), static_cast<int64_t>(rows), columns};
}

void RingReader::release() {
  const std::lock_guard<std::mutex> turn(one_user_);
  release_held();
}

void RingReader::release_held() {
  if (holds_) memory_->released(reader_).advance();
  holds_ = false;
}

}  // namespace homenode
