#include "kernels/weight_pieces.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "host/team.h"
#include "quant/coding.h"
#include "quant/pack.h"

namespace homenode {
namespace {

constexpr int64_t kMaxRows = int64_t(1) << 31, kMaxColumns = int64_t(1) << 24;

// The weight with its pieces laid out, one for each member, and none of its memory touched.
Result<std::shared_ptr<Weight>> lay_out(Arena& arena, const WeightShape& shape) {
  const auto& [format, rows, columns] = shape;
  const int64_t groups = (rows + kGroupRows - 1) / kGroupRows, group_bytes = packed_group_bytes(format, columns), members = arena.members();
  auto weight = std::make_shared<Weight>();
  weight->format = format;
  weight->rows = rows;
  weight->columns = columns;
  for (int64_t t = 0; t < members; ++t) {
    const int64_t begin = groups * t / members, end = groups * (t + 1) / members;
    const size_t bytes = size_t(end - begin) * size_t(group_bytes);
    auto piece = arena.take(int(t), bytes);
    if (!piece) return piece.error();
    weight->pieces.push_back({begin * kGroupRows, std::min(rows, end * kGroupRows), reinterpret_cast<uint8_t*>(piece.value().data), bytes});
    weight->memory.push_back(std::move(piece.value().owner));
  }
  return weight;
}

// One member's pieces of all weights, in order.
std::optional<Error> fill_pieces(int member, const Weights& weights, const Fill& fill) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const Weight& weight = *weights[i];
    try {
      if (auto error = fill(member, i, weight, weight.pieces[size_t(member)])) return error;
    } catch (const std::bad_alloc&) {
      return Error{Fault::host, ENOMEM, "no memory for the buffers to read a " + shape_text(weight.format, weight.rows, weight.columns)};
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

Result<Weights> make_weights(Team& team, Arena* arena, const std::vector<WeightShape>& shapes, const Fill& fill) {
  if (arena && arena->members() != team.size()) {
    return Error{Fault::user, 0, "an arena of " + std::to_string(arena->members()) + " members for a team of " + std::to_string(team.size())};
  }
  Arena own(arena ? 0 : team.size());
  Weights weights;
  for (const WeightShape& shape : shapes) {
    auto made = lay_out(arena ? *arena : own, shape);
    if (!made) return made.error();
    weights.push_back(std::move(made.value()));
  }
  std::vector<std::optional<Error>> errors(size_t(team.size()));
  team.run([&](int member) { errors[size_t(member)] = fill_pieces(member, weights, fill); });
  for (auto& error : errors) {
    if (error) return std::move(*error);
  }
  return weights;
}

Result<std::shared_ptr<Weight>> make_weight(Team& team, Arena* arena, const WeightShape& shape, const Fill& fill) {
  auto made = make_weights(team, arena, {shape}, fill);
  if (!made) return made.error();
  return made.value().front();
}

size_t Weight::bytes() const {
  return std::accumulate(pieces.begin(), pieces.end(), size_t(0), [](size_t sum, const Piece& p) { return sum + p.bytes; });
}

}  // namespace homenode
