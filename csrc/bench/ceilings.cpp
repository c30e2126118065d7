#include "bench/ceilings.h"

#include <sched.h>

#include <atomic>
#include <cstring>
#include <ctime>

#include "bench/ceiling_table.h"
#include "host/thread_pool.h"

namespace homenode {
namespace {

constexpr size_t kMostBytes = size_t(1) << 40;
constexpr int64_t kMostRounds = int64_t(1) << 30;
static_assert(kHugePage % kReadStep == 0);

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

Error user_error(std::string message) { return Error{Fault::user, 0, std::move(message)}; }

const CeilingTable& table_of(Level level) {
  switch (level) {
#ifdef HOMENODE_HAVE_AVX2
    case Level::avx2: return ceiling_table_avx2();
#endif
#ifdef HOMENODE_HAVE_AVX2VNNI
    case Level::avx2vnni: return ceiling_table_avx2vnni();
#endif
#ifdef HOMENODE_HAVE_AVX512
    case Level::avx512: return ceiling_table_avx512();
#endif
#ifdef HOMENODE_HAVE_AVX512BF16
    case Level::avx512bf16: return ceiling_table_avx512bf16();
#endif
#ifdef HOMENODE_HAVE_AMX
    case Level::amx: return ceiling_table_amx();
#endif
#ifdef HOMENODE_HAVE_NEON
    case Level::neon: return ceiling_table_neon();
#endif
#ifdef HOMENODE_HAVE_DOTPROD
    case Level::dotprod: return ceiling_table_dotprod();
#endif
#ifdef HOMENODE_HAVE_I8MM
    case Level::i8mm: return ceiling_table_i8mm();
#endif
    default: return ceiling_table_scalar();
  }
}

std::string unavailable(Level level) {
  return std::string("instruction set level ") + level_name(level) + " cannot run here: it needs " + level_lack(level);
}
std::string bad_rounds(int64_t rounds) { return std::to_string(rounds) + " rounds; wanted 1 to 2^30"; }

std::atomic<uint64_t> everything_read{0};  // keeps the loops from being left out

// Two words that never share a cache line, nor a pair of them, which x86 fetches together.
struct Exchange {
  alignas(128) std::atomic<int> asked{-1};
  alignas(128) std::atomic<int> answered{-1};
};

// Waits without a pause instruction, which would take longer than an answer; lets others run when the answer needs this
// very CPU.
void await(const std::atomic<int>& word, int value) {
  for (int spins = 0; word.load(std::memory_order_acquire) != value; ++spins) {
    if (spins == 1 << 15) {
      sched_yield();
      spins = 0;
    }
  }
}

}  // namespace

Result<std::unique_ptr<ReadBuffer>> ReadBuffer::create(std::shared_ptr<ThreadPool> pool, size_t bytes_per_thread) {
  const auto threads = size_t(pool->size());
  if (bytes_per_thread < 1 || bytes_per_thread > kMostBytes / threads) {
    return user_error("a buffer of " + std::to_string(bytes_per_thread) +
                      " bytes a thread; wanted 1 to 2^40 bytes in all");
  }
  const size_t slice = (bytes_per_thread + kHugePage - 1) / kHugePage * kHugePage;
  auto pages = allocate_pages(slice * threads);
  if (!pages) return pages.error();
  std::unique_ptr<ReadBuffer> buffer(new ReadBuffer);
  buffer->pages_ = pages.value();
  buffer->slice_ = slice;
  buffer->threads_ = pool->size();
  std::byte* data = buffer->pages_.data;
  // Not zeros: the kernel may keep one page of zeros for all.
  pool->run([&](int thread) { std::memset(data + size_t(thread) * slice, thread + 1, slice); });
  buffer->pool_ = std::move(pool);
  return buffer;
}

Result<double> ReadBuffer::read(Level level, bool eight_streams, int part, int parts) const {
  if (!level_available(level)) return user_error(unavailable(level));
  const size_t pages = slice_ / kHugePage;
  if (parts < 1 || size_t(parts) > pages || part < 0 || part >= parts) {
    return user_error("part " + std::to_string(part) + " of " + std::to_string(parts) + " of a slice of " +
                      std::to_string(pages) + " huge pages");
  }
  const size_t begin_at = pages * size_t(part) / size_t(parts) * kHugePage,
               end_at = pages * size_t(part + 1) / size_t(parts) * kHugePage;
  const CeilingTable& table = table_of(level);
  const ReadLoop loop = eight_streams ? table.eight_streams : table.one_stream;
  const auto* data = reinterpret_cast<const uint8_t*>(pages_.data);
  double begin = 0, end = 0;
  pool_->run([&](int thread) {
    pool_->barrier(thread);
    if (thread == 0) begin = now();
    everything_read.fetch_xor(loop(data + size_t(thread) * slice_ + begin_at, end_at - begin_at),
                              std::memory_order_relaxed);
    pool_->barrier(thread);
    if (thread == 0) end = now();
  });
  return end - begin;
}

Result<MultiplyBurst> multiply_burst(ThreadPool& pool, Level level, Multiply kind, int64_t rounds) {
  if (!level_available(level)) return user_error(unavailable(level));
  if (rounds < 1 || rounds > kMostRounds) return user_error(bad_rounds(rounds));
  const CeilingTable& table = table_of(level);
  const MultiplyLoop* const loops[] = {&table.int8, &table.bf16, &table.f32, &table.int6};  // in the order of Multiply
  const MultiplyLoop& loop = *loops[int(kind)];
  MultiplyBurst burst{rounds * loop.operations, std::vector<double>(size_t(pool.size()))};
  pool.run([&](int thread) {
    pool.barrier(thread);
    const double begin = now();
    loop.run(rounds);
    burst.seconds[size_t(thread)] = now() - begin;
  });
  return burst;
}

Result<double> round_trip_ns(ThreadPool& pool, int other, int rounds) {
  if (other < 1 || other >= pool.size())
    return user_error("thread " + std::to_string(other) + " of a thread pool of " + std::to_string(pool.size()));
  if (rounds < 1 || rounds > kMostRounds) return user_error(bad_rounds(rounds));
  Exchange exchange;
  double seconds = 0;
  pool.run([&](int thread) {
    if (thread == 0) {
      double begin = 0;
      for (int i = 0; i <= rounds; ++i) {  // round 0 waits for the other to arrive and is not counted
        if (i == 1) begin = now();
        exchange.asked.store(i, std::memory_order_release);
        await(exchange.answered, i);
      }
      seconds = now() - begin;
    } else if (thread == other) {
      for (int i = 0; i <= rounds; ++i) {
        await(exchange.asked, i);
        exchange.answered.store(i, std::memory_order_release);
      }
    }
  });
  return seconds / rounds * 1e9;
}

}  // namespace homenode
