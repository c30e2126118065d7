#include "host/rank_group.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace homenode {
namespace {

constexpr double kLongestWaitS = 1e9;

int64_t lines_of(int64_t floats) { return (floats + kLineFloats - 1) / kLineFloats; }

void copy(float* to, const float* from, int64_t count) {
  std::memmove(to, from, static_cast<size_t>(count) * sizeof(float));
}

// parts[0] + parts[1] + ..., in this order. `out` may be one of them.
void add_in_order(float* out, const float* const* parts, int count, int64_t n) {
  constexpr int64_t kBlock = 512;
  alignas(64) float sums[kBlock];
  if (count == 1) return copy(out, parts[0], n);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t m = std::min(kBlock, n - begin);
    const float *first = parts[0] + begin, *second = parts[1] + begin;
    for (int64_t i = 0; i < m; ++i) sums[i] = first[i] + second[i];
    for (int p = 2; p < count; ++p) {
      const float* next = parts[p] + begin;
      for (int64_t i = 0; i < m; ++i) sums[i] += next[i];
    }
    copy(out + begin, sums, m);
  }
}

enum class Kind : uint64_t { sum = 1, gather = 2 };
uint64_t call_of(Kind kind, int64_t rows, int64_t columns) {
  return static_cast<uint64_t>(kind) << 62 | (static_cast<uint64_t>(rows) & 0x3fffffff) << 32 |
         (static_cast<uint64_t>(columns) & 0xffffffff);
}
std::string name_of(uint64_t call) {
  const char* kind = call >> 62 == 1 ? "sum" : call >> 62 == 2 ? "gather" : "call";
  return std::string(kind) + " of " + std::to_string(call >> 32 & 0x3fffffff) + " x " +
         std::to_string(call & 0xffffffff);
}

Written written(Written::Part part, int half, int64_t lines) { return {part, half, static_cast<uint32_t>(lines)}; }

// What a second wait costs, in bytes that a rank reads: with more to read than that it is the lesser evil.
constexpr int64_t kWaitBytes = 64 << 10;

}  // namespace

// What fits into one half of a region: rows, or some columns of one. Its rows lie in the region without a gap but to
// the next line.
struct RankGroup::Tile {
  int64_t row, rows, column, columns;
  int64_t stride() const { return lines_of(columns) * kLineFloats; }
  int64_t lines() const { return rows * lines_of(columns); }

  // Calls work(tile) for all of [rows, columns] until one returns false.
  template <class F>
  static bool each(int64_t rows, int64_t columns, int64_t half_floats, F&& work) {
    const int64_t rows_at_once = std::max<int64_t>(1, half_floats / (lines_of(columns) * kLineFloats)),
                  columns_at_once = std::min(columns, half_floats);
    for (int64_t row = 0; row < rows; row += rows_at_once) {
      for (int64_t column = 0; column < columns; column += columns_at_once) {
        if (!work(Tile{row, std::min(rows_at_once, rows - row), column, std::min(columns_at_once, columns - column)}))
          return false;
      }
    }
    return true;
  }

  // Calls work(row, column, count), counted within the tile, for the pieces of rows that lines begin .. end - 1 are.
  template <class F>
  void pieces(int64_t begin, int64_t end, F&& work) const {
    const int64_t in_row = lines_of(columns);
    for (int64_t line = begin; line < end;) {
      const int64_t first = line % in_row, count = std::min(in_row - first, end - line);
      work(line / in_row, first * kLineFloats, std::min(count * kLineFloats, columns - first * kLineFloats));
      line += count;
    }
  }

  float* in(const FloatRows& x, int64_t r, int64_t c) const { return x.data + (row + r) * x.stride + column + c; }
};

Result<std::unique_ptr<RankGroup>> RankGroup::join(std::shared_ptr<RankMemory> memory, int rank, double timeout_s,
                                                   int spin_us) {
  if (!(timeout_s > 0) || timeout_s > kLongestWaitS)
    return Error{Fault::user, 0, "a group whose ranks wait " + std::to_string(timeout_s) + " s; wanted more than 0"};
  if (auto error = memory->take_seat(rank)) return std::move(*error);
  return std::unique_ptr<RankGroup>(new RankGroup(std::move(memory), rank, timeout_s, spin_us));
}

