// Asking for the keys and values that attention will want next.
//
// Keys and values lie in runs of a few KiB, too short for the hardware to see coming, and so much is computed between two of them that what it sees
// it asks for too late. So while a chunk is computed what comes next is asked for, a little with every step.
#pragma once
#include "kernels/kernels.h"

namespace homenode {
namespace {

constexpr int kAskSteps = 8;
constexpr int kPieceBytes = kAskSteps * 64;
constexpr int kMostPieces = 8;

// What so many steps of a loop ask for: a line of each piece with every step. Lines that lie apart come sooner than neighbours.
struct Pieces {
  const char* from[kMostPieces];
  int count = 0;
  // Into the second cache: a chunk is longer than the first.
  void ask(int64_t step) const {
    for (int i = 0; i < count; ++i) __builtin_prefetch(from[i] + step % kAskSteps * 64, 0, 2);
  }
};

class Ahead {
 public:
  // `calls`: how often take() will be called, about.
  Ahead(const AttendArgs& a, int64_t calls) : range_(a.ahead), end_(a.ahead + a.ahead_ranges), calls_(calls) {
    for (const MemoryAhead* range = range_; range != end_; ++range) pieces_ += (range->bytes + kPieceBytes - 1) / kPieceBytes;
    if (!calls) range_ = end_;
  }
  // The pieces for the next steps: as many for every call, about.
  void take(Pieces& pieces) {
    pieces.count = 0;
    if (range_ == end_) return;
    for (due_ += pieces_; due_ >= calls_ && pieces.count < kMostPieces && range_ != end_; due_ -= calls_, ++pieces.count) {
      pieces.from[pieces.count] = static_cast<const char*>(range_->from) + done_;
      done_ += kPieceBytes;
      if (done_ >= range_->bytes) ++range_, done_ = 0;
    }
  }

 private:
  const MemoryAhead *range_, *end_;
  int64_t done_ = 0, pieces_ = 0, calls_, due_ = 0;
};

}  // namespace
}  // namespace homenode
