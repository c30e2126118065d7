// Where the time of a program's steps goes, as its first thread sees it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "host/event_count.h"

namespace homenode {

struct PhaseTime {
  std::string name;
  int64_t runs = 0;
  double seconds = 0, waited = 0;  // `waited` of `seconds`: at the barrier after it, for the other threads
};

class PhaseClock {
 public:
  explicit PhaseClock(size_t phases) : phases_(phases) {}
  void begin_step() { current_ = -1; }
  // The first thread's work on the phase at hand is over; it waits.
  void end_work() { waiting_ = now_ns(); }
  // It begins the next phase (or, after the last one, the step ends: -1).
  void begin(int phase) {
    const int64_t now = now_ns();
    if (current_ >= 0) {
      Sum& sum = phases_[static_cast<size_t>(current_)];
      sum.ns += now - since_;
      sum.waited_ns += waiting_ ? now - waiting_ : 0;
      ++sum.runs;
    }
    current_ = phase, since_ = now, waiting_ = 0;
  }

  struct Sum {
    int64_t ns = 0, waited_ns = 0, runs = 0;
  };
  const std::vector<Sum>& phases() const { return phases_; }

 private:
  std::vector<Sum> phases_;
  int current_ = -1;
  int64_t since_ = 0, waiting_ = 0;
};

}  // namespace homenode
