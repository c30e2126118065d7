// Ranks and stages as threads: they map the same memory at the same place, so that ThreadSanitizer sees who waits for
// whom.
#include "host/rank_group.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <latch>
#include <thread>

#include "host/rank_bridge.h"

#include "host/shared_ring.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

constexpr double kWaitS = 60;

template <class Work>
void in_threads(int count, Work&& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

struct Call {
  bool gathers;
  int64_t rows, columns, gap;
  std::vector<int64_t> widths;
};

std::vector<Call> random_calls(Random& random, int ranks) {
  std::vector<Call> calls;
  for (int i = random.between(1, 12); i > 0; --i) {
    Call call{random.one_in(3),
              random.between(1, 12),
              random.between(1, random.one_in(4) ? 3000 : 90),
              random.between(0, 9),
              {}};
    for (int r = 0; r < ranks; ++r) call.widths.push_back(random.between(r ? 0 : 1, 70));
    calls.push_back(call);
  }
  return calls;
}

float value(int rank, size_t call, int64_t row, int64_t column) {
  return std::sin(static_cast<float>(rank * 7 + static_cast<int>(call) * 31 + row * 13 + column));
}

int64_t width_of(const Call& call, int rank) {
  return call.gathers ? call.widths[static_cast<size_t>(rank)] : call.columns;
}

Exact<float> values_of(const Call& call, int rank, size_t number) {
  const int64_t width = width_of(call, rank);
  Exact<float> x(static_cast<size_t>(call.rows * (width + call.gap)));
  for (int64_t r = 0; r < call.rows; ++r) {
    for (int64_t c = 0; c < width; ++c) x[static_cast<size_t>(r * (width + call.gap) + c)] = value(rank, number, r, c);
  }
  return x;
}

void require_result(const Call& call, const FloatRows& out, int ranks, size_t number) {
  for (int64_t r = 0; r < call.rows; ++r) {
    for (int rank = 0, column = 0; rank < (call.gathers ? ranks : 1); ++rank) {
      for (int64_t c = 0; c < width_of(call, rank); ++c, ++column) {
        float wanted = value(rank, number, r, c);
        for (int other = 1; !call.gathers && other < ranks; ++other) wanted += value(other, number, r, c);
        require(out.data[r * out.stride + column] == wanted,
                "a sum is that of all ranks in their order, a gather their columns");
      }
    }
  }
}

// Every rank is a pool; a barrier stands before and after each call, as in a program.
void exchange(RankGroup& group, ThreadPool& pool, const std::vector<Call>& calls) {
  const auto ranks = group.size();
  std::vector<Exact<float>> xs, outs;
  for (size_t i = 0; i < calls.size(); ++i) {
    int64_t total = 0;
    for (const int64_t width : calls[i].widths) total += width;
    xs.push_back(values_of(calls[i], group.rank(), i));
    outs.emplace_back(static_cast<size_t>(calls[i].rows * (calls[i].gathers ? total : calls[i].columns)));
  }
  const auto turn = group.turn();
  pool.compute([&](int thread) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const Call& call = calls[i];
      const int64_t width = width_of(call, group.rank()), columns = static_cast<int64_t>(outs[i].size()) / call.rows;
      const FloatRows x{xs[i].get(), width + call.gap, call.rows, width},
          out{outs[i].get(), columns, call.rows, columns};
      Caller caller{thread, pool.size()};
      const bool done = call.gathers ? group.gather(x, out, call.widths, caller) : group.sum(x, out, caller);
      require(done, "a call of all ranks succeeds");
      pool.slept(thread, caller.slept_ns);
      pool.barrier(thread);
      if (thread == pool.size() - 1) require_result(call, out, ranks, i);
    }
  });
}

void check_exchanges(Random& random) {
  const int ranks = random.between(1, 4), spin_us = random.of<int>({0, 20});
  const auto memory = taken(RankMemory::create(ranks, random.of<int64_t>({1024, 4096, 1 << 20})));
  const std::vector<Call> calls = random_calls(random, ranks);
  std::vector<int> threads;
  for (int r = 0; r < ranks; ++r) threads.push_back(random.between(1, 3));
  in_threads(ranks, [&](int rank) {
    const auto group = taken(RankGroup::join(memory, rank, kWaitS, spin_us));
    exchange(*group, *pool_of(threads[static_cast<size_t>(rank)]), calls);
    const FloatRows nothing{nullptr, 0, 0, 1};
    Caller caller;
    require(group->sum(nothing, nothing, caller), "a sum of no rows");
    float last = 1;  // nobody leaves before all are done
    require(group->sum({&last, 1, 1, 1}, {&last, 1, 1, 1}, caller) && last == static_cast<float>(ranks),
            "a sum of ones");
  });
}

