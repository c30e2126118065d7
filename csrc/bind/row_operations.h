// The methods of the recorder that are the row operations: names, arguments and defaults are those of their fields.
#pragma once
#include <nanobind/stl/variant.h>

#include "bind/arguments.h"
#include "recorder/row_operations.h"

namespace homenode {

template <>
struct Given<Vector> {
  using Type = Tensor;
  static Vector field(Tensor given) { return {std::move(given)}; }
};
template <>
struct Given<RowsOrVector> {
  using Type = Tensor;
  static RowsOrVector field(Tensor given) { return {std::move(given)}; }
};
template <>
struct Given<Number> {
  using Type = std::variant<float, Tensor>;
  static Number field(Type given) { return {std::move(given)}; }
};
template <>
struct Given<std::optional<Vector>> {
  using Type = std::optional<Tensor>;
  static std::optional<Vector> field(Type given) {
    if (!given) return {};
    return Vector{std::move(*given)};
  }
};

inline void bind_row_operations(nb::class_<Recorder>& recorder) {
  const auto record = [](Recorder& r, auto operation) { return take(r.rows(std::move(operation))); };
#define BIND(Named) define<Named, Recorder&>(recorder, Named::kName, record);
  HOMENODE_ROW_OPERATIONS(BIND)
#undef BIND
}

}  // namespace homenode
