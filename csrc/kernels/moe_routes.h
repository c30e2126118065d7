// The routes of a mixture sorted by expert, and activations on their way there.
#pragma once
#include "kernels/linear_rows.h"
#include "kernels/moe.h"

namespace homenode {

// The routes of a step in the order of their experts, those of one expert in the order of tokens. The place of a route in it is its slot.
// Every thread makes its own list, which is less work than waiting for another's.
class RouteList {
 public:
  RouteList(const MixtureMemory&, int thread, int experts);
  void sort(const int32_t* indices, int64_t routes);
  int64_t begin(int expert) const { return expert ? ends_[expert - 1] : 0; }
  int64_t end(int expert) const { return ends_[expert]; }
  int32_t route(int64_t slot) const { return routes_[slot]; }

 private:
  int32_t* ends_;    // [experts] after `sort`
  int32_t* routes_;  // [slots]
  int experts_;
};

// A row of x as a weight's kernel wants it: how many bytes there are, and from row to row when rows are gathered.
struct GatheredRow {
  size_t bytes, stride;
};
GatheredRow gathered_row(const ActivationRows&, const float* x);

}  // namespace homenode
