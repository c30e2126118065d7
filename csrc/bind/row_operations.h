// The methods of the recorder that are the row operations: names, arguments and defaults are those of their fields.
#pragma once
#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>

#include <utility>

#include "bind/bind.h"
#include "recorder/row_operations.h"

namespace homenode {

// What Python gives for a field.
template <class T>
struct Given {
  using Type = T;
  static T field(T given) { return given; }
};
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

template <class T>
constexpr bool kMayBeNone = false;
template <class T>
constexpr bool kMayBeNone<std::optional<T>> = true;

template <class Named, class T>
nb::arg argument_of(const Field<Named, T>& field) {
  nb::arg argument(field.name);
  if constexpr (kMayBeNone<T>) argument.none();
  return argument;
}
template <class Named, class T>
nb::arg_v argument_of(const DefaultedField<Named, T>& field) {
  return nb::arg(field.name) = Named{}.*(field.member);
}

template <class Named, class... Fields, size_t... I>
void bind_rows(nb::class_<Recorder>& recorder, const std::tuple<Fields...>& fields, std::index_sequence<I...>) {
  recorder.def(
      Named::kName,
      [](Recorder& r, typename Given<typename Fields::Type>::Type... given) {
        constexpr std::tuple<Fields...> of = Named::fields();
        Named operation;
        ((operation.*(std::get<I>(of).member) = Given<typename Fields::Type>::field(std::move(given))), ...);
        return take(r.rows(std::move(operation)));
      },
      argument_of(std::get<I>(fields))...);
}
template <class Named, class... Fields>
void bind_rows(nb::class_<Recorder>& recorder, const std::tuple<Fields...>& fields) {
  bind_rows<Named>(recorder, fields, std::index_sequence_for<Fields...>());
}

inline void bind_row_operations(nb::class_<Recorder>& recorder) {
#define BIND(Named) bind_rows<Named>(recorder, Named::fields());
  HOMENODE_ROW_OPERATIONS(BIND)
#undef BIND
}

}  // namespace homenode
