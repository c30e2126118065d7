// A team of threads on exactly the CPUs it is told. It never looks around the machine.
//
// The caller of run() is member 0 and is pinned like the others while inside run() only if `pin_caller`. The others spin for `spin_us`, then
// sleep on a futex. run() calls the function on all members and returns when all are done; inside, barrier(member) waits for all.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace homenode {

class Team {
 public:
  // cpus[i]: the CPU of member i, or -1 to leave it unpinned. At least one member.
  static Result<std::unique_ptr<Team>> create(std::vector<int> cpus, int spin_us, bool pin_caller);
  ~Team();
  Team(const Team&) = delete;
  int size() const;
  const std::vector<int>& cpus() const;

  template <class F>
  void run(F&& f) {  // f(int member)
    run_raw([](int member, void* p) { (*static_cast<std::remove_reference_t<F>*>(p))(member); }, &f);
  }
  void run_raw(void (*f)(int, void*), void* context);
  void barrier(int member);

 private:
  Team();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace homenode
