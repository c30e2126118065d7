#include "operations/delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "operations/state_panels.h"

namespace homenode {
namespace {

constexpr float kNormEpsilon = 1e-6f;  // of the lengths of queries and keys

// out = x * factor / its length.
void normalise(const float* x, int64_t width, float factor, float* out, const Kernels& kernels) {
  const auto length = static_cast<float>(width);
  const float scale = kernels.rms_scale(x, width, kNormEpsilon / length) * (factor / std::sqrt(length));
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] * scale;
}

}  // namespace

void ConvolutionOperation::lower(Lowering& to) {
  to.phase({"convolution",
            [this, kernels = &kernels(to.level())](const Step& step, int thread, int threads) {
              const int64_t channels = x.columns;
              const RowRange mine = rows_of(static_cast<int>((channels + kPanel - 1) / kPanel), thread, threads);
              const int64_t first = mine.begin * kPanel, past = std::min(channels, mine.end * kPanel);
              if (first >= past) return;
              for (int i = 0; i < step.sequences; ++i) convolve_sequence(step, i, *kernels, first, past - first);
            }},
           {memory_of(x), memory_of(out)});
}

void ConvolutionOperation::convolve_sequence(const Step& step, int sequence, const Kernels& kernels, int64_t first,
                                             int64_t count) const {
  const auto i = static_cast<size_t>(sequence);
  const int begin = step.query_start[i], tokens = step.query_start[i + 1] - begin, slot = step.state_slot[i];
  const auto taps = static_cast<int>(memory->layers()[static_cast<size_t>(layer)].taps);
  const View rows(x), found(out);
  // What the channels were `token` tokens behind the step's first, or before it; null: there was no such token.
  const auto input = [&](int token) -> const float* {
    if (token >= 0) return rows.row(begin + token) + first;
    return step.state_fresh[i] ? nullptr : memory->tail(layer, slot, taps + token) + first;
  };
  // The tail after so many tokens of the step. Where it is written in place every tap moves to an earlier one.
  const auto keep = [&](int done, int to) {
    for (int tap = 0; tap < taps; ++tap) {
      float* const kept = memory->tail(layer, to, tap) + first;
      const float* const from = input(done - taps + tap);
      if (from) std::memmove(kept, from, static_cast<size_t>(count) * sizeof(float));
      else std::memset(kept, 0, static_cast<size_t>(count) * sizeof(float));
    }
  };
  std::vector<const float*> inputs(static_cast<size_t>(taps) + 1);
  for (int t = 0; t < tokens; ++t) {
    for (int j = 0; j <= taps; ++j) inputs[static_cast<size_t>(j)] = input(t - taps + j);
    kernels.convolve({taps + 1, inputs.data(), weights.data() + first, x.columns,
                      biases.empty() ? nullptr : biases.data() + first, silu, found.row(begin + t) + first, count});
  }
  for (const StateCopy& copy : step.copies_of(i)) keep(copy.tokens, copy.slot);
  keep(tokens, slot);
}

void DeltaOperation::lower(Lowering& to) {
  const auto width = static_cast<size_t>(shape().key_width);
  Memory* own = to.own_scratch((2 * width + decays() + 1) * kChunk * sizeof(float));
  to.phase({"delta rule",
            [this, own, kernels = &kernels(to.level())](const Step& step, int thread, int threads) {
              auto* scratch = reinterpret_cast<float*>(own->data + own->own_bytes * static_cast<size_t>(thread));
              for_heads(step, *memory, params.layer, thread, threads,
                        [&](size_t sequence, int64_t head, int64_t first, int64_t past) {
                          compute_head(step, sequence, head, first, past, *kernels, scratch);
                        });
            }},
           {memory_of(qkv), memory_of(beta), memory_of(decay), memory_of(out), own});
}

void DeltaOperation::compute_head(const Step& step, size_t sequence, int64_t head, int64_t first_panel,
                                  int64_t past_panel, const Kernels& kernels, float* scratch) const {
  const int64_t width = shape().key_width;
  const int begin = step.query_start[sequence], end = step.query_start[sequence + 1];
  for (int first = begin; first < end; first += kChunk) {
    const Chunk chunk{
        scratch, scratch + width * kChunk,     scratch + (2 * width + 1) * kChunk, scratch + 2 * width * kChunk,
        first,   std::min(kChunk, end - first)};
    load(chunk, head, kernels);
    for (int64_t panel = first_panel; panel < past_panel; ++panel) compute_panel(step, sequence, chunk, panel, kernels);
  }
}

void DeltaOperation::load(const Chunk& chunk, int64_t head, const Kernels& kernels) const {
  const int64_t width = shape().key_width, keys = params.key_heads, heads = shape().heads,
                key_head = params.interleaved ? head % keys : head / (heads / keys);
  const View rows(qkv), betas(beta), faded(decay);
  const auto each = static_cast<int64_t>(decays());
  const float weight = View(decay_weight).row(0)[head], *bias = View(decay_bias).row(0) + head * each;
  for (int t = 0; t < chunk.tokens; ++t) {
    const float* q = rows.row(chunk.first + t) + key_head * width;
    normalise(q, width, 1.0f / std::sqrt(static_cast<float>(width)), chunk.q + t * width, kernels);
    normalise(q + keys * width, width, 1.0f, chunk.k + t * width, kernels);
    const float* given = faded.row(chunk.first + t) + head * each;
    for (int64_t i = 0; i < each; ++i) chunk.decay[t * each + i] = std::exp(weight * softplus(given[i] + bias[i]));
    chunk.beta[t] = params.gain / (1.0f + std::exp(-betas.row(chunk.first + t)[head]));
  }
}

void DeltaOperation::compute_panel(const Step& step, size_t sequence, const Chunk& chunk, int64_t panel,
                                   const Kernels& kernels) const {
  const int64_t width = shape().key_width, of_head = shape().head_panels(), head = panel / of_head,
                column = head * shape().value_width + panel % of_head * kPanel;
  const View rows(qkv), found(out);
  float* const state = memory->panel(params.layer, panel, step.state_slot[sequence]);
  const auto pass = [&](int first, int past) {
    const int row = chunk.first + first;
    kernels.delta_rule(
        {past - first, static_cast<int>(width), chunk.q + first * width, chunk.k + first * width,
         chunk.decay + first * static_cast<int64_t>(decays()), chunk.beta + first,
         rows.row(row) + 2 * params.key_heads * width + column, rows.stride(), found.row(row) + column, found.stride(),
         static_cast<int>(std::min(kPanel, shape().value_width - panel % of_head * kPanel)), state, by_row()});
  };
  pass_copying(step, sequence, *memory, params.layer, panel, chunk.first - step.query_start[sequence], chunk.tokens,
               pass);
}

}  // namespace homenode
