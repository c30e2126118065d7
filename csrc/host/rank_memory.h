// The memory through which the ranks of a group exchange values: one memfd, in which each rank has a seat and a region
// of its own.
//
// The maker (who may be nobody's rank) writes the sizes; who attaches checks them once and never reads them again, so
// that nothing written there later makes anybody reach past the mapping. A rank's part begins on a huge page and is
// first touched by it: the memory is of its node.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "host/shared_memory.h"
#include "host/shared_word.h"

namespace homenode {

constexpr int64_t kLineFloats = 16;  // halves are written and read in whole cache lines

// Part `part` of `parts` of n things begins there.
inline int64_t share(int64_t n, int part, int parts) { return n * part / parts; }

// What a rank wrote into one half before it arrived: lines from the first on. Of a sum by shares each other rank reads
// its own share first, and then all read the share of this one.
struct Written {
  enum class Part : uint32_t { all, for_shares, own_share };
  Part part = Part::all;
  int half = 0;
  uint32_t lines = 0;
};

class RankMemory {
 public:
  static constexpr int kMostRanks = 1024;
  static constexpr int64_t kLeastBytes = 1024, kMostBytes = int64_t(1) << 36;  // of a rank's region

  static Result<std::shared_ptr<RankMemory>> create(int ranks, int64_t bytes_per_rank);
  static Result<std::shared_ptr<RankMemory>> attach(int fd);

  int ranks() const { return ranks_; }
  int fd() const { return file_.fd ? *file_.fd : -1; }  // -1: another's
  // Of one of the two halves of a region, whole cache lines.
  int64_t half_floats() const { return half_floats_; }
  float* half(int rank, int which) const;

  // Makes this process the rank, and its pages its own. An Error when another has it.
  std::optional<Error> take_seat(int rank);
  // How often a rank has arrived.
  SharedWord& arrived(int rank) const { return seat(rank).arrived; }
  // What it arrived with, at an even and at an odd number of arrivals.
  std::atomic<uint64_t>& call(int rank, uint32_t number) const { return seat(rank).call[number & 1]; }

  // And what it had written by then, for who carries it to other hosts; alike.
  Written written(int rank, uint32_t number) const;
  void set_written(int rank, uint32_t number, const Written&);

  // Ends all waits. Of a rank that is named it is known that it left, or that it did not come in time.
  enum class Fate : uint32_t { here, left, late };
  void end(const std::vector<int>& gone, Fate);
  // The ranks of which that is known.
  std::vector<std::pair<int, Fate>> gone() const;
  // Who is missing, in words: the ranks that are known to have left, or not to have come within the time.
  std::string missing(double seconds) const;

 private:
  struct Header;
  struct Seat {
    SharedWord arrived;
    alignas(kLine) std::atomic<uint64_t> call[2], written[2];
    alignas(kLine) std::atomic<uint32_t> taken, fate;
  };
  Seat& seat(int rank) const;

  SharedFile file_;
  int ranks_ = 0;
  int64_t half_floats_ = 0;
  size_t part_bytes_ = 0;  // seat and region of one rank
};

}  // namespace homenode
