// Memory of what layers keep of a sequence besides keys and values: see homenode.compute.ops.StateGeometry.
//
// A sequence has a slot, of the same number in all layers. Of a layer with a convolution a slot holds the last inputs
// of each channel, [taps][channels]; of a layer with matrices it holds, for each head, [key_width][value_width] in
// panels of kPanel value columns, [panel][key_width][kPanel]. A panel has its slots in order. The panels of a thread,
// which are those that it computes, are one piece of memory of its home (host/arena.h), and it touches them first.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "host/arena.h"

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
  // Zeros, at the homes of the pool's threads; with `interleaved` pages come from all homes in turn. Error for
  // impossible shapes, or where the memory is not to be had.
  static Result<std::shared_ptr<StateMemory>> create(ThreadPool&, std::vector<StateShape> layers, int64_t slots,
                                                     const Homes* = nullptr, bool interleaved = false);

  const std::vector<StateShape>& layers() const { return layers_; }
  int64_t slots() const { return slots_; }
  size_t bytes() const { return bytes_; }
  std::vector<Arena::Range> ranges() const { return arena_->ranges(); }

  // [key_width][kPanel] of panel `panel`, counted over all heads, of a slot.
  float* panel(int layer, int64_t panel, int64_t slot) const {
    const StateShape& shape = layers_[static_cast<size_t>(layer)];
    return panels_[static_cast<size_t>(layer)][static_cast<size_t>(panel)] + slot * shape.panel_floats();
  }
  // The inputs of all channels that are `tap` places from the oldest that is kept.
  float* tail(int layer, int64_t slot, int64_t tap) const {
    const StateShape& shape = layers_[static_cast<size_t>(layer)];
    return tails_[static_cast<size_t>(layer)] + (slot * shape.taps + tap) * shape.tail_stride();
  }
  // Makes slot `to` what slot `from` is. While no step runs.
  void copy_slot(int64_t from, int64_t to) const;
  // What a slot holds, as floats: of each layer the taps, [taps][channels], then the matrices, [heads][key_width]
  // [value_width], without gaps.
  int64_t slot_floats() const;
  void read_slot(int64_t slot, float* out) const;
  void write_slot(int64_t slot, const float* from) const;

 private:
  // What a thread is to touch first.
  struct Piece {
    int thread;
    float* data;
    int64_t floats;
  };
  std::optional<Error> add_layer(const StateShape&, const Homes&, bool interleaved, int layer,
                                 std::vector<Piece>& pieces);
  Result<float*> take(int thread, int home, int64_t floats);
  template <class Move>
  void for_rows(int64_t slot, Move&&) const;

  std::vector<StateShape> layers_;
  int64_t slots_ = 0;
  std::unique_ptr<Arena> arena_;
  std::vector<std::shared_ptr<void>> owners_;  // of its pieces
  size_t bytes_ = 0;
  std::vector<std::vector<float*>> panels_;  // of each layer slot 0 of each panel
  std::vector<float*> tails_;  // of each layer those of slot 0
};

}  // namespace homenode
