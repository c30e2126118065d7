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
Result<std::shared_ptr<Weight>> lay_out(Arena& arena, Format format, int64_t rows, int64_t columns) {
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

Result<std::shared_ptr<Weight>> make_weight(Team& team, Arena* arena, Format format, int64_t rows, int64_t columns, const Fill& fill) {
  if (arena && arena->members() != team.size()) {
    return Error{Fault::user, 0, "an arena of " + std::to_string(arena->members()) + " members for a team of " + std::to_string(team.size())};
  }
  Arena own(arena ? 0 : team.size());
  auto made = lay_out(arena ? *arena : own, format, rows, columns);
  if (!made) return made;
  const Weight& weight = *made.value();
  std::vector<std::optional<Error>> errors(weight.pieces.size());
  team.run([&](int member) {
    try {
      errors[size_t(member)] = fill(member, weight, weight.pieces[size_t(member)]);
    } catch (const std::bad_alloc&) {
      errors[size_t(member)] = Error{Fault::host, ENOMEM, "no memory for the buffers to read a " + shape_text(format, rows, columns)};
    }
  });
  for (auto& error : errors) {
    if (error) return std::move(*error);
  }
  return made;
}

size_t Weight::bytes() const {
  return std::accumulate(pieces.begin(), pieces.end(), size_t(0), [](size_t sum, const Piece& p) { return sum + p.bytes; });
}

}  // namespace homenode
