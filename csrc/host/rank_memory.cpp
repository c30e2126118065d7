#include "host/rank_memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>

namespace homenode {
namespace {

constexpr uint64_t kMagic = 0x736b6e6172'6e6868;  // "hhnranks"
constexpr uint32_t kVersion = 2;
constexpr size_t kSeatBytes = kSmallPage;

size_t whole(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
size_t part_bytes_of(int64_t bytes_per_rank) {
  return whole(kSeatBytes + static_cast<size_t>(bytes_per_rank), kHugePage);
}

std::optional<Error> check_sizes(int64_t ranks, int64_t bytes_per_rank) {
  if (ranks < 1 || ranks > RankMemory::kMostRanks) {
    return Error{
        Fault::user, 0,
        "a group of " + std::to_string(ranks) + " ranks; wanted 1 to " + std::to_string(RankMemory::kMostRanks)};
  }
  if (bytes_per_rank < RankMemory::kLeastBytes || bytes_per_rank > RankMemory::kMostBytes) {
    return Error{Fault::user, 0,
                 std::to_string(bytes_per_rank) + " bytes for each rank of a group; wanted " +
                     std::to_string(RankMemory::kLeastBytes) + " to " + std::to_string(RankMemory::kMostBytes)};
  }
  return {};
}

}  // namespace

struct RankMemory::Header {
  uint64_t magic;
  uint32_t version, ranks;
  int64_t bytes_per_rank;
};

RankMemory::Seat& RankMemory::seat(int rank) const {
  return *reinterpret_cast<Seat*>(file_.pages.data + kHugePage + static_cast<size_t>(rank) * part_bytes_);
}

float* RankMemory::half(int rank, int which) const {
  return reinterpret_cast<float*>(file_.pages.data + kHugePage + static_cast<size_t>(rank) * part_bytes_ + kSeatBytes) +
         which * half_floats_;
}

Result<std::shared_ptr<RankMemory>> RankMemory::create(int ranks, int64_t bytes_per_rank) {
  static_assert(sizeof(Seat) <= kSeatBytes);
  if (auto error = check_sizes(ranks, bytes_per_rank)) return std::move(*error);
  auto memory = std::make_shared<RankMemory>();
  memory->part_bytes_ = part_bytes_of(bytes_per_rank);
  auto file =
      create_shared(kHugePage + static_cast<size_t>(ranks) * memory->part_bytes_, "homenode ranks", Sharing::writable);
  if (!file) return file.error();
  memory->file_ = std::move(file.value());
  memory->ranks_ = ranks;
  memory->half_floats_ = bytes_per_rank / 8 / kLineFloats * kLineFloats;
  *reinterpret_cast<Header*>(memory->file_.pages.data) = {kMagic, kVersion, static_cast<uint32_t>(ranks),
                                                          bytes_per_rank};
  return memory;
}

Result<std::shared_ptr<RankMemory>> RankMemory::attach(int fd) {
  auto first = map_shared(fd, sizeof(Header), false);
  if (!first) return first.error();
  const Header found = *reinterpret_cast<const Header*>(first.value().data);
  if (found.magic != kMagic || found.version != kVersion)
    return Error{Fault::user, 0, "memory that is no group of ranks of this version"};
  if (auto error = check_sizes(found.ranks, found.bytes_per_rank)) return std::move(*error);
  auto memory = std::make_shared<RankMemory>();
  memory->ranks_ = static_cast<int>(found.ranks);
  memory->half_floats_ = found.bytes_per_rank / 8 / kLineFloats * kLineFloats;
  memory->part_bytes_ = part_bytes_of(found.bytes_per_rank);
  auto pages = map_shared(fd, kHugePage + found.ranks * memory->part_bytes_, true);  // refused when the file is shorter
  if (!pages) return pages.error();
  memory->file_.pages = std::move(pages.value());
  return memory;
}

std::optional<Error> RankMemory::take_seat(int rank) {
  if (rank < 0 || rank >= ranks_)
    return Error{Fault::user, 0, "rank " + std::to_string(rank) + " of a group of " + std::to_string(ranks_)};
  if (seat(rank).taken.exchange(1))
    return Error{Fault::user, 0, "rank " + std::to_string(rank) + " of a group is taken already"};
  const Pages mine{file_.pages.owner, reinterpret_cast<std::byte*>(&seat(rank)),
                   whole(kSeatBytes + static_cast<size_t>(half_floats_) * 8, kSmallPage), false};
  return populate(mine);
}

Written RankMemory::written(int rank, uint32_t number) const {
  const uint64_t word = seat(rank).written[number & 1].load(std::memory_order_relaxed);
  // Others can write there, too
  const uint64_t lines = std::min(word >> 32, static_cast<uint64_t>(half_floats_ / kLineFloats));
  return {static_cast<Written::Part>(word >> 1 & 3), static_cast<int>(word & 1), static_cast<uint32_t>(lines)};
}

void RankMemory::set_written(int rank, uint32_t number, const Written& w) {
  const uint64_t word = uint64_t(w.lines) << 32 | uint64_t(w.part) << 1 | uint64_t(w.half);
  seat(rank).written[number & 1].store(word, std::memory_order_relaxed);
}

void RankMemory::end(const std::vector<int>& gone, Fate fate) {
  for (const int rank : arrived(0).is_over() ? std::vector<int>{} : gone) {  // who goes later goes because of those
    if (rank >= 0 && rank < ranks_) seat(rank).fate.store(static_cast<uint32_t>(fate));
  }
  for (int rank = 0; rank < ranks_; ++rank) arrived(rank).end();
}

std::vector<std::pair<int, RankMemory::Fate>> RankMemory::gone() const {
  std::vector<std::pair<int, Fate>> found;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Fate fate = seat(rank).fate.load() == static_cast<uint32_t>(Fate::late) ? Fate::late : Fate::left;
    if (seat(rank).fate.load()) found.emplace_back(rank, fate);
  }
  return found;
}

std::string RankMemory::missing(double seconds) const {
  std::string left, late;
  for (int rank = 0; rank < ranks_; ++rank) {
    const uint32_t fate = seat(rank).fate.load();
    std::string& names = fate == static_cast<uint32_t>(Fate::left) ? left : late;
    if (fate) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  }
  char text[64];
  std::snprintf(text, sizeof text, "%g", seconds);
  const std::string of = " of " + std::to_string(ranks_);
  if (left.empty() && late.empty()) return "the group of " + std::to_string(ranks_) + " ranks was ended";
  std::string message = left.empty() ? "" : "rank " + left + of + " left the group";
  if (!late.empty())
    message += (message.empty() ? "" : "; ") + ("rank " + late) + of + " did not come within " + text + " s";
  return message;
}

}  // namespace homenode
