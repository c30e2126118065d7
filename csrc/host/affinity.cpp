#include "host/affinity.h"

#include <cerrno>
#include <climits>
#include <cstring>

namespace homenode {

namespace {

// False where a number has no place in it.
bool mask_of(const std::vector<int>& cpus, CpuMask& mask) {
  CPU_ZERO_S(sizeof mask, mask.words);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= 8192) return false;
    CPU_SET_S(cpu, sizeof mask, mask.words);
  }
  return true;
}

}  // namespace

int pin_this_thread(const std::vector<int>& cpus) {
  CpuMask mask;
  if (!mask_of(cpus, mask)) return EINVAL;
  return sched_setaffinity(0, sizeof mask, mask.words) ? errno : 0;
}

int cpus_of_this_thread() {
  CpuMask mask;
  if (sched_getaffinity(0, sizeof mask, mask.words)) return INT_MAX;
  return CPU_COUNT_S(sizeof mask, mask.words);
}

Error pin_error(const std::vector<int>& cpus, int code) {
  std::string names;
  for (const int cpu : cpus) names += (names.empty() ? "" : ",") + std::to_string(cpu);
  return Error{Fault::host, code, "sched_setaffinity to CPU " + names + " failed: " + std::strerror(code)};
}

PinScope::PinScope(const std::vector<int>& cpus) {
  if (cpus.empty() || sched_getaffinity(0, sizeof before_, before_.words)) return;
  CpuMask wanted;
  if (mask_of(cpus, wanted) && CPU_EQUAL_S(sizeof before_, before_.words, wanted.words)) return;  // it is there
  error_ = pin_this_thread(cpus);
  pinned_ = error_ == 0;
}

PinScope::~PinScope() {
  if (pinned_) sched_setaffinity(0, sizeof before_, before_.words);
}

}  // namespace homenode
