// Structs that say which fields they have, so that arguments of Python functions and checks follow from these.
//
//   struct Clamp {
//     Tensor x;
//     float limit = 0;
//     static constexpr auto fields() { return std::tuple(Field("x", &Clamp::x), Field("limit", &Clamp::limit)); }
//   };
#pragma once

namespace homenode {

template <class Struct, class T>
struct Field {
  using Type = T;
  constexpr Field(const char* called, T Struct::* at) : name(called), member(at) {}

  const char* name;
  T Struct::* member;
};

// A field that calls may leave out: it is then what the struct says.
template <class Struct, class T>
struct DefaultedField : Field<Struct, T> {
  using Field<Struct, T>::Field;
};
template <class Struct, class T>
DefaultedField(const char*, T Struct::*) -> DefaultedField<Struct, T>;

}  // namespace homenode
