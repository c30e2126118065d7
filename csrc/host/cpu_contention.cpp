#include "host/cpu_contention.h"

#include <algorithm>
#include <ctime>

namespace homenode {
namespace {

constexpr int64_t kEvery = 50'000'000;       // nanoseconds from one measured run to the next
constexpr int64_t kRecent = 2'000'000'000;  // of measured time, after which older measurements count half

int64_t cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

}  // namespace

CpuContention::CpuContention(int threads)
    : threads_(static_cast<size_t>(threads)), recent_(static_cast<size_t>(threads)) {}

bool CpuContention::due() { return now_ns() - concluded_at_ >= kEvery; }

void CpuContention::begin(int thread) {
  ThreadTimes& times = threads_[static_cast<size_t>(thread)];
  times.wall_begin = now_ns();
  times.cpu_begin = cpu_ns();
  times.slept_begin = times.slept;
}

void CpuContention::end(int thread) {
  ThreadTimes& times = threads_[static_cast<size_t>(thread)];
  times.had = cpu_ns() - times.cpu_begin;
  times.wanted = now_ns() - times.wall_begin - (times.slept - times.slept_begin);
}

void CpuContention::conclude() {
  concluded_at_ = now_ns();
  const std::lock_guard<std::mutex> alone(reading_);
  for (size_t i = 0; i < threads_.size(); ++i) {
    Recent& recent = recent_[i];
    if (recent.wanted > kRecent) recent.wanted /= 2, recent.lost /= 2;
    recent.wanted += threads_[i].wanted;
    recent.lost += std::max<int64_t>(0, threads_[i].wanted - threads_[i].had);
  }
}

std::vector<double> CpuContention::lost_shares() const {
  const std::lock_guard<std::mutex> alone(reading_);
  std::vector<double> shares;
  for (const Recent& recent : recent_) shares.push_back(recent.share());
  return shares;
}

}  // namespace homenode