// One rank leaves in the middle, or somebody ends the group: nobody waits for long, every thread of every pool comes
// out, and finds it failed.
void check_leaving(Random& random) {
  const int ranks = random.between(2, 4), leaves = random.between(0, ranks - 1), after = random.between(0, 3);
  const bool outside = random.one_in(2);
  const auto memory = taken(RankMemory::create(ranks, 4096));
  in_threads(ranks, [&](int rank) {
    const auto group = taken(RankGroup::join(memory, rank, kWaitS, rank % 2 ? 30 : 0));
    const auto pool = pool_of(1 + rank % 3);
    std::vector<float> x(100), out(100);
    pool->run([&](int thread) {
      for (int i = 0; i < 50; ++i) {
        if (rank == leaves && i == after) {
          if (thread == 0) outside ? memory->end({leaves}, RankMemory::Fate::left) : group->leave();
          break;
        }
        Caller caller{thread, pool->size(), i};
        group->sum({x.data(), 100, 1, 100}, {out.data(), 100, 1, 100}, caller);
        pool->barrier(thread);
        if (group->failed(i)) break;
      }
    });
    require(rank == leaves || group->failed(), "who waits for a rank that has left is told so");
    require(group->error() && group->error()->message.find("rank " + std::to_string(leaves)) == 0, "it is named");
  });
}

// Hosts are memories of one process, each with some of the ranks; the others come to it through a socket pair each.
struct Hosts {
  std::vector<size_t> of;  // each rank
  std::vector<std::shared_ptr<RankMemory>> memories;
  std::vector<std::unique_ptr<RankReceiver>> receivers;
  std::vector<std::unique_ptr<RankSender>> senders;
  std::vector<int> streams;  // the senders', as long as they are there

  Hosts(Random& random, int ranks, int64_t bytes) {
    const int count = random.between(2, ranks);
    for (int h = 0; h < count; ++h) memories.push_back(taken(RankMemory::create(ranks, bytes)));
    for (int r = 0; r < ranks; ++r) of.push_back(static_cast<size_t>(r < count ? r : random.between(0, count - 1)));
    for (int r = 0; r < ranks; ++r) follow(r);
  }
  const std::shared_ptr<RankMemory>& memory_of(int rank) const { return memories[of[static_cast<size_t>(rank)]]; }

 private:
  void follow(int rank) {
    std::vector<RankSender::Host> others;
    for (size_t h = 0; h < memories.size(); ++h) {
      if (h == of[static_cast<size_t>(rank)]) continue;
      int ends[2];
      require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "a socket pair");
      receivers.push_back(taken(RankReceiver::start(memories[h], rank, Stream(ends[1]), kWaitS)));
      streams.push_back(ends[0]);
      others.push_back({Stream(ends[0]), {}});
      for (size_t r = 0; r < of.size(); ++r) {
        if (of[r] == h) others.back().ranks.push_back(static_cast<int>(r));
      }
    }
    senders.push_back(taken(RankSender::start(memory_of(rank), rank, std::move(others), kWaitS)));
  }
};

void check_hosts(Random& random) {
  const int ranks = random.between(2, 5), spin_us = random.of<int>({0, 20});
  const Hosts hosts(random, ranks, random.of<int64_t>({1024, 4096, 1 << 20}));
  const std::vector<Call> calls = random_calls(random, ranks);
  std::vector<int> threads;
  for (int r = 0; r < ranks; ++r) threads.push_back(random.between(1, 2));
  std::latch done(ranks);
  in_threads(ranks, [&](int rank) {
    const auto group = taken(RankGroup::join(hosts.memory_of(rank), rank, kWaitS, spin_us));
    exchange(*group, *pool_of(threads[static_cast<size_t>(rank)]), calls);
    done.arrive_and_wait();  // a host may be behind another, and a farewell overtake what it waits for
  });
}

// A rank leaves, or the connections of one break: all of all hosts are told.
void check_lost_hosts(Random& random) {
  const int ranks = random.between(2, 4), leaves = random.between(0, ranks - 1);
  const bool breaks = random.one_in(2);
  const Hosts hosts(random, ranks, 4096);
  in_threads(ranks, [&](int rank) {
    const auto group = taken(RankGroup::join(hosts.memory_of(rank), rank, kWaitS, 0));
    std::vector<float> x(100);
    for (int i = 0; i < 50; ++i) {
      if (rank == leaves && i == 3) {
        if (!breaks) return group->leave();
        for (const int fd : hosts.streams) shutdown(fd, SHUT_RDWR);
      }
      Caller caller{0, 1, i};
      if (!group->sum({x.data(), 100, 1, 100}, {x.data(), 100, 1, 100}, caller)) break;
    }
    require(group->error().has_value(), "who waits for a rank of another host that has left is told so");
    require(breaks || group->error()->message.find("rank " + std::to_string(leaves)) == 0, "it is named");
  });
}

