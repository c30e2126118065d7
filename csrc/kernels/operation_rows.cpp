#include "kernels/operation_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/operation_linear.h"

namespace homenode {

void EmbeddingOperation::lower(Lowering& to) {
  to.phase({"embedding", [table = table.get(), first = first, y = View(out)](const Step& step, int thread, int threads) {
              embedding_rows(*table, first, step.ids.data(), step.tokens, y.row(0), y.stride(), thread, threads);
            }, true},
           {memory_of(out)});
}

void RmsNormOperation::lower(Lowering& to) {
  to.phase({"norm", [x = View(x), w = View(weight), y = View(out), kind = out.rows, eps = eps, norm = kernels(to.level()).rms_norm](
                        const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(rows_in(kind, step), thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                for (int64_t c = 0; c < x.columns(); c += w.columns()) norm(x.row(r) + c, w.row(0), y.row(r) + c, w.columns(), eps);
              }
            }, true},
           {memory_of(x), memory_of(out)});
}

void SelectOperation::lower(Lowering& to) {
  to.phase({"select", [x = View(x), y = View(out)](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(step.sampled, thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                std::memcpy(y.row(r), x.row(step.sample_rows[static_cast<size_t>(r)]), static_cast<size_t>(x.columns()) * sizeof(float));
              }
            }},
           {memory_of(x), memory_of(out)});
}

void RopeAnglesOperation::lower(Lowering& to) {
  to.phase({"angles", [this, y = View(out)](const Step& step, int thread, int threads) {
              const auto half = static_cast<int64_t>(frequencies.size());
              const RowRange rows = rows_of(step.tokens, thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                const auto position = static_cast<float>(step.positions[static_cast<size_t>(r)]);
                for (int64_t i = 0; i < half; ++i) {
                  const float angle = position * frequencies[static_cast<size_t>(i)];
                  y.row(r)[i] = std::cos(angle) * scale;
                  y.row(r)[half + i] = std::sin(angle) * scale;
                }
              }
            }, true},
           {memory_of(out)});
}

void RopeOperation::lower(Lowering& to) {
  to.phase({"rope", [x = View(x), angles = View(angles), y = View(out), head_dim = head_dim, rotate = kernels(to.level()).rotate](
                        const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(step.tokens, thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                for (int64_t c = 0; c < x.columns(); c += head_dim) rotate(x.row(r) + c, y.row(r) + c, angles.row(r), angles.columns() / 2, head_dim);
              }
            }, true},
           {memory_of(x), memory_of(angles), memory_of(out)});
}

void SiluMulOperation::take_over() {
  auto* product = maker_of<LinearOperation>(gate_up);
  if (!product || !product->can_gate()) return;
  product->taken_over = true;
  product_ = product;
}

bool SiluMulOperation::fill(LinearOperation* reader) {
  if (product_) reader_ = reader;
  return product_;
}

void SiluMulOperation::lower(Lowering& to) {
  if (product_) return product_->lower_gated(to, out, reader_);
  const int64_t half = out.columns;
  // Divided by pieces of rows, not by rows: one token's gate is work for the whole team.
  to.phase({"silu", [=, x = View(gate_up), y = View(out), kind = out.rows, silu = kernels(to.level()).silu_mul](const Step& step, int thread, int threads) {
              constexpr int64_t kPiece = 256;
              const int64_t pieces = (half + kPiece - 1) / kPiece;
              const RowRange mine = rows_of(static_cast<int>(rows_in(kind, step) * pieces), thread, threads);
              for (int i = mine.begin; i < mine.end; ++i) {
                const int64_t row = i / pieces, begin = i % pieces * kPiece;
                silu(x.row(row) + begin, x.row(row) + half + begin, y.row(row) + begin, std::min(kPiece, half - begin));
              }
            }},
           {memory_of(gate_up), memory_of(out)});
}

}  // namespace homenode
