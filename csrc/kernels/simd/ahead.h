// Asking for the keys and values that attention will want next.
//
// Keys and values lie in runs of a few KiB, too short for the hardware to see coming, and so much is computed between two of them that what it sees
// it asks for too late. So while a chunk is computed what comes next is asked for, evenly over all steps of its loops. A step has no decision to make
// for it: guessed wrongly, one costs more than the products of a step.
#pragma once
#include "kernels/kernels.h"

namespace homenode {
namespace {

constexpr int kAskSteps = 8;  // between two looks at where a range ends

// Where a loop's steps are with asking.
struct Asking {
  const char* at;
  int64_t advance;  // bytes, a step; 0: nothing is left to ask for
  int64_t lines;    // a step
  // Into the second cache: a chunk is longer than the first.
  void step() {
    __builtin_prefetch(at, 0, 2);
    if (lines > 1) {
      for (int64_t i = 1; i < lines; ++i) __builtin_prefetch(at + 64 * i, 0, 2);
    }
    at += advance;
  }
};

class Ahead {
 public:
  // `steps`: how many there will be, about. A range's end is seen some steps late, so there is a little to catch up with.
  Ahead(const AttendArgs& a, int64_t steps) : range_(a.ahead), past_(a.ahead + a.ahead_ranges) {
    int64_t bytes = 0;
    for (const MemoryAhead* range = range_; range != past_; ++range) bytes += range->bytes;
    now_ = {static_cast<const char*>(a.queries), 0, 1};
    if (!bytes || !steps) return;
    const int64_t late = a.ahead_ranges * (bytes / steps) * kAskSteps / 2;
    now_.advance = (bytes + late + steps - 1) / steps;
    now_.lines = (now_.advance + 63) / 64;
    enter();
  }
  // For a loop, which says when it ends; and after every few steps, where it does not go on.
  Asking begin() const { return now_; }
  void end(const Asking& now) { now_ = now; }
  void look(Asking& now) {
    if (now.at < end_ || !now.advance) return;
    now_ = now;
    ++range_;
    enter();
    now = now_;
  }

 private:
  void enter() {
    if (range_ == past_) {
      now_.advance = 0, now_.lines = 1;  // the last line again and again, which costs nothing
      return;
    }
    now_.at = static_cast<const char*>(range_->from);
    end_ = now_.at + range_->bytes;
  }

  const MemoryAhead *range_, *past_;
  Asking now_;
  const char* end_ = nullptr;  // of the range
};

}  // namespace
}  // namespace homenode
