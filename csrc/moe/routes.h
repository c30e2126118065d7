// The routes of a step, and activations on their way to the experts. Route r is choice r % chosen of token r / chosen.
#pragma once
#include "linear/rows.h"
#include "moe/moe.h"

namespace homenode {

// The routes in the order of their experts, those of one expert in the order of tokens. The place of a route in it is
// its slot. Every thread makes its own list, which is less work than waiting for another's. Routes to experts that are
// elsewhere come last and have no slot.
class RouteList {
 public:
  RouteList(int32_t* memory, int experts) : ends_(memory), routes_(memory + experts + 1), experts_(experts) {}
  static size_t length(int experts, int64_t routes) { return static_cast<size_t>(experts + 1 + routes); }
  void sort(const int32_t* indices, int64_t routes);
  int64_t begin(int expert) const { return expert ? ends_[expert - 1] : 0; }
  int64_t end(int expert) const { return ends_[expert]; }
  int32_t route(int64_t slot) const { return routes_[slot]; }
  const int32_t* routes() const { return routes_; }
  int64_t slots() const { return ends_[experts_ - 1]; }

 private:
  int32_t* ends_;    // [experts + 1] after `sort`
  int32_t* routes_;  // [slots]
  int experts_;
};

// The memory of a MoE layer as one thread uses it in a step.
struct MoeMemory {
  int32_t* indices;    // [routes] places of experts, the number of those that are here for any other
  float* weights;      // [routes]
  uint8_t* prepared;   // scratch memory of gate's and up's product
  uint8_t* gathered;   // [routes, gate_row]
  uint8_t* gathered_up;  // [routes, up_row], or equal to `gathered`
  RouteList list;
  float* choice;       // scratch memory of choose_experts
  uint8_t* inner;      // scratch memory of down's product, a row for each slot
};
MoeMemory memory_of(const MoeArgs&, int thread);

// Chooses the experts of tokens begin .. end - 1.
void choose_all(const MoeArgs&, const MoeMemory&, int64_t begin, int64_t end);

// x on its way into gate and up: prepared by token, then gathered by slot. The row of a step's only token stays where
// it is.
class MoeInput {
 public:
  MoeInput(const MoeArgs&, const MoeMemory&);
  MoeInput(const MoeInput&) = delete;
  MoeInput& operator=(const MoeInput&) = delete;

  void prepare(int thread, int threads) const { linear_prepare(args_, thread, threads); }
  // The router's product of prepared rows begin .. end - 1: this thread's part of it.
  void multiply_router(int64_t begin, int64_t end, int thread, int threads) const;
  // Copies the rows of slots begin .. end - 1 to their places.
  void gather(int64_t begin, int64_t end) const;
  ActivationRows gate_rows() const { return by_slot(0, memory_.gathered); }
  ActivationRows up_rows() const { return by_slot(1, memory_.gathered_up); }

 private:
  ActivationRows by_slot(int which, const uint8_t* gathered) const;
  void gather_for(int which, int64_t begin, int64_t end, uint8_t* to) const;

  const MoeArgs& call_;
  const MoeMemory& memory_;
  const Weight* weights_[3];  // gate, up, and the router if there is one
  LinearArgs args_;
  const LinearTable& table_;
};

// The gated values on their way into down.
LinearArgs inner_product(const MoeArgs&, const MoeMemory&);

}  // namespace homenode
