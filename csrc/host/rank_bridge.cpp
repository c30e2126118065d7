#include "host/rank_bridge.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

namespace homenode {
namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
constexpr int64_t kSliceNs = 20'000'000;      // between two looks whether the group is over
constexpr int64_t kIdleNs = 1'000'000'000;    // between two looks of a sender that has nothing to send
constexpr int64_t kFarewellNs = 100'000'000;  // for what is to be said then

constexpr uint32_t kOddHalf = 1, kArrived = 2, kOver = 4;

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer believes that sendmsg reads its values after the other end may have had them
constexpr bool kArrivesApart = true;
#else
constexpr bool kArrivesApart = false;
#endif

// Before the values of some lines of a half. With kOver there are none: `first` is a rank that is gone, `lines` its
// fate.
struct Head {
  uint32_t number, flags, first, lines;
  uint64_t call;
};
static_assert(sizeof(Head) == 24);

struct Lines {
  int64_t first, end;
};

// What a host with these ranks is sent of `rank`'s values.
std::vector<Lines> lines_for(const std::vector<int>& ranks, const Written& written, int rank, int size) {
  const auto share_of = [&](int r) { return Lines{share(written.lines, r, size), share(written.lines, r + 1, size)}; };
  if (written.part == Written::Part::all) return {{0, written.lines}};
  if (written.part == Written::Part::own_share) return {share_of(rank)};
  std::vector<Lines> found;
  for (const int r : ranks) {
    const Lines next = share_of(r);
    if (!found.empty() && found.back().end == next.first) {
      found.back().end = next.end;
    } else {
      found.push_back(next);
    }
  }
  return found;
}

// Waits for `events` until the deadline; false when they do not come.
bool ready(int fd, short events, int64_t until_ns) {
  for (;;) {
    const int64_t left_ns = until_ns == kForever ? kForever : until_ns - now_ns();
    if (left_ns <= 0) return false;
    pollfd one{fd, events, 0};
    const int found = poll(
        &one, 1, until_ns == kForever ? -1 : static_cast<int>(std::min<int64_t>(left_ns / 1'000'000 + 1, 1 << 30)));
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) return false;
  }
}

// Waits for room until the deadline, which comes soon once the group is over: what has arrived by then is still for the
// others.
bool has_room(int fd, int64_t& until_ns, const RankMemory& memory) {
  while (now_ns() < until_ns) {
    if (memory.arrived(0).is_over()) until_ns = std::min(until_ns, now_ns() + kFarewellNs);
    if (ready(fd, POLLOUT, std::min(until_ns, now_ns() + kSliceNs))) return true;
  }
  return false;
}

bool send_all(int fd, const Head& head, const void* data, size_t bytes, int64_t until_ns, const RankMemory& memory) {
  iovec parts[2] = {{const_cast<Head*>(&head), sizeof head}, {const_cast<void*>(data), bytes}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = bytes ? 2 : 1;
  while (message.msg_iovlen) {
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || !has_room(fd, until_ns, memory)) return false;
      continue;
    }
    while (message.msg_iovlen && static_cast<size_t>(sent) >= message.msg_iov->iov_len) {
      sent -= static_cast<ssize_t>(message.msg_iov->iov_len);
      ++message.msg_iov, --message.msg_iovlen;
    }
    if (message.msg_iovlen) {
      message.msg_iov->iov_base = static_cast<char*>(message.msg_iov->iov_base) + sent;
      message.msg_iov->iov_len -= static_cast<size_t>(sent);
    }
  }
  return true;
}

enum class Taken { all, ended, late };

// Until the deadline, which counts from the first byte where `any_time` is set.
Taken take_all(int fd, void* data, size_t bytes, int64_t timeout_ns, bool any_time) {
  int64_t until = any_time ? kForever : now_ns() + timeout_ns;
  for (size_t at = 0; at < bytes;) {
    const ssize_t came = recv(fd, static_cast<char*>(data) + at, bytes - at, MSG_DONTWAIT);
    if (came > 0) {
      at += static_cast<size_t>(came);
      if (until == kForever) until = now_ns() + timeout_ns;
    } else if (came == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      return Taken::ended;
    } else if (!ready(fd, POLLIN, until)) {
      return Taken::late;
    }
  }
  return Taken::all;
}

// Whatever is said, it is written to the rank's own memory only.
bool fits(const Head& head, uint32_t number, int64_t half_floats) {
  return head.number == number && head.flags < kOver && (int64_t(head.first) + head.lines) * kLineFloats <= half_floats;
}

RankMemory::Fate fate_of(uint32_t said) {
  return said == static_cast<uint32_t>(RankMemory::Fate::late) ? RankMemory::Fate::late : RankMemory::Fate::left;
}

std::optional<Error> check_rank(const RankMemory& memory, int rank, double timeout_s) {
  if (rank < 0 || rank >= memory.ranks())
    return Error{Fault::user, 0, "rank " + std::to_string(rank) + " of a group of " + std::to_string(memory.ranks())};
  if (!(timeout_s > 0) || timeout_s > 1e9)
    return Error{Fault::user, 0, "a group whose ranks wait " + std::to_string(timeout_s) + " s; wanted more than 0"};
  return {};
}

}  // namespace

