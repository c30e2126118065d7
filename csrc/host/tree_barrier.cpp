#include "host/tree_barrier.h"

#include <algorithm>
#include <map>
#include <new>
#include <numeric>

namespace homenode {
namespace {
constexpr size_t kNodeBytes = 4096;  // a page: what can be placed on a NUMA node
}

struct TreeBarrier::Node {
  Node(Node* above, int wanted) : parent(above), arrivals(wanted) {}

  EventCount calls;     // advanced once a call
  EventCount released;  // advanced when all are there
  alignas(kLine) std::atomic<int> arrived{0};
  alignas(kLine) Node* const parent;
  const int arrivals;
};

Result<std::unique_ptr<TreeBarrier>> TreeBarrier::create(const std::vector<GroupPath>& paths) {
  static_assert(sizeof(Node) <= kNodeBytes);
  if (paths.empty()) return Error{Fault::user, 0, "a thread pool needs at least one thread"};
  for (const GroupPath& path : paths) {
    if (path.size() > kMaxDepth)
      return Error{Fault::user, 0,
                   "groups " + std::to_string(path.size()) + " deep; at most " + std::to_string(kMaxDepth)};
  }
  std::unique_ptr<TreeBarrier> tree(new TreeBarrier);
  tree->node_of_.resize(paths.size());
  std::vector<int> threads(paths.size());
  std::iota(threads.begin(), threads.end(), 0);
  tree->plan(paths, threads, 0, -1);
  auto pages = allocate_pages(tree->plans_.size() * kNodeBytes);
  if (!pages) return pages.error();
  tree->pages_ = pages.value();
  for (const int index : tree->node_of_) tree->nodes_of_.push_back(tree->node(index));
  return tree;
}

// A node for these threads, whose paths agree up to `depth`, and nodes for the groups among them.
void TreeBarrier::plan(const std::vector<GroupPath>& paths, const std::vector<int>& threads, size_t depth, int parent) {
  std::map<int, std::vector<int>> groups;
  std::vector<int> ungrouped;  // whose paths end here
  for (;; ++depth) {
    for (const int thread : threads) {
      const GroupPath& path = paths[static_cast<size_t>(thread)];
      (depth < path.size() ? groups[path[depth]] : ungrouped).push_back(thread);
    }
    if (!ungrouped.empty() || groups.size() > 1) break;
    groups.clear();  // one group is all there is: the same threads, one step down
  }
  const int index = nodes();
  plans_.push_back({parent, threads.front()});
  for (const auto& [name, group] : groups) {
    if (group.size() == 1) ungrouped.push_back(group.front());
  }
  for (const int thread : ungrouped) node_of_[static_cast<size_t>(thread)] = index;
  const auto larger =
      std::count_if(groups.begin(), groups.end(), [](const auto& group) { return group.second.size() > 1; });
  plans_.back().arrivals = static_cast<int>(ungrouped.size()) + static_cast<int>(larger);
  plans_.back().threads = !ungrouped.empty();
  for (const auto& [name, group] : groups) {
    if (group.size() > 1) plan(paths, group, depth + 1, index);
  }
}

TreeBarrier::Node* TreeBarrier::node(int index) const {
  return index < 0 ? nullptr : reinterpret_cast<Node*>(pages_.data + static_cast<size_t>(index) * kNodeBytes);
}

void TreeBarrier::settle(int thread) {
  for (int i = 0; i < nodes(); ++i) {
    const Plan& plan = plans_[static_cast<size_t>(i)];
    if (plan.owner == thread) new (node(i)) Node(node(plan.parent), plan.arrivals);
  }
}

int64_t TreeBarrier::wait(int thread, int64_t spin_ns) {
  return wait_at(*nodes_of_[static_cast<size_t>(thread)], spin_ns);
}

int64_t TreeBarrier::wait_at(Node& at, int64_t spin_ns) {
  const uint32_t seen = at.released.value();  // cannot change before this arrival
  if (at.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != at.arrivals)
    return at.released.wait_while(seen, spin_ns);
  at.arrived.store(0, std::memory_order_relaxed);  // nobody arrives again before the release
  const int64_t slept = at.parent ? wait_at(*at.parent, spin_ns) : 0;
  at.released.advance();
  return slept;
}

void TreeBarrier::call() {
  for (int i = 0; i < nodes(); ++i) {
    if (plans_[static_cast<size_t>(i)].threads) node(i)->calls.advance();
  }
}

int64_t TreeBarrier::wait_for_call(int thread, uint32_t seen, int64_t spin_ns) {
  return nodes_of_[static_cast<size_t>(thread)]->calls.wait_while(seen, spin_ns);
}

}  // namespace homenode
