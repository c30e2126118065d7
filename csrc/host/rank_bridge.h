// Ranks of a group on several hosts, each of which has memory for all of the group. What a rank wrote before it arrived
// is sent to the other hosts, written to the same place there, and then the rank is marked as arrived. So ranks read
// and wait as on one host, and sums have the same bits.
//
// Nothing is overwritten before it was sent or read: a rank writes a half again when all have arrived once more, and
// those of another host do that only after they have seen, and so have been sent, what it arrived with before. In a sum
// by shares it writes its own share in between; no other host reads that before the rank arrives with it, and it is
// sent only then.
#pragma once
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "host/rank_memory.h"

namespace homenode {

// A descriptor that is closed with its owner.
class Stream {
 public:
  explicit Stream(int fd) : fd_(fd) {}
  Stream(Stream&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream();
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Follows a rank of this host.
class RankSender {
 public:
  // Another host: a connected stream to it, and the ranks there, ascending.
  struct Host {
    Stream stream;
    std::vector<int> ranks;
  };
  // What has arrived must be gone within `timeout_s`; else, or when a stream breaks, the group is over.
  static Result<std::unique_ptr<RankSender>> start(std::shared_ptr<RankMemory>, int rank, std::vector<Host>,
                                                   double timeout_s);
  // Tells the other hosts that the group is over.
  ~RankSender();

 private:
  RankSender(std::shared_ptr<RankMemory> memory, int rank, std::vector<Host> hosts, double timeout_s);
  void follow();
  bool send(const Host&, uint32_t number);
  void say_farewell();

  const std::shared_ptr<RankMemory> memory_;
  const int rank_;
  const std::vector<Host> hosts_;
  const int64_t timeout_ns_;
  std::thread thread_;
};

// Is a rank of another host here: takes its seat.
class RankReceiver {
 public:
  // What has begun to come must be there within `timeout_s`; else, or when the stream ends, the group is over.
  static Result<std::unique_ptr<RankReceiver>> start(std::shared_ptr<RankMemory>, int rank, Stream, double timeout_s);
  ~RankReceiver();

 private:
  RankReceiver(std::shared_ptr<RankMemory> memory, int rank, Stream stream, double timeout_s);
  void follow();

  const std::shared_ptr<RankMemory> memory_;
  const int rank_;
  const Stream stream_;
  const int64_t timeout_ns_;
  std::thread thread_;
};

}  // namespace homenode
