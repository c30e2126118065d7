// A team of threads on exactly the CPUs it is told. It never looks around the machine.
//
// The caller of run() is member 0 and is pinned like the others while inside run() only if `pin_caller`. The others spin for `spin_us`, then
// sleep on a futex; where there are more members than CPUs for them, they sleep almost at once. run() calls the function on all members and returns when all are done; inside, barrier(member) waits for all.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "host/tree.h"

namespace homenode {

class Team {
 public:
  // cpus[i]: the CPU of member i, or -1 to leave it unpinned. At least one member. groups[i]: the path of groups member i belongs to (see
  // tree.h), what it shares with its neighbours first by the largest; none at all: one group.
  static Result<std::unique_ptr<Team>> create(std::vector<int> cpus, int spin_us, bool pin_caller, std::vector<GroupPath> groups = {});
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  int size() const;
  const std::vector<int>& cpus() const;
  // The path of each member.
  const std::vector<GroupPath>& groups() const;

  template <class F>
  void run(F&& f) {  // f(int member)
    run_raw([](int member, void* p) { (*static_cast<std::remove_reference_t<F>*>(p))(member); }, &f, false);
  }
  // The same for work that only computes: time in which a member does not run is time it was kept from running, and counts in lost_shares().
  template <class F>
  void compute(F&& f) {
    run_raw([](int member, void* p) { (*static_cast<std::remove_reference_t<F>*>(p))(member); }, &f, true);
  }
  void barrier(int member);
  // Inside: a member was asleep so long for somebody who is not of the team.
  void slept(int member, int64_t ns);

  // Of the time each member recently computed or watched for the others, the share in which it did not have its CPU (see crowding.h).
  std::vector<double> lost_shares() const;
  // How long members watch for others before they sleep, in microseconds: less than asked for where members share CPUs.
  int spin_us() const;

 private:
  Team();
  void run_raw(void (*f)(int, void*), void* context, bool computes);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace homenode