RankGroup::RankGroup(std::shared_ptr<RankMemory> memory, int rank, double timeout_s, int spin_us)
    : memory_(std::move(memory)),
      rank_(rank),
      timeout_ns_(static_cast<int64_t>(timeout_s * 1e9)),
      spin_ns_(std::max(spin_us, 0) * int64_t(1000)) {}

RankGroup::~RankGroup() { leave(); }

void RankGroup::leave() { memory_->end({rank_}, RankMemory::Fate::left); }

bool RankGroup::fail(const Caller& caller, const std::vector<int>& gone) {
  memory_->end(gone, RankMemory::Fate::late);
  for (int before = failed_at_.load();
       caller.number < before && !failed_at_.compare_exchange_weak(before, caller.number);) {
  }
  return false;
}

std::optional<Error> RankGroup::error() const {
  if (!failed() && !memory_->arrived(rank_).is_over()) return {};
  if (const int other = other_caller_.load(); other >= 0) {
    return Error{Fault::host, ECONNABORTED,
                 "rank " + std::to_string(other) + " makes other calls than rank " + std::to_string(rank_) + ": " +
                     name_of(memory_->call(other, number_.load())) + ", here " +
                     name_of(memory_->call(rank_, number_.load()))};
  }
  return Error{Fault::host, ECONNABORTED, memory_->missing(static_cast<double>(timeout_ns_) * 1e-9)};
}

// All threads of all ranks: what they wrote before is read by all after.
bool RankGroup::wait_for_ranks(uint64_t call, const Written& written, Caller& caller) {
  const uint32_t number = number_.load(std::memory_order_relaxed) + 1;  // stays until this thread is there, too
  if (arrived_threads_.fetch_add(1, std::memory_order_acq_rel) + 1 == caller.threads) {
    arrived_threads_.store(0, std::memory_order_relaxed);
    number_.store(number, std::memory_order_relaxed);
    // Nothing of the tile at hand is to come
    if (written.part != Written::Part::for_shares) tiles_.fetch_add(1, std::memory_order_relaxed);
    memory_->call(rank_, number).store(call, std::memory_order_relaxed);
    memory_->set_written(rank_, number, written);
    memory_->arrived(rank_).advance();
  }
  return wait_for_all(number, call, caller);
}

bool RankGroup::wait_for_all(uint32_t number, uint64_t call, Caller& caller) {
  const int64_t until = now_ns() + timeout_ns_;
  for (int i = 0; i < size(); ++i) {
    const int other = (rank_ + i) % size();
    switch (memory_->arrived(other).wait_for(number, spin_ns_, until, &caller.slept_ns)) {
      case Arrival::reached: break;
      case Arrival::over: return fail(caller);
      case Arrival::late: {
        std::vector<int> gone;
        for (int r = 0; r < size(); ++r) {
          if (!memory_->arrived(r).has_reached(number)) gone.push_back(r);
        }
        return fail(caller, gone);
      }
    }
    if (memory_->call(other, number).load(std::memory_order_relaxed) != call) {
      other_caller_.store(other);
      return fail(caller);
    }
  }
  return true;
}

float* RankGroup::place(int rank, int half, const Tile& tile, int64_t row, int64_t column) const {
  return memory_->half(rank, half) + row * tile.stride() + column;
}

// The sums of some lines, to `out`.
void RankGroup::add_lines(const FloatRows& out, const Tile& tile, int half, int64_t begin, int64_t end) const {
  std::vector<const float*> parts(static_cast<size_t>(size()));
  tile.pieces(begin, end, [&](int64_t row, int64_t column, int64_t count) {
    for (int r = 0; r < size(); ++r) parts[static_cast<size_t>(r)] = place(r, half, tile, row, column);
    add_in_order(tile.in(out, row, column), parts.data(), size(), count);
  });
}

bool RankGroup::sum_at_once(const FloatRows& x, const FloatRows& out, const Tile& tile, Caller& caller) {
  const int now = half();
  const int64_t begin = share(tile.lines(), caller.thread, caller.threads),
                end = share(tile.lines(), caller.thread + 1, caller.threads);
  tile.pieces(begin, end, [&](int64_t row, int64_t column, int64_t count) {
    copy(place(rank_, now, tile, row, column), tile.in(x, row, column), count);
  });
  if (!wait_for_ranks(call_of(Kind::sum, x.rows, x.columns), written(Written::Part::all, now, tile.lines()), caller))
    return false;
  add_lines(out, tile, now, begin, end);
  return true;
}