// Whatever stands in the memory about what a rank wrote, no more than its own memory is sent.
void check_garbled_hosts(Random& random) {
  const auto memory = taken(RankMemory::create(3, 4096));
  int ends[2];
  require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "a socket pair");
  std::vector<RankSender::Host> others;
  others.push_back({Stream(ends[0]), {1, 2}});
  const auto sender = taken(RankSender::start(memory, 0, std::move(others), kWaitS));
  const auto part = static_cast<Written::Part>(random.between(0, 3));
  memory->set_written(0, 1, {part, random.between(0, 1), static_cast<uint32_t>(random.bits())});
  memory->arrived(0).advance();
  memory->end({1}, RankMemory::Fate::late);
  size_t came = 0;
  char bytes[4096];
  for (ssize_t some; (some = read(ends[1], bytes, sizeof bytes)) > 0;) came += static_cast<size_t>(some);
  require(came <= static_cast<size_t>(memory->half_floats()) * sizeof(float) + 5 * 24,
          "a half at most, and a few words about it");
  close(ends[1]);
}

// What is sent by somebody who does not keep to it ends the group, and is written nowhere else than in the rank's
// memory.
void check_wild_hosts(Random& random) {
  const auto memory = taken(RankMemory::create(3, 4096));
  int ends[2];
  require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "a socket pair");
  {
    const auto receiver = taken(RankReceiver::start(memory, 1, Stream(ends[1]), 1.0));
    require(!RankReceiver::start(memory, 1, Stream(-1), 1.0), "a seat is taken once");
    std::vector<uint32_t> words(static_cast<size_t>(random.between(1, 600)));
    for (uint32_t& word : words)
      word = random.one_in(3) ? static_cast<uint32_t>(random.bits()) : static_cast<uint32_t>(random.between(0, 3));
    (void)!write(ends[0], words.data(), words.size() * sizeof(uint32_t));
    shutdown(ends[0], SHUT_RDWR);
    require(memory->arrived(0).wait_for(1, 0, now_ns() + int64_t(kWaitS * 1e9)) == Arrival::over, "the group is over");
  }
  for (const int rank : {0, 2}) {
    for (int half = 0; half < 2; ++half) {
      for (int64_t i = 0; i < memory->half_floats(); ++i)
        require(memory->half(rank, half)[i] == 0, "nothing is written for another rank");
    }
  }
  close(ends[0]);
}

void check_ring(Random& random) {
  const int readers = random.between(1, 3), columns = random.between(1, 50), steps = random.between(1, 40),
            ends_after = random.between(0, 2) ? steps : steps / 2;
  const auto memory = taken(RingMemory::create({random.between(1, 4), readers, 9, columns}));
  const int spin_us = random.of<int>({0, 20});
  const auto rows_in_step = [](int step) { return 1 + step * 5 % 9; };
  std::vector<std::unique_ptr<RingReader>> ends;
  for (int r = 0; r < readers; ++r) ends.push_back(taken(RingReader::join(memory, r, spin_us)));
  const auto writer = taken(RingWriter::join(memory, spin_us));
  in_threads(readers + 1, [&](int i) {
    for (int step = 0; step < steps; ++step) {
      const int rows = rows_in_step(step);
      if (i == 0) {
        if (step == ends_after) return writer->leave();
        const Exact<float> values(static_cast<size_t>(rows * (columns + 3)));
        for (size_t v = 0; v < values.size(); ++v) values[v] = static_cast<float>(step * 1000) + static_cast<float>(v);
        require(!writer->write(static_cast<uint64_t>(step), values.get(), columns + 3, rows, columns, kWaitS),
                "rows that fit are written");
        continue;
      }
      const auto found = ends[static_cast<size_t>(i - 1)]->read(static_cast<uint64_t>(step), columns, kWaitS);
      require(static_cast<bool>(found) == (step < ends_after), "what was written before the end is read");
      if (!found) return;
      auto got = found;
      require(got.value().rows == rows, "as many rows as were written");
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < columns; ++c) {
          require(got.value().data[r * columns + c] ==
                      static_cast<float>(step * 1000) + static_cast<float>(r * (columns + 3) + c),
                  "the rows that were written");
        }
      }
    }
  });
}

}  // namespace

void check_ranks(Random& random) {
  check_exchanges(random);
  check_leaving(random);
  check_hosts(random);
  check_lost_hosts(random);
  check_wild_hosts(random);
  check_garbled_hosts(random);
  check_ring(random);
}

}  // namespace homenode::checks
