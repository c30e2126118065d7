// Where the members of a team wait for each other: a tree along their paths.
//
// A path names the ever smaller groups a member belongs to, say (NUMA node, last-level cache). Members with the same path meet at a node of
// their own, so that their counters stay in the cache they share; the last to arrive goes up and meets the last of the other groups. Who gets
// to the top lets everybody go, from the top down. Groups of one, and groups that are all there is of the group above, have no node.
//
// A node has a memory page of its own, first written by one of its members, and a cache line for each thing in it that is written.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "host/gate.h"
#include "host/memory.h"

namespace homenode {

using GroupPath = std::vector<int>;

class TeamTree {
 public:
  static constexpr size_t kMaxDepth = 8;  // of a path

  // One path for each member, in the order of members; they may differ in length. Touches no node.
  static Result<std::unique_ptr<TeamTree>> create(const std::vector<GroupPath>& paths);

  // Makes the nodes this member is the first of. Every member does so, and all have before anybody waits.
  void settle(int member);

  // Waits for all members to meet; returns the nanoseconds slept.
  int64_t meet(int member, int64_t spin_ns);

  // The same, to be called in one go: a caller wakes all members that wait for call number `seen` + 1.
  void call();
  int64_t wait_for_call(int member, uint32_t seen, int64_t spin_ns);

  int nodes() const { return static_cast<int>(plans_.size()); }

 private:
  struct Node;
  struct Plan {
    int parent;           // index, or -1 at the top
    int owner;            // the member that makes the node
    int arrivals = 0;     // members and nodes below that meet here
    bool members = false; // some arrive here as themselves, not for a group below
  };

  TeamTree() = default;
  void plan(const std::vector<GroupPath>& paths, const std::vector<int>& members, size_t depth, int parent);
  Node* node(int index) const;
  int64_t meet_at(Node& at, int64_t spin_ns);

  std::vector<Plan> plans_;      // parents before their children
  std::vector<int> node_of_;     // where each member arrives
  std::vector<Node*> seats_;     // the same, for those in a hurry
  Pages pages_;
};

}  // namespace homenode