bool RankGroup::sum_by_shares(const FloatRows& x, const FloatRows& out, const Tile& tile, Caller& caller) {
  const int now = half();
  const uint64_t call = call_of(Kind::sum, x.rows, x.columns);
  const auto mine = [&](int64_t begin, int64_t end, auto&& work) {
    tile.pieces(begin + share(end - begin, caller.thread, caller.threads),
                begin + share(end - begin, caller.thread + 1, caller.threads), work);
  };
  mine(0, tile.lines(), [&](int64_t row, int64_t column, int64_t count) {
    copy(place(rank_, now, tile, row, column), tile.in(x, row, column), count);
  });
  if (!wait_for_ranks(call, written(Written::Part::for_shares, now, tile.lines()), caller)) return false;
  const auto share_of = [&](int rank) { return share(tile.lines(), rank, size()); };
  // Nobody else reads this rank's own values of its share: the sums may lie there.
  const FloatRows here{place(rank_, now, tile, 0, 0) - tile.row * tile.stride() - tile.column, tile.stride(), 0, 0};
  const int64_t lines = share_of(rank_ + 1) - share_of(rank_);
  add_lines(here, tile, now, share_of(rank_) + share(lines, caller.thread, caller.threads),
            share_of(rank_) + share(lines, caller.thread + 1, caller.threads));
  if (!wait_for_ranks(call, written(Written::Part::own_share, now, tile.lines()), caller)) return false;
  for (int i = 0; i < size(); ++i) {
    const int r = (rank_ + i) % size();
    mine(share_of(r), share_of(r + 1), [&](int64_t row, int64_t column, int64_t count) {
      copy(tile.in(out, row, column), place(r, now, tile, row, column), count);
    });
  }
  return true;
}

bool RankGroup::sum(const FloatRows& x, const FloatRows& out, Caller& caller) {
  if (memory_->arrived(rank_).is_over()) return fail(caller);
  return Tile::each(x.rows, x.columns, memory_->half_floats(), [&](const Tile& tile) {
    const int64_t bytes = tile.lines() * kLineFloats * static_cast<int64_t>(sizeof(float));
    return (size() - 2) * bytes > kWaitBytes ? sum_by_shares(x, out, tile, caller) : sum_at_once(x, out, tile, caller);
  });
}

// `tile` is of the widest rank's columns: of the others as much as there is.
bool RankGroup::gather_piece(const FloatRows& x, const FloatRows& out, std::span<const int64_t> widths,
                             const Tile& tile, Caller& caller) {
  const int now = half();
  const auto part_of = [&](int rank) {
    return Tile{tile.row, tile.rows, tile.column,
                std::clamp<int64_t>(widths[static_cast<size_t>(rank)] - tile.column, 0, tile.columns)};
  };
  const auto each_line = [&](int rank, auto&& work) {
    const Tile part = part_of(rank);
    if (!part.columns) return;
    part.pieces(share(part.lines(), caller.thread, caller.threads),
                share(part.lines(), caller.thread + 1, caller.threads),
                [&](int64_t row, int64_t column, int64_t count) {
                  work(place(rank, now, part, row, column), part, row, column, count);
                });
  };
  each_line(rank_, [&](float* to, const Tile& part, int64_t row, int64_t column, int64_t count) {
    copy(to, part.in(x, row, column), count);
  });
  if (!wait_for_ranks(call_of(Kind::gather, out.rows, out.columns),
                      written(Written::Part::all, now, part_of(rank_).lines()), caller))
    return false;
  FloatRows left = out;
  for (int r = 0; r < size(); ++r) {
    each_line(r, [&](const float* from, const Tile& part, int64_t row, int64_t column, int64_t count) {
      copy(part.in(left, row, column), from, count);
    });
    left.data += widths[static_cast<size_t>(r)];
  }
  return true;
}

bool RankGroup::gather(const FloatRows& x, const FloatRows& out, std::span<const int64_t> widths, Caller& caller) {
  if (memory_->arrived(rank_).is_over()) return fail(caller);
  const int64_t widest = *std::max_element(widths.begin(), widths.end());
  return Tile::each(x.rows, widest, memory_->half_floats(),
                    [&](const Tile& tile) { return gather_piece(x, out, widths, tile, caller); });
}

}  // namespace homenode
