// What the checks are made of: random choices that a seed repeats, and memory that ends where it says.
//
// The checks run kernels of every level over random shapes in builds with sanitizers. What they compute is held against
// NumPy elsewhere; here every buffer is a piece of heap of exactly the size a kernel may use, so that a byte too far is
// found, and results are compared bit by bit where they have to be the same: alone and in a batch, on one thread and on
// several.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/isa.h"
#include "host/thread_pool.h"

namespace homenode::checks {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t bits() {  // xorshift64*
    state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }
  int between(int low, int high) { return low + static_cast<int>(bits() % static_cast<uint64_t>(high - low + 1)); }
  bool one_in(int n) { return between(1, n) == 1; }
  // -1 .. 1
  float real() { return static_cast<float>(static_cast<int64_t>(bits()) >> 40) / static_cast<float>(1 << 23); }

  template <class T>
  const T& of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(between(0, static_cast<int>(choices.size()) - 1))];
  }

 private:
  uint64_t state_;
};

// `count` elements on a boundary of 64 bytes. Room for none is room: its address may be taken, not used.
template <class T>
class Exact {
 public:
  explicit Exact(size_t count) : count_(count), data_(static_cast<T*>(allocate(count * sizeof(T)))) {}
  T* get() const { return data_.get(); }
  T& operator[](size_t i) const { return data_.get()[i]; }
  size_t size() const { return count_; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  static void* allocate(size_t bytes) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, bytes)) std::abort();
    std::memset(p, 0xff, bytes);  // a NaN, whatever it is read as, until it is written
    return p;
  }
  size_t count_;
  std::unique_ptr<T, Free> data_;
};

inline Exact<float> reals(Random& random, size_t count, float scale = 1) {
  Exact<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = random.real() * scale;
  return values;
}

inline std::vector<Level> levels() {
  std::vector<Level> found;
  for (const Level level : kLevels) {
    if (level_available(level)) found.push_back(level);
  }
  return found;
}

inline std::shared_ptr<ThreadPool> pool_of(int threads) {
  auto pool = ThreadPool::create(std::vector<int>(static_cast<size_t>(threads), -1), 5, false);
  if (!pool) std::abort();
  return std::move(pool.value());
}

inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what.c_str());
  std::exit(1);
}

template <class T>
T taken(Result<T> result) {
  require(static_cast<bool>(result), result ? "" : result.error().message);
  return std::move(result.value());
}

void check_linear(Random&);  // products and embeddings, of every format
void check_attention(Random&);  // norms and rotations where heads are loaded, keys and values written in parts
void check_chosen(Random&);  // indexers' scores, the highest of them, and attention over chosen tokens
void check_coded(Random&);  // attention over codes of four bits, which the core has none of
void check_copy(Random&);  // KV memory from one layout into another, and layouts that are made up
void check_delta(Random&);  // short convolutions, the gated delta rule and the recurrence of Mamba 2
void check_elements(Random&);  // the kernels of kernels.h, one by one
void check_packed(Random&);  // weights read, packed, written and read again
void check_program(Random&);  // a layer of a model, its KV memory included
void check_ranks(Random&);  // sums, gathers and rings of several processes, here threads
void check_sampling(Random&);
void check_shared_weights(Random&);  // weights in memory that others map, too
void check_stream(Random&);  // pages of KV memory through a socket, read and written in shares of any size
void check_thread_pool(Random&);
void check_lane(Random&);
void check_levels(Random&);  // every kernel at every level against the scalar level
// What check_levels has seen: lines of "kernel <tab> level <tab> native or emulated <tab> largest difference".
void print_levels();

}  // namespace homenode::checks
