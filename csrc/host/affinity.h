// Threads onto CPUs.
#pragma once
#include <sched.h>

#include "base/status.h"

namespace homenode {

// Room for 8192 CPUs, the most a Linux kernel is built for; one cpu_set_t has room for 1024 only.
struct CpuMask {
  cpu_set_t words[8192 / CPU_SETSIZE];
};

// 0, or the errno of the refusal.
int pin_this_thread(int cpu);

// How many CPUs the calling thread may run on.
int cpus_of_this_thread();

Error pin_error(int cpu, int code);

// Pins the calling thread while it lives, and gives its old CPUs back. Does nothing for CPU -1.
class PinScope {
 public:
  explicit PinScope(int cpu);
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
