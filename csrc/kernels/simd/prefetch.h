// Prefetching the keys and values that attention will want next.
//
// Keys and values lie in runs of a few KiB, too short for the hardware prefetcher, and so much is computed between two
// of them that what it does see it fetches too late. So while a chunk is computed the next one is prefetched, evenly
// over all steps of the loops. A step has no decision to make for it: a wrong branch costs more than the products of a
// step.
#pragma once
#include "kernels/kernels.h"

namespace homenode {
namespace {

constexpr int kStepsBetweenChecks = 8;  // between two checks for the end of a range

// Where the steps of one loop are in the range that is prefetched.
struct PrefetchCursor {
  const char* at;
  int64_t advance;  // bytes a step; 0: nothing is left to prefetch
  int64_t lines;    // a step
  // Into the second-level cache: a chunk is longer than the first.
  void step() {
    __builtin_prefetch(at, 0, 2);
    if (lines > 1) {
      for (int64_t i = 1; i < lines; ++i) __builtin_prefetch(at + 64 * i, 0, 2);
    }
    at += advance;
  }
};

class Prefetch {
 public:
  // `steps`: about how many there will be. The end of a range is noticed some steps late, so each step fetches a bit
  // more.
  Prefetch(const AttendArgs& a, int64_t steps) : range_(a.prefetch), past_(a.prefetch + a.prefetch_ranges) {
    int64_t bytes = 0;
    for (const PrefetchRange* range = range_; range != past_; ++range) bytes += range->bytes;
    now_ = {static_cast<const char*>(a.queries), 0, 1};
    if (!bytes || !steps) return;
    const int64_t late = a.prefetch_ranges * (bytes / steps) * kStepsBetweenChecks / 2;
    now_.advance = (bytes + late + steps - 1) / steps;
    now_.lines = (now_.advance + 63) / 64;
    enter();
  }
  // For a loop, which says when it ends; and after every few steps, where it does not go on.
  PrefetchCursor begin() const { return now_; }
  void end(const PrefetchCursor& now) { now_ = now; }
  void look(PrefetchCursor& now) {
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

  const PrefetchRange *range_, *past_;
  PrefetchCursor now_;
  const char* end_ = nullptr;  // of the range
};

}  // namespace
}  // namespace homenode
