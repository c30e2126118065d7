// Memory of what layers keep of a sequence besides keys and values: see homenode.compute.ops.StateGeometry.
//
// A sequence has a slot, of the same number in all layers. Of a layer with a convolution a slot holds the last inputs of
// each channel, [taps][channels]; of a layer with matrices it holds, for each head, [key_width][value_width] in panels
// of kPanel value columns, [panel][key_width][kPanel]. Panels of a head lie one behind the other, and in each the slots
// in order, so that the panels of a thread are one piece of memory, which that thread touches first: they lie on its
// node.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "host/memory.h"

namespace homenode {

class ThreadPool;

constexpr int64_t kPanel = 16;  // value columns of a panel: one vector of lanes

struct StateShape {
  int64_t channels = 0, taps = 0;  // of a convolution; 0: none
  int64_t heads = 0, key_width = 0, value_width = 0;  // of matrices; 0: none

  int64_t head_panels() const { return (value_width + kPanel - 1) / kPanel; }
  int64_t panels() const { return heads * head_panels(); }
  int64_t panel_floats() const { return key_width * kPanel; }
  int64_t tail_stride() const { return (channels + kPanel - 1) / kPanel * kPanel; }
};

class StateMemory {
 public:
  // Zeros. Error for impossible shapes, or where the memory is not to be had.
  static Result<std::shared_ptr<StateMemory>> create(ThreadPool&, std::vector<StateShape> layers, int64_t slots);

  const std::vector<StateShape>& layers() const { return layers_; }
  int64_t slots() const { return slots_; }
  size_t bytes() const { return pages_.bytes; }
  const Pages& pages() const { return pages_; }

  // [key_width][kPanel] of panel `panel`, counted over all heads, of a slot.
  float* panel(int layer, int64_t panel, int64_t slot) const {
    const StateShape& shape = layers_[static_cast<size_t>(layer)];
    return floats() + matrices_[static_cast<size_t>(layer)] + (panel * slots_ + slot) * shape.panel_floats();
  }
  // The inputs of all channels that are `tap` places from the oldest that is kept.
  float* tail(int layer, int64_t slot, int64_t tap) const {
    const StateShape& shape = layers_[static_cast<size_t>(layer)];
    return floats() + tails_[static_cast<size_t>(layer)] + (slot * shape.taps + tap) * shape.tail_stride();
  }
  // Makes slot `to` what slot `from` is. While no step runs.
  void copy_slot(int64_t from, int64_t to) const;
  // What a slot holds, as floats: of each layer the taps, [taps][channels], then the matrices, [heads][key_width]
  // [value_width], without gaps.
  int64_t slot_floats() const;
  void read_slot(int64_t slot, float* out) const;
  void write_slot(int64_t slot, const float* from) const;

 private:
  float* floats() const { return reinterpret_cast<float*>(pages_.data); }
  template <class Move>
  void for_rows(int64_t slot, Move&&) const;

  std::vector<StateShape> layers_;
  int64_t slots_ = 0;
  std::vector<int64_t> matrices_, tails_;  // where those of each layer begin, in floats
  Pages pages_;
};

}  // namespace homenode
