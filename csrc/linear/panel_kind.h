// What an unpacked panel of a block format holds: constants, for the tiles of every level but amx. See Panel in
// linear/table.h.
#pragma once
#include "linear/table.h"

namespace homenode {
namespace {

// A part has a sum for each scale: one of all its columns, or one of each half.
constexpr int halves_of(const Coding& c) { return c.scales == 2 ? 2 : 1; }

// Codes whose packed lines a tile can take as they are.
constexpr bool has_whole_codes(const Coding& c) {
  return c.high_bits == 0 && c.low_bits >= 4 && c.table == Table::none;
}
// They stay where they are, bytes always. Nibbles do beside minimums: with these a panel of unpacked codes would be
// larger than the nearest cache, which costs more than taking nibbles apart for each tile (measured on Zen 4: 5 %
// slower, and without minimums 6 % faster).
constexpr bool stays_packed(const Coding& c) {
  return has_whole_codes(c) && (c.low_bits == 8 || c.minimum != Minimum::none);
}

// What tiles have to know of a format. Codes that are moved to a panel have a zero of 128 there, or none.
struct PanelKind {
  int zero;
  int halves;
  bool minimum;
  bool nibbles;  // of the packed group
  int gap;       // bytes between the last part of a super-block and the first of the next
  constexpr int factors() const { return halves * (kEighths + (minimum ? 1 : 0)) * kPanelFloats; }  // bytes of a part
};

template <Coding C>
constexpr PanelKind panel_kind() {
  constexpr bool kStays = stays_packed(C);
  return {kStays || C.zero == 0 ? C.zero : 128, halves_of(C), C.minimum != Minimum::none, kStays && C.low_bits == 4,
          kStays && C.parts > 1 ? Packed<C>::head : 0};
}

}  // namespace
}  // namespace homenode
