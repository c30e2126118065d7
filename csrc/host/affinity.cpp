#include "host/affinity.h"

#include <cerrno>
#include <climits>
#include <cstring>

namespace homenode {

int pin_this_thread(int cpu) {
  if (cpu >= 8192) return EINVAL;
  CpuMask mask;
  CPU_ZERO_S(sizeof mask, mask.words);
  CPU_SET_S(cpu, sizeof mask, mask.words);
  return sched_setaffinity(0, sizeof mask, mask.words) ? errno : 0;
}

int cpus_of_this_thread() {
  CpuMask mask;
  if (sched_getaffinity(0, sizeof mask, mask.words)) return INT_MAX;
  return CPU_COUNT_S(sizeof mask, mask.words);
}

Error pin_error(int cpu, int code) {
  return Error{Fault::host, code,
               "sched_setaffinity to CPU " + std::to_string(cpu) + " failed: " + std::strerror(code)};
}

PinScope::PinScope(int cpu) {
  if (cpu < 0 || sched_getaffinity(0, sizeof before_, before_.words)) return;
  // It is there
  if (cpu < 8192 && CPU_ISSET_S(cpu, sizeof before_, before_.words) && CPU_COUNT_S(sizeof before_, before_.words) == 1)
    return;
  error_ = pin_this_thread(cpu);
  pinned_ = error_ == 0;
}

PinScope::~PinScope() {
  if (pinned_) sched_setaffinity(0, sizeof before_, before_.words);
}

}  // namespace homenode
