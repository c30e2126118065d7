#include "host/crowding.h"

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

Crowding::Crowding(int members) : members_(static_cast<size_t>(members)), recent_(static_cast<size_t>(members)) {}

bool Crowding::due() { return now_ns() - concluded_at_ >= kEvery; }

void Crowding::begin(int member) {
  Member& m = members_[static_cast<size_t>(member)];
  m.wall_begin = now_ns();
  m.cpu_begin = cpu_ns();
  m.slept_begin = m.slept;
}

void Crowding::end(int member) {
  Member& m = members_[static_cast<size_t>(member)];
  m.had = cpu_ns() - m.cpu_begin;
  m.wanted = now_ns() - m.wall_begin - (m.slept - m.slept_begin);
}

void Crowding::conclude() {
  concluded_at_ = now_ns();
  const std::lock_guard<std::mutex> alone(reading_);
  for (size_t i = 0; i < members_.size(); ++i) {
    Recent& recent = recent_[i];
    if (recent.wanted > kRecent) recent.wanted /= 2, recent.lost /= 2;
    recent.wanted += members_[i].wanted;
    recent.lost += std::max<int64_t>(0, members_[i].wanted - members_[i].had);
  }
}

std::vector<double> Crowding::lost_shares() const {
  const std::lock_guard<std::mutex> alone(reading_);
  std::vector<double> shares;
  for (const Recent& recent : recent_) shares.push_back(recent.share());
  return shares;
}

}  // namespace homenode
