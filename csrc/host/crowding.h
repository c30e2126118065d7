// Whether the members of a team have the CPUs they want: other work on the same CPUs, more members than CPUs, and a quota of CPU time all look
// alike from inside: time passes in which a member neither ran nor slept.
//
// Such time is measured in one run now and then, for asking what CPU time a thread has had takes about a microsecond.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "host/gate.h"

namespace homenode {

class Crowding {
 public:
  explicit Crowding(int members);

  // By the caller of a run: whether to measure this one.
  bool due();
  // By each member of a run that is measured, around its work.
  void begin(int member);
  void end(int member);
  // By the caller, when all members have ended.
  void conclude();

  // By a member that slept, waiting for others: that was no time it lost.
  void slept(int member, int64_t ns) { members_[static_cast<size_t>(member)].slept += ns; }

  // Of the time each member recently wanted its CPU, the share it did not have it; 0 while too little has been measured.
  std::vector<double> lost_shares() const;

 private:
  static constexpr int64_t kTelling = 200'000'000;  // nanoseconds of measured time before anything is said: one hiccup is no shortage

  struct alignas(kLine) Member {
    int64_t slept = 0;                      // ever
    int64_t wall_begin, cpu_begin, slept_begin;
    int64_t wanted = 0, had = 0;            // nanoseconds of CPU in the run that was measured last
  };
  struct Recent {
    int64_t wanted = 0, lost = 0;
    double share() const { return wanted < kTelling ? 0 : static_cast<double>(lost) / static_cast<double>(wanted); }
  };

  int64_t concluded_at_ = 0;
  std::vector<Member> members_;  // written by the member
  mutable std::mutex reading_;
  std::vector<Recent> recent_;   // guarded by `reading_`
};

}  // namespace homenode
