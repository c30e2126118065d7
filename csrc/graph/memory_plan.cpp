#include "graph/memory_plan.h"

#include <algorithm>

namespace homenode {
namespace {

constexpr size_t kLineBytes = 128;  // lines are fetched in pairs
constexpr size_t kGapBytes = 128;   // behind every slot: nobody's

// One place, and who lies there now.
struct Slot {
  size_t bytes = 0;
  const Memory* last = nullptr;
  std::vector<Memory*> all;
};

bool may_follow(const Memory& next, const Memory& before, const std::vector<int>& groups, bool apart) {
  if (before.last >= next.first || (apart && before.own_bytes != next.own_bytes)) return false;
  if (groups[static_cast<size_t>(before.last)] < groups[static_cast<size_t>(next.first)]) return true;
  return next.row_bytes && next.row_bytes == before.row_bytes && next.rows == before.rows;
}

// The smallest slot that is large enough, else the largest, which grows; null where none is free.
Slot* choose(std::vector<Slot>& slots, const Memory& memory, const std::vector<int>& groups, bool apart) {
  Slot *best = nullptr, *largest = nullptr;
  for (Slot& slot : slots) {
    if (!may_follow(memory, *slot.last, groups, apart)) continue;
    if (slot.bytes >= memory.bytes && (!best || slot.bytes < best->bytes)) best = &slot;
    if (!largest || slot.bytes > largest->bytes) largest = &slot;
  }
  return best ? best : largest;
}

}  // namespace

Result<Placed> place(const std::vector<Memory*>& memories, const std::vector<int>& groups, bool apart) {
  std::vector<Memory*> used;
  std::copy_if(memories.begin(), memories.end(), std::back_inserter(used),
               [](const Memory* m) { return m->first >= 0; });
  std::stable_sort(used.begin(), used.end(), [](const Memory* a, const Memory* b) { return a->first < b->first; });
  std::vector<Slot> slots;
  for (Memory* memory : used) {
    Slot* slot = choose(slots, *memory, groups, apart);
    if (!slot) slot = &slots.emplace_back();
    slot->bytes = std::max(slot->bytes, (memory->bytes + kLineBytes - 1) / kLineBytes * kLineBytes);
    slot->last = memory;
    slot->all.push_back(memory);
  }
  const auto own = [apart](const Slot& slot) { return apart && slot.last->own_bytes; };
  std::stable_partition(slots.begin(), slots.end(), own);  // first: whole pages, as the memory begins with one
  size_t total = 0;
  for (const Slot& slot : slots) total += slot.bytes + (own(slot) ? kSmallPage : kGapBytes);
  auto pages = allocate_pages(total);
  if (!pages) return pages.error();
  if (apart) keep_small(pages.value());
  Placed placed{pages.value(), {}};
  std::byte* at = placed.pages.data;
  for (const Slot& slot : slots) {
    for (Memory* memory : slot.all) memory->data = at;
    if (own(slot)) placed.own.push_back({at, slot.last->own_bytes});
    const size_t gap = own(slot) ? kSmallPage : kGapBytes;
    forbid(at + slot.bytes, gap);
    at += slot.bytes + gap;
  }
  return placed;
}

}  // namespace homenode
