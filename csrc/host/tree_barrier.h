// Where the threads of a pool wait for each other: a tree of counters along the threads' paths.
//
// A path names the ever smaller groups that a thread belongs to, such as (NUMA node, last-level cache). Threads with
// the same path arrive at a node of their own, so that its counter stays in the cache they share; the last to arrive
// goes up and arrives for its group at the node above. Who arrives last at the top releases everybody, from the top
// down. Groups of one, and groups that are all there is of the group above, have no node.
//
// A node has a memory page of its own, first written by one of its threads, and a cache line for each thing in it that
// is written.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "host/event_count.h"
#include "host/memory.h"

namespace homenode {

using GroupPath = std::vector<int>;

class TreeBarrier {
 public:
  static constexpr size_t kMaxDepth = 8;  // of a path

  // One path for each thread, in the order of threads; they may differ in length. Touches no node.
  static Result<std::unique_ptr<TreeBarrier>> create(const std::vector<GroupPath>& paths);

  // Makes the nodes whose owner this thread is. All threads must have called it before any of them waits.
  void settle(int thread);

  // Returns when all threads have called it as often as this one; the result is the nanoseconds slept.
  int64_t wait(int thread, int64_t spin_ns);

  // A call to all threads: call() releases those in wait_for_call with `seen` equal to the calls made before it.
  void call();
  int64_t wait_for_call(int thread, uint32_t seen, int64_t spin_ns);

  int nodes() const { return static_cast<int>(plans_.size()); }

 private:
  struct Node;
  struct Plan {
    int parent;           // index, or -1 at the top
    int owner;            // the thread that makes the node
    int arrivals = 0;     // threads and nodes below that arrive here
    bool threads = false; // some threads arrive here for themselves, not for a group below
  };

  TreeBarrier() = default;
  void plan(const std::vector<GroupPath>& paths, const std::vector<int>& threads, size_t depth, int parent);
  Node* node(int index) const;
  int64_t wait_at(Node& at, int64_t spin_ns);

  std::vector<Plan> plans_;      // parents before their children
  std::vector<int> node_of_;     // where each thread arrives
  std::vector<Node*> nodes_of_;  // nodes_of_[i] is the address of node node_of_[i]
  Pages pages_;
};

}  // namespace homenode
