// How operations go through the matrices of a layer's state: a thread has the same panels of all sequences, whose
// memory it touched first; and what is copied to other slots while a sequence goes on.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "graph/operation.h"
#include "graph/step.h"
#include "operations/state_memory.h"

namespace homenode {

// Calls of_head(sequence, head, first panel, past panel) for the panels of a thread, those of a head together. States
// that begin from zeros are zeros then.
template <class OfHead>
void for_heads(const Step& step, const StateMemory& memory, int layer, int thread, int threads, OfHead&& of_head) {
  const StateShape& shape = memory.layers()[static_cast<size_t>(layer)];
  const RowRange mine = rows_of(static_cast<int>(shape.panels()), thread, threads);
  for (int64_t panel = mine.begin; panel < mine.end;) {
    const int64_t head = panel / shape.head_panels(),
                  past = std::min<int64_t>(mine.end, (head + 1) * shape.head_panels());
    for (int i = 0; i < step.sequences; ++i) {
      const auto sequence = static_cast<size_t>(i);
      for (int64_t p = panel; step.state_fresh[sequence] && p < past; ++p)
        std::memset(memory.panel(layer, p, step.state_slot[sequence]), 0,
                    static_cast<size_t>(shape.panel_floats()) * sizeof(float));
      of_head(sequence, head, panel, past);
    }
    panel = past;
  }
}

// Calls pass(first, past) for `tokens` tokens of a sequence, of which `before` precede them in the step, cut where the
// panel of its slot is to be copied.
template <class Pass>
void pass_copying(const Step& step, size_t sequence, const StateMemory& memory, int layer, int64_t panel, int before,
                  int tokens, Pass&& pass) {
  const float* const state = memory.panel(layer, panel, step.state_slot[sequence]);
  const auto bytes = static_cast<size_t>(memory.layers()[static_cast<size_t>(layer)].panel_floats()) * sizeof(float);
  int done = 0;
  for (const StateCopy& copy : step.copies_of(sequence)) {
    const int copied = copy.tokens - before;
    if (copied < 1 || copied > tokens) continue;
    if (done < copied) pass(done, copied);
    std::memcpy(memory.panel(layer, panel, copy.slot), state, bytes);
    done = copied;
  }
  if (done < tokens) pass(done, tokens);
}

inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace homenode
