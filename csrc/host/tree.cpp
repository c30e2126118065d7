#include "host/tree.h"

#include <algorithm>
#include <map>
#include <new>
#include <numeric>

namespace homenode {
namespace {
constexpr size_t kNodeBytes = 4096;  // a page: what can be placed on a NUMA node
}

struct TeamTree::Node {
  Node(Node* above, int wanted) : parent(above), arrivals(wanted) {}

  Gate calls;     // advanced once a call
  Gate released;  // advanced when all are there
  alignas(kLine) std::atomic<int> arrived{0};
  alignas(kLine) Node* const parent;
  const int arrivals;
};

Result<std::unique_ptr<TeamTree>> TeamTree::create(const std::vector<GroupPath>& paths) {
  static_assert(sizeof(Node) <= kNodeBytes);
  if (paths.empty()) return Error{Fault::user, 0, "a team needs at least one member"};
  for (const GroupPath& path : paths) {
    if (path.size() > kMaxDepth) return Error{Fault::user, 0, "groups " + std::to_string(path.size()) + " deep; at most " + std::to_string(kMaxDepth)};
  }
  std::unique_ptr<TeamTree> tree(new TeamTree);
  tree->node_of_.resize(paths.size());
  std::vector<int> members(paths.size());
  std::iota(members.begin(), members.end(), 0);
  tree->plan(paths, members, 0, -1);
  auto pages = allocate_pages(tree->plans_.size() * kNodeBytes);
  if (!pages) return pages.error();
  tree->pages_ = pages.value();
  for (const int index : tree->node_of_) tree->seats_.push_back(tree->node(index));
  return tree;
}

// A node for these members, whose paths agree up to `depth`, and nodes for the groups among them.
void TeamTree::plan(const std::vector<GroupPath>& paths, const std::vector<int>& members, size_t depth, int parent) {
  std::map<int, std::vector<int>> groups;
  std::vector<int> ungrouped;  // whose paths end here
  for (;; ++depth) {
    for (const int member : members) {
      const GroupPath& path = paths[static_cast<size_t>(member)];
      (depth < path.size() ? groups[path[depth]] : ungrouped).push_back(member);
    }
    if (!ungrouped.empty() || groups.size() > 1) break;
    groups.clear();  // one group is all there is: the same members, one step down
  }
  const int index = nodes();
  plans_.push_back({parent, members.front()});
  for (const auto& [name, group] : groups) {
    if (group.size() == 1) ungrouped.push_back(group.front());
  }
  for (const int member : ungrouped) node_of_[static_cast<size_t>(member)] = index;
  const auto larger = std::count_if(groups.begin(), groups.end(), [](const auto& group) { return group.second.size() > 1; });
  plans_.back().arrivals = static_cast<int>(ungrouped.size()) + static_cast<int>(larger);
  plans_.back().members = !ungrouped.empty();
  for (const auto& [name, group] : groups) {
    if (group.size() > 1) plan(paths, group, depth + 1, index);
  }
}

TeamTree::Node* TeamTree::node(int index) const {
  return index < 0 ? nullptr : reinterpret_cast<Node*>(pages_.data + static_cast<size_t>(index) * kNodeBytes);
}

void TeamTree::settle(int member) {
  for (int i = 0; i < nodes(); ++i) {
    const Plan& plan = plans_[static_cast<size_t>(i)];
    if (plan.owner == member) new (node(i)) Node(node(plan.parent), plan.arrivals);
  }
}

int64_t TeamTree::meet(int member, int64_t spin_ns) { return meet_at(*seats_[static_cast<size_t>(member)], spin_ns); }

int64_t TeamTree::meet_at(Node& at, int64_t spin_ns) {
  const uint32_t seen = at.released.value();  // cannot change before this arrival
  if (at.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != at.arrivals) return at.released.wait_while(seen, spin_ns);
  at.arrived.store(0, std::memory_order_relaxed);  // nobody arrives again before the release
  const int64_t slept = at.parent ? meet_at(*at.parent, spin_ns) : 0;
  at.released.advance();
  return slept;
}

void TeamTree::call() {
  for (int i = 0; i < nodes(); ++i) {
    if (plans_[static_cast<size_t>(i)].members) node(i)->calls.advance();
  }
}

int64_t TeamTree::wait_for_call(int member, uint32_t seen, int64_t spin_ns) {
  return seats_[static_cast<size_t>(member)]->calls.wait_while(seen, spin_ns);
}

}  // namespace homenode