Stream::~Stream() {
  if (fd_ >= 0) close(fd_);
}

Result<std::unique_ptr<RankSender>> RankSender::start(std::shared_ptr<RankMemory> memory, int rank,
                                                      std::vector<Host> hosts, double timeout_s) {
  if (auto error = check_rank(*memory, rank, timeout_s)) return std::move(*error);
  for (const Host& host : hosts) {
    for (const int r : host.ranks) {
      if (auto error = check_rank(*memory, r, timeout_s)) return std::move(*error);
    }
  }
  return std::unique_ptr<RankSender>(new RankSender(std::move(memory), rank, std::move(hosts), timeout_s));
}

RankSender::RankSender(std::shared_ptr<RankMemory> memory, int rank, std::vector<Host> hosts, double timeout_s)
    : memory_(std::move(memory)),
      rank_(rank),
      hosts_(std::move(hosts)),
      timeout_ns_(static_cast<int64_t>(timeout_s * 1e9)) {
  thread_ = std::thread([this] { follow(); });
}

RankSender::~RankSender() {
  memory_->end({rank_}, RankMemory::Fate::left);
  thread_.join();
}

void RankSender::follow() {
  for (uint32_t number = 1; memory_->arrived(rank_).wait_for(number, 0, kForever, nullptr, kIdleNs) == Arrival::reached;
       ++number) {
    for (const Host& host : hosts_) {
      // Who it is that is gone, its own end of the other stream tells
      if (!send(host, number)) memory_->end({}, RankMemory::Fate::left);
    }
  }
  say_farewell();
}

bool RankSender::send(const Host& host, uint32_t number) {
  const Written written = memory_->written(rank_, number);
  const uint64_t call = memory_->call(rank_, number).load(std::memory_order_relaxed);
  const uint32_t half = written.half ? kOddHalf : 0;
  const int64_t until = now_ns() + timeout_ns_;
  auto ranges = lines_for(host.ranks, written, rank_, memory_->ranks());
  if (kArrivesApart) ranges.push_back({0, 0});
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto [first, last] = ranges[i];
    const uint32_t arrived = i + 1 == ranges.size() ? kArrived : 0;
    const Head head{number, half | arrived, static_cast<uint32_t>(first), static_cast<uint32_t>(last - first), call};
    const float* values = memory_->half(rank_, written.half) + first * kLineFloats;
    const size_t bytes = static_cast<size_t>((last - first) * kLineFloats) * sizeof(float);
    if (!send_all(host.stream.fd(), head, values, bytes, until, *memory_)) return false;
  }
  return true;
}

void RankSender::say_farewell() {
  const auto gone = memory_->gone();
  for (const Host& host : hosts_) {
    for (const auto& [rank, fate] : gone) {
      const Head head{0, kOver, static_cast<uint32_t>(rank), static_cast<uint32_t>(fate), 0};
      send_all(host.stream.fd(), head, nullptr, 0, now_ns() + kFarewellNs, *memory_);
    }
    shutdown(host.stream.fd(), SHUT_RDWR);
  }
}

Result<std::unique_ptr<RankReceiver>> RankReceiver::start(std::shared_ptr<RankMemory> memory, int rank, Stream stream,
                                                          double timeout_s) {
  if (auto error = check_rank(*memory, rank, timeout_s)) return std::move(*error);
  if (auto error = memory->take_seat(rank)) return std::move(*error);
  return std::unique_ptr<RankReceiver>(new RankReceiver(std::move(memory), rank, std::move(stream), timeout_s));
}

RankReceiver::RankReceiver(std::shared_ptr<RankMemory> memory, int rank, Stream stream, double timeout_s)
    : memory_(std::move(memory)),
      rank_(rank),
      stream_(std::move(stream)),
      timeout_ns_(static_cast<int64_t>(timeout_s * 1e9)) {
  thread_ = std::thread([this] { follow(); });
}

RankReceiver::~RankReceiver() {
  shutdown(stream_.fd(), SHUT_RDWR);
  thread_.join();
}

void RankReceiver::follow() {
  Taken taken = Taken::all;
  uint32_t number = 1;
  for (Head head; (taken = take_all(stream_.fd(), &head, sizeof head, timeout_ns_, true)) == Taken::all;) {
    if (head.flags == kOver) {
      if (head.first < static_cast<uint32_t>(memory_->ranks()))
        memory_->end({static_cast<int>(head.first)}, fate_of(head.lines));
      continue;
    }
    if (!fits(head, number, memory_->half_floats())) break;
    float* place = memory_->half(rank_, head.flags & kOddHalf ? 1 : 0) + head.first * kLineFloats;
    taken = take_all(stream_.fd(), place, size_t(head.lines) * kLineFloats * sizeof(float), timeout_ns_, false);
    if (taken != Taken::all) break;
    if (head.flags & kArrived) {
      memory_->call(rank_, number).store(head.call, std::memory_order_relaxed);
      memory_->arrived(rank_).advance();
      ++number;
    }
  }
  memory_->end({rank_}, taken == Taken::late ? RankMemory::Fate::late : RankMemory::Fate::left);
}

}  // namespace homenode
