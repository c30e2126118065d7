#include "weights/weight_pieces.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "host/thread_pool.h"
#include "quant/coding.h"
#include "quant/pack.h"

namespace homenode {
namespace {

constexpr int64_t kMaxRows = int64_t(1) << 31, kMaxColumns = int64_t(1) << 24;

// Takes the memory of a weight's pieces and of their copies.
class LayOut {
 public:
  LayOut(Arena& arena, Weight& weight, NumaPolicy policy)
      : arena_(arena), homes_(*arena.homes()), weight_(weight), policy_(policy) {}

  // All of it, untouched. An Error when there is too little.
  std::optional<Error> all() {
    const int homes = homes_.count();
    if (policy_ != NumaPolicy::interleave && homes > 1) weight_.homes = arena_.homes();
    if (policy_ == NumaPolicy::mirror && homes > 1) weight_.copies.resize(size_t(homes));
    const int64_t groups = (weight_.rows + kGroupRows - 1) / kGroupRows, threads = arena_.threads();
    for (int64_t t = 0; t < threads; ++t) {
      if (auto error = piece(int(t), groups * t / threads, groups * (t + 1) / threads)) return error;
    }
    return std::nullopt;
  }

 private:
  std::optional<Error> piece(int thread, int64_t begin, int64_t end) {
    const size_t bytes = size_t(end - begin) * size_t(packed_group_bytes(weight_.format, weight_.columns));
    const int home = homes_.of_thread[size_t(thread)];
    uint8_t* data = nullptr;
    if (auto error = take(thread, policy_ == NumaPolicy::interleave ? Arena::kEverywhere : home, bytes, data))
      return error;
    weight_.pieces.push_back({begin * kGroupRows, std::min(weight_.rows, end * kGroupRows), data, bytes});
    for (size_t other = 0; other < weight_.copies.size(); ++other) {
      uint8_t* copy = data;
      if (int(other) != home) {
        if (auto error = take(thread, int(other), bytes, copy)) return error;
      }
      weight_.copies[other].push_back(copy);
    }
    return std::nullopt;
  }

  std::optional<Error> take(int thread, int home, size_t bytes, uint8_t*& data) {
    auto taken = arena_.take(thread, home, bytes);
    if (!taken) return taken.error();
    data = reinterpret_cast<uint8_t*>(taken.value().data);
    weight_.memory.push_back(std::move(taken.value().owner));
    return std::nullopt;
  }

  Arena& arena_;
  const Homes& homes_;
  Weight& weight_;
  NumaPolicy policy_;
};

std::shared_ptr<Weight> without_pieces(const WeightShape& shape) {
  auto weight = std::make_shared<Weight>();
  weight->format = shape.format;
  weight->rows = shape.rows;
  weight->columns = shape.columns;
  return weight;
}

// The weight with its pieces in shared memory, one behind the other.
Result<std::shared_ptr<Weight>> lay_out_shared(int64_t threads, const WeightShape& shape, bool to_write) {
  auto weight = without_pieces(shape);
  const int64_t groups = (shape.rows + kGroupRows - 1) / kGroupRows;
  const auto group_bytes = size_t(packed_group_bytes(shape.format, shape.columns));
  auto first = shape.shared.memory->at(shape.shared.offset, uint64_t(groups) * group_bytes, to_write);
  if (!first) return first.error();
  for (int64_t t = 0; t < threads; ++t) {
    const int64_t begin = groups * t / threads, end = groups * (t + 1) / threads;
    weight->pieces.push_back({begin * kGroupRows, std::min(shape.rows, end * kGroupRows),
                              first.value() + size_t(begin) * group_bytes, size_t(end - begin) * group_bytes});
  }
  weight->memory.push_back(shape.shared.memory);
  return weight;
}

// The weight with its pieces laid out, one for each thread, and none of its memory touched.
Result<std::shared_ptr<Weight>> lay_out(Arena& arena, const WeightShape& shape) {
  if (shape.shared.memory) return lay_out_shared(arena.threads(), shape, true);
  auto weight = without_pieces(shape);
  if (auto error = LayOut(arena, *weight, shape.policy).all()) return std::move(*error);
  return weight;
}

// Copies the pieces that are not at home where this thread is; the threads of a home share them.
void fill_copies(Weight& weight, int thread) {
  if (weight.copies.empty()) return;
  const std::vector<int>& homes = weight.homes->of_thread;
  const int home = homes[size_t(thread)];
  const Homes::Turn turn = weight.homes->turn(thread);
  for (size_t p = size_t(turn.index); p < weight.pieces.size(); p += size_t(turn.of)) {
    const Weight::Piece& piece = weight.pieces[p];
    if (homes[p] != home) std::memcpy(const_cast<uint8_t*>(weight.copies[size_t(home)][p]), piece.data, piece.bytes);
  }
}

// One thread's pieces of all weights, in order.
std::optional<Error> fill_pieces(int thread, const Weights& weights, const Fill& fill) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const Weight& weight = *weights[i];
    try {
      if (auto error = fill(thread, i, weight, weight.pieces[size_t(thread)])) return error;
    } catch (const std::bad_alloc&) {
      return Error{Fault::host, ENOMEM,
                   "no memory for the buffers to read a " + shape_text(weight.format, weight.rows, weight.columns)};
    }
  }
  return std::nullopt;
}

}  // namespace

