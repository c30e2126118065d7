#include "operations/scan.h"

#include "kernels/kernels.h"
#include "operations/state_panels.h"

namespace homenode {

void ScanOperation::lower(Lowering& to) {
  to.phase({"selective scan",
            [this, kernels = &kernels(to.level())](const Step& step, int thread, int threads) {
              for_heads(step, *memory, params.layer, thread, threads,
                        [&](size_t sequence, int64_t head, int64_t first, int64_t past) {
                          compute_head(step, sequence, head, first, past, *kernels);
                        });
            }},
           {memory_of(xbc), memory_of(dt), memory_of(out)});
}

void ScanOperation::compute_head(const Step& step, size_t sequence, int64_t head, int64_t first_panel,
                                 int64_t past_panel, const Kernels& kernels) const {
  const int64_t width = shape().key_width, inner = shape().heads * shape().value_width,
                groups = (xbc.columns - inner) / (2 * width), group = (params.first + head) / params.per_group;
  const int64_t inputs = inner + group * width, outputs = inputs + groups * width;
  const View rows(xbc), steps(dt), found(out);
  const float weight = View(decay_weight).row(0)[head], bias = View(decay_bias).row(0)[head];
  const int begin = step.query_start[sequence], end = step.query_start[sequence + 1];
  float decay[kChunk], share[kChunk];
  for (int first = begin; first < end; first += kChunk) {
    const int tokens = std::min(kChunk, end - first);
    for (int t = 0; t < tokens; ++t) {
      share[t] = softplus(steps.row(first + t)[head] + bias);
      decay[t] = std::exp(weight * share[t]);
    }
    for (int64_t panel = first_panel; panel < past_panel; ++panel) {
      const int64_t place = panel % shape().head_panels() * kPanel, column = head * shape().value_width + place;
      const auto pass = [&](int from, int past) {
        const float* row = rows.row(first + from);
        kernels.selective_scan({past - from, static_cast<int>(width), row + outputs, row + inputs, row + column,
                                rows.stride(), decay + from, share + from, View(skip).row(0)[head],
                                found.row(first + from) + column, found.stride(),
                                static_cast<int>(std::min(kPanel, shape().value_width - place)),
                                memory->panel(params.layer, panel, step.state_slot[sequence])});
      };
      pass_copying(step, sequence, *memory, params.layer, panel, first - begin, tokens, pass);
    }
  }
}

}  // namespace homenode
