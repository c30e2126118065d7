// How a weight comes to be: its pieces are laid out in an arena, then every thread of the pool fills its own.
#pragma once
#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/arena.h"
#include "weights/weight.h"

namespace homenode {

// "Q8_0 matrix of 3 x 64"
std::string shape_text(Format, int64_t rows, int64_t columns);

// Why a matrix of this shape cannot be kept in this format, if it cannot.
std::optional<Error> check_packed(Format, int64_t rows, int64_t columns);

// One thread's piece of weight `index`: nothing, or what went wrong. A std::bad_alloc inside becomes an Error.
using Fill = std::function<std::optional<Error>(int thread, size_t index, const Weight&, const Weight::Piece&)>;
using Weights = std::vector<std::shared_ptr<Weight>>;

// Weights with memory of `arena` (or, where that is null, of their own). Every thread fills its pieces of them, one
// after the other and as first to touch them, without waiting for the others in between; copies are then made of what
// was filled, by threads at home where they lie. The first thread's error, if any, is the result.
Result<Weights> make_weights(ThreadPool&, Arena*, const std::vector<WeightShape>&, const Fill&);
Result<std::shared_ptr<Weight>> make_weight(ThreadPool&, Arena*, const WeightShape&, const Fill&);

}  // namespace homenode
