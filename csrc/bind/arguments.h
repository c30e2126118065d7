// Methods whose arguments are the fields of a struct (base/fields.h): names, order and defaults are those of the
// fields. Fields from number `kKeywordsFrom` on, where the struct has one, are given by name only.
#pragma once
#include <nanobind/stl/optional.h>

#include <tuple>
#include <utility>

#include "base/fields.h"
#include "bind/bind.h"

namespace homenode {

// What Python gives for a field of such a type.
template <class T>
struct Given {
  using Type = T;
  static T field(T given) { return given; }
};

template <class T>
constexpr bool kMayBeNone = false;
template <class T>
constexpr bool kMayBeNone<std::optional<T>> = true;

template <class Struct, class T>
nb::arg argument_of(const Field<Struct, T>& field) {
  nb::arg argument(field.name);
  if constexpr (kMayBeNone<T>) argument.none();
  return argument;
}
template <class Struct, class T>
nb::arg_v argument_of(const DefaultedField<Struct, T>& field) {
  return nb::arg(field.name) = Struct{}.*(field.member);
}

template <class Struct>
constexpr size_t kFields = std::tuple_size_v<decltype(Struct::fields())>;

template <class Struct>
constexpr size_t keywords_from() {
  if constexpr (requires { Struct::kKeywordsFrom; }) return Struct::kKeywordsFrom;
  else return kFields<Struct>;
}

// Field number I as an argument, behind the mark of keywords where they begin.
template <class Struct, size_t I>
auto marked_argument() {
  const auto argument = argument_of(std::get<I>(Struct::fields()));
  if constexpr (I == keywords_from<Struct>()) return std::tuple(nb::kw_only(), argument);
  else return std::tuple(argument);
}

template <class Struct, class Self, class Class, class Call, class... Fields, size_t... I, class... Extra>
void define(Class& to, const char* name, Call call, const std::tuple<Fields...>&, std::index_sequence<I...>,
            const Extra&... extra) {
  const auto method = [call](Self self, typename Given<typename Fields::Type>::Type... given) {
    constexpr std::tuple<Fields...> of = Struct::fields();
    Struct arguments;
    ((arguments.*(std::get<I>(of).member) = Given<typename Fields::Type>::field(std::move(given))), ...);
    return call(self, std::move(arguments));
  };
  std::apply([&](const auto&... argument) { to.def(name, method, argument..., extra...); },
             std::tuple_cat(marked_argument<Struct, I>()...));
}

// Defines the method `name`, which is call(self, arguments) for a Struct of arguments. `extra`: its docstring, and
// what else nanobind takes.
template <class Struct, class Self, class Class, class Call, class... Extra>
void define(Class& to, const char* name, Call call, const Extra&... extra) {
  define<Struct, Self>(to, name, call, Struct::fields(), std::make_index_sequence<kFields<Struct>>(), extra...);
}

}  // namespace homenode
