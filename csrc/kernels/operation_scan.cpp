#include "kernels/operation_scan.h"

#include "kernels/kernels.h"
#include "kernels/state_panels.h"

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

void GroupedNormOperation::lower(Lowering& to) {
  to.phase({"grouped norm",
            [this, x = View(x), w = View(weight), y = View(out), kind = out.rows, norm = kernels(to.level()).rms_norm](
                const Step& step, int thread, int threads) {
              const int64_t groups = x.columns() / width;
              const RowRange mine = rows_of(static_cast<int>(rows_in(kind, step) * groups), thread, threads);
              for (int64_t i = mine.begin; i < mine.end; ++i) {
                const int64_t row = i / groups, column = i % groups * width;
                norm(x.row(row) + column, w.row(0) + column, y.row(row) + column, width, eps);
              }
            }},
           {memory_of(x), memory_of(out)});
}

void MultiplyOperation::lower(Lowering& to) {
  to.phase({"multiply",
            [x = View(x), z = View(y), to_rows = View(out), kind = out.rows,
             to_all = y.rows == RowKind::fixed && y.fixed_rows == 1,
             multiply = kernels(to.level()).multiply_rows](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(rows_in(kind, step), thread, threads);
              for (int r = rows.begin; r < rows.end; ++r)
                multiply(x.row(r), z.row(to_all ? 0 : r), to_rows.row(r), x.columns());
            },
            true},
           {memory_of(x), memory_of(y), memory_of(out)});
}

}  // namespace homenode
