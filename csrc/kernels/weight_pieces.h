// How a weight comes to be: its pieces are laid out in an arena, then every member of the team fills its own.
#pragma once
#include <cerrno>
#include <functional>
#include <optional>
#include <string>

#include "host/arena.h"
#include "kernels/linear.h"

namespace homenode {

// "Q8_0 matrix of 3 x 64"
std::string shape_text(Format, int64_t rows, int64_t columns);

// Why a matrix of this shape cannot be kept in this format, if it cannot.
std::optional<Error> check_packed(Format, int64_t rows, int64_t columns);

// One member's piece: nothing, or what went wrong. A std::bad_alloc inside becomes an Error.
using Fill = std::function<std::optional<Error>(int member, const Weight&, const Weight::Piece&)>;

// A weight with memory of `arena` (or, where that is null, of its own), filled by all members at once, each of which first touches its piece.
// Copies are made of what was filled, by members at home where they lie. The first member's error, if any, is the result.
Result<std::shared_ptr<Weight>> make_weight(Team&, Arena*, Format, int64_t rows, int64_t columns, Spread, const Fill&);

}  // namespace homenode
