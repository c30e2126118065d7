// What the machine under a team can do at most: short bursts of reading, of multiplying, and of one thread waiting for another. Callers repeat
// and choose; nothing is decided here.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/isa.h"
#include "base/status.h"
#include "host/memory.h"

namespace homenode {

class Team;

// Memory of which every member of the team owns a slice and has touched it first, on huge pages where they are granted.
class ReadBuffer {
 public:
  // bytes_per_member is rounded up to whole huge pages; an Error for more than 2^40 bytes in all.
  static Result<std::unique_ptr<ReadBuffer>> create(std::shared_ptr<Team>, size_t bytes_per_member);
  size_t bytes() const { return slice_ * size_t(members_); }
  bool huge_pages() const { return pages_.huge; }
  // Seconds in which all members read part number `part` of `parts` of their slices, as one stream or as eight 4 KiB apart. Parts are whole huge
  // pages; an Error when there are fewer of these than parts.
  Result<double> read(Level, bool eight_streams, int part, int parts) const;

 private:
  ReadBuffer() = default;
  std::shared_ptr<Team> team_;
  Pages pages_;
  size_t slice_ = 0;
  int members_ = 0;
};

enum class Multiply { int8 = 0, bf16 = 1, f32 = 2, int6 = 3 };

// Operations each member did and the seconds it took, all of them at the same time.
struct MultiplyBurst {
  int64_t operations = 0;
  std::vector<double> seconds;
};
Result<MultiplyBurst> multiply_burst(Team&, Level, Multiply, int64_t rounds);

// Nanoseconds until member 0, having told `other` something, has its answer: the mean of `rounds` such exchanges.
Result<double> round_trip_ns(Team&, int other, int rounds);

}  // namespace homenode
