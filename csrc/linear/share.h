// Who multiplies what: each thread's share of a product is cut into runs of groups, and threads that are done help
// their neighbours, which share the last-level cache with them and whose weights lie at their own home.
//
// A run is some groups of one piece times one block of tokens, and nothing but these numbers decides what it computes:
// who takes it changes no value.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "host/event_count.h"
#include "host/tree_barrier.h"
#include "linear/linear.h"

namespace homenode {

struct LinearTable;

// Which runs of each thread's share are taken. Serves one product after the other, as long as a barrier stands between
// two of them.
class RunClaims {
 public:
  static constexpr int kCircle = 4;  // threads help each other: more would mostly look into each other's counters
  static constexpr int kNobody = -1;
  using Circle = std::array<int, kCircle>;

  // One path of groups for each thread (see host/tree_barrier.h): those with the same path share a last-level cache,
  // and only they may be neighbours.
  explicit RunClaims(const std::vector<GroupPath>& paths);

  // In whose shares a thread may work: its own first, then those of its neighbours, in another order for each of them;
  // or kNobody.
  const Circle& circle(int thread) const { return circles_[static_cast<size_t>(thread)]; }

  // Every thread, before it takes the first run of a product.
  void begin(int thread) {
    Place& mine = places_[static_cast<size_t>(thread)];
    mine.turn ^= 1;
    // The other counters are of the product before, which is over, and of the next, which begins after a barrier.
    mine.next[mine.turn ^ 1].store(0, std::memory_order_relaxed);
  }
  // The number of a run of `owner`'s share that nobody has taken.
  int64_t take(int thread, int owner) {
    return places_[static_cast<size_t>(owner)].next[places_[static_cast<size_t>(thread)].turn].fetch_add(
        1, std::memory_order_relaxed);
  }

 private:
  struct alignas(kLine) Place {
    std::atomic<int64_t> next[2] = {0, 0};
    int turn = 0;  // of its own thread
  };
  std::unique_ptr<Place[]> places_;
  std::vector<Circle> circles_;
};

struct Run {
  int weight;
  size_t piece;
  int64_t group_begin, group_end, token_begin, token_end;
};

// The runs of one thread's share of the first `weights` weights of a product, to be asked for in ascending order.
class Share {
 public:
  Share(const LinearArgs&, int weights, const LinearTable&, int owner, int threads);
  // False when the share has no such run.
  bool find(int64_t number, Run&);

 private:
  bool enter_piece();

  const LinearArgs& a_;
  int weights_;
  const LinearTable& table_;
  size_t owner_, threads_;
  int weight_ = 0;
  size_t piece_;
  int64_t first_ = 0;  // number of the piece's first run
  int64_t groups_ = 0, groups_at_once_ = 1, block_ = 1, runs_in_block_ = 0, runs_ = 0;
};

// May `thread` multiply what `owner` has to: are all these weights as near to it?
inline bool may_help(const LinearArgs& a, int thread, int owner) {
  for (int i = 0; i < a.count; ++i) {
    if (!a.weights[i]->near(thread, owner)) return false;
  }
  return true;
}

// Calls `work(owner, take)` for this thread and then, with claims, for those of its circle that it `helps(owner)`:
// take() is the number of the next piece of the owner's share, counted from 0; the share ends where `work` finds it to.
template <class Helps, class Work>
void each_share(RunClaims* claims, int thread, Helps&& helps, Work&& work) {
  if (!claims) {
    int64_t number = 0;
    return work(thread, [&] { return number++; });
  }
  claims->begin(thread);
  for (const int owner : claims->circle(thread)) {
    if (owner != RunClaims::kNobody && helps(owner)) work(owner, [=] { return claims->take(thread, owner); });
  }
}

// Calls `work(run)` for runs of this thread's share until all are taken, then for its neighbours'. Without claims it
// does its own share alone.
template <class Work>
void work_through(const LinearArgs& a, int weights, const LinearTable& table, int thread, int threads, Work&& work) {
  const auto helps = [&](int owner) { return may_help(a, thread, owner); };
  each_share(a.claims, thread, helps, [&](int owner, auto take) {
    Run run;
    Share share(a, weights, table, owner, threads);
    while (share.find(take(), run)) work(run);
  });
}

}  // namespace homenode
