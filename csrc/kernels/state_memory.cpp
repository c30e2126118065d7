#include "kernels/state_memory.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "host/thread_pool.h"
#include "kernels/operation.h"

namespace homenode {
namespace {

constexpr int64_t kMost = int64_t(1) << 24;  // of any length of a shape

bool possible(const StateShape& shape) {
  const int64_t lengths[] = {shape.channels, shape.taps, shape.heads, shape.key_width, shape.value_width};
  if (!std::all_of(std::begin(lengths), std::end(lengths), [](int64_t n) { return n >= 0 && n <= kMost; }))
    return false;
  const bool convolves = shape.channels && shape.taps, has_matrices = shape.heads && shape.key_width;
  return convolves == (shape.channels || shape.taps) &&
         (has_matrices && shape.value_width) == (shape.heads || shape.key_width || shape.value_width);
}

}  // namespace

Result<std::shared_ptr<StateMemory>> StateMemory::create(ThreadPool& pool, std::vector<StateShape> layers,
                                                         int64_t slots) {
  if (slots < 1 || slots > kMost || layers.empty()) {
    return Error{Fault::user, 0,
                 "state memory of " + std::to_string(layers.size()) + " layers and " + std::to_string(slots) +
                     " slots; wanted at least 1 of both"};
  }
  auto memory = std::make_shared<StateMemory>();
  int64_t total = 0, size = 0;
  for (const StateShape& shape : layers) {
    if (!possible(shape)) {
      return Error{Fault::user, 0, "a layer's state with a length of 0 beside others, or one that is impossible"};
    }
    memory->matrices_.push_back(total);
    if (__builtin_mul_overflow(shape.panels() * slots, shape.panel_floats(), &size) ||
        __builtin_add_overflow(total, size, &total) || total > INT64_MAX / 16)
      return Error{Fault::user, 0, "state memory of more bytes than an address space"};
    memory->tails_.push_back(total);
    total += slots * shape.taps * shape.tail_stride();
  }
  auto pages = allocate_pages(static_cast<size_t>(total) * sizeof(float));
  if (!pages) return pages.error();
  memory->pages_ = std::move(pages.value());
  memory->layers_ = std::move(layers);
  memory->slots_ = slots;
  pool.run([&](int thread) {
    for (int layer = 0; layer < static_cast<int>(memory->layers_.size()); ++layer) {
      const StateShape& shape = memory->layers_[static_cast<size_t>(layer)];
      const RowRange mine = rows_of(static_cast<int>(shape.panels()), thread, pool.size());
      if (mine.begin == mine.end) continue;
      std::memset(memory->panel(layer, mine.begin, 0), 0,
                  static_cast<size_t>((mine.end - mine.begin) * slots * shape.panel_floats()) * sizeof(float));
    }
  });
  return memory;
}

// Calls move(row in memory, floats, distance in what has no gaps) for each run of floats of a slot.
template <class Move>
void StateMemory::for_rows(int64_t slot, Move&& move) const {
  int64_t at = 0;
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    const StateShape& shape = layers_[static_cast<size_t>(layer)];
    for (int64_t tap = 0; tap < shape.taps; ++tap, at += shape.channels)
      move(tail(layer, slot, tap), shape.channels, at);
    for (int64_t head = 0; head < shape.heads; ++head, at += shape.key_width * shape.value_width) {
      for (int64_t p = 0; p < shape.head_panels(); ++p) {
        float* const rows = panel(layer, head * shape.head_panels() + p, slot);
        const int64_t columns = std::min(kPanel, shape.value_width - p * kPanel);
        for (int64_t i = 0; i < shape.key_width; ++i)
          move(rows + i * kPanel, columns, at + i * shape.value_width + p * kPanel);
      }
    }
  }
}

int64_t StateMemory::slot_floats() const {
  int64_t count = 0;
  for (const StateShape& shape : layers_)
    count += shape.taps * shape.channels + shape.heads * shape.key_width * shape.value_width;
  return count;
}

void StateMemory::read_slot(int64_t slot, float* out) const {
  for_rows(slot, [out](const float* row, int64_t count, int64_t at) {
    std::memcpy(out + at, row, static_cast<size_t>(count) * sizeof(float));
  });
}

void StateMemory::write_slot(int64_t slot, const float* from) const {
  for_rows(slot, [from](float* row, int64_t count, int64_t at) {
    std::memcpy(row, from + at, static_cast<size_t>(count) * sizeof(float));
  });
}

void StateMemory::copy_slot(int64_t from, int64_t to) const {
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    const StateShape& shape = layers_[static_cast<size_t>(layer)];
    for (int64_t p = 0; p < shape.panels(); ++p)
      std::memcpy(panel(layer, p, to), panel(layer, p, from),
                  static_cast<size_t>(shape.panel_floats()) * sizeof(float));
    if (shape.taps)
      std::memcpy(tail(layer, to, 0), tail(layer, from, 0),
                  static_cast<size_t>(shape.taps * shape.tail_stride()) * sizeof(float));
  }
}

}  // namespace homenode
