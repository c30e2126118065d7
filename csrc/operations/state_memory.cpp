#include "operations/state_memory.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "graph/operation.h"
#include "host/thread_pool.h"

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
                                                         int64_t slots, const Homes* homes, bool interleaved) {
  if (slots < 1 || slots > kMost || layers.empty()) {
    return Error{Fault::user, 0,
                 "state memory of " + std::to_string(layers.size()) + " layers and " + std::to_string(slots) +
                     " slots; wanted at least 1 of both"};
  }
  const Homes at = homes ? *homes : Homes{std::vector<int>(static_cast<size_t>(pool.size())), {}};
  auto memory = std::make_shared<StateMemory>();
  memory->arena_ = std::make_unique<Arena>(at);
  memory->slots_ = slots;
  std::vector<Piece> pieces;
  for (const StateShape& shape : layers) {
    if (!possible(shape))
      return Error{Fault::user, 0, "a layer's state with a length of 0 beside others, or one that is impossible"};
    const int layer = static_cast<int>(memory->panels_.size());
    if (auto error = memory->add_layer(shape, at, interleaved, layer, pieces)) return *error;
  }
  memory->layers_ = std::move(layers);
  pool.run([&](int thread) {
    for (const Piece& piece : pieces) {
      if (piece.thread == thread) std::memset(piece.data, 0, static_cast<size_t>(piece.floats) * sizeof(float));
    }
  });
  return memory;
}

// The panels of each thread, and the tails with one thread: another one in each layer.
std::optional<Error> StateMemory::add_layer(const StateShape& shape, const Homes& homes, bool interleaved, int layer,
                                            std::vector<Piece>& pieces) {
  const int threads = static_cast<int>(homes.of_thread.size());
  std::vector<float*>& panels = panels_.emplace_back();
  tails_.push_back(nullptr);
  const auto add = [&](int thread, int64_t count, int64_t length) -> Result<float*> {
    int64_t floats = 0;
    if (__builtin_mul_overflow(count * slots_, length, &floats) || floats > INT64_MAX / 16)
      return Error{Fault::user, 0, "state memory of more bytes than an address space"};
    const int home = interleaved ? Arena::kEverywhere : homes.of_thread[static_cast<size_t>(thread)];
    auto data = take(thread, home, floats);
    if (data) pieces.push_back({thread, data.value(), floats});
    return data;
  };
  for (int thread = 0; thread < threads; ++thread) {
    const RowRange mine = rows_of(static_cast<int>(shape.panels()), thread, threads);
    if (mine.begin == mine.end) continue;
    auto data = add(thread, mine.end - mine.begin, shape.panel_floats());
    if (!data) return data.error();
    for (int64_t p = 0; p < mine.end - mine.begin; ++p)
      panels.push_back(data.value() + p * slots_ * shape.panel_floats());
  }
  if (!shape.taps) return std::nullopt;
  auto data = add(layer % threads, shape.taps, shape.tail_stride());
  if (!data) return data.error();
  tails_.back() = data.value();
  return std::nullopt;
}

Result<float*> StateMemory::take(int thread, int home, int64_t floats) {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  auto piece = arena_->take(thread, home, bytes);
  if (!piece) return piece.error();
  owners_.push_back(piece.value().owner);
  bytes_ += bytes;
  return reinterpret_cast<float*>(piece.value().data);
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