std::string shape_text(Format format, int64_t rows, int64_t columns) {
  return std::string(format_name(format)) + " matrix of " + std::to_string(rows) + " x " + std::to_string(columns);
}

std::optional<Error> check_packed(Format format, int64_t rows, int64_t columns) {
  if (!has_kernel(format)) return Error{Fault::user, 0, "no kernel for packed format " + std::to_string(int(format))};
  if (rows < 1 || rows > kMaxRows || columns < 1 || columns > kMaxColumns) {
    return Error{Fault::user, 0, "a matrix of " + std::to_string(rows) + " x " + std::to_string(columns) +
                                     " is out of bounds: 1 .. 2^31 rows of 1 .. 2^24 columns"};
  }
  return std::nullopt;
}

Result<Weights> make_weights(ThreadPool& pool, Arena* arena, const std::vector<WeightShape>& shapes, const Fill& fill) {
  if (arena && arena->threads() != pool.size()) {
    return Error{Fault::user, 0,
                 "an arena of " + std::to_string(arena->threads()) + " threads for a thread pool of " +
                     std::to_string(pool.size())};
  }
  Arena own(pool.size());
  Weights weights;
  for (const WeightShape& shape : shapes) {
    auto made = lay_out(arena ? *arena : own, shape);
    if (!made) return made.error();
    weights.push_back(std::move(made.value()));
  }
  std::vector<std::optional<Error>> errors(size_t(pool.size()));
  const bool copied =
      std::any_of(weights.begin(), weights.end(), [](const auto& weight) { return !weight->copies.empty(); });
  pool.run([&](int thread) {
    errors[size_t(thread)] = fill_pieces(thread, weights, fill);
    if (!copied) return;
    pool.barrier(thread);
    for (const auto& weight : weights) fill_copies(*weight, thread);
  });
  for (auto& error : errors) {
    if (error) return std::move(*error);
  }
  return weights;
}

Result<std::shared_ptr<Weight>> make_weight(ThreadPool& pool, Arena* arena, const WeightShape& shape,
                                            const Fill& fill) {
  auto made = make_weights(pool, arena, {shape}, fill);
  if (!made) return made.error();
  return made.value().front();
}

Result<std::shared_ptr<Weight>> attach_weight(int threads, const WeightShape& shape) {
  if (auto error = check_packed(shape.format, shape.rows, shape.columns)) return std::move(*error);
  if (threads < 1 || !shape.shared.memory)
    return Error{Fault::internal, 0, "a weight to attach without threads or without memory"};
  return lay_out_shared(threads, shape, false);
}

const uint8_t* Weight::data(size_t piece, int thread) const {
  return copies.empty() ? pieces[piece].data : copies[size_t(homes->of_thread[size_t(thread)])][piece];
}

bool Weight::near(int thread, int owner) const {
  return !homes || !copies.empty() || homes->of_thread[size_t(thread)] == homes->of_thread[size_t(owner)];
}

size_t Weight::bytes() const {
  return std::accumulate(pieces.begin(), pieces.end(), size_t(0),
                         [](size_t sum, const Piece& p) { return sum + p.bytes; });
}

}  // namespace homenode
