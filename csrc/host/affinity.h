// Threads onto CPUs.
#pragma once
#include <sched.h>

#include <vector>

#include "base/status.h"

namespace homenode {

// Room for 8192 CPUs, the most a Linux kernel is built for; one cpu_set_t has room for 1024 only.
struct CpuMask {
  cpu_set_t words[8192 / CPU_SETSIZE];
};

// To these CPUs, one at least. 0, or the errno of the refusal.
int pin_this_thread(const std::vector<int>& cpus);

// How many CPUs the calling thread may run on.
int cpus_of_this_thread();

Error pin_error(const std::vector<int>& cpus, int code);

// Pins the calling thread while it lives, and gives its old CPUs back. Does nothing for no CPUs.
class PinScope {
 public:
  explicit PinScope(const std::vector<int>& cpus);
  ~PinScope();
  PinScope(const PinScope&) = delete;
  PinScope& operator=(const PinScope&) = delete;
  int error() const { return error_; }

 private:
  CpuMask before_;
  bool pinned_ = false;
  int error_ = 0;
};

}  // namespace homenode
