#include "operations/common.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "operations/linear.h"

namespace homenode {
namespace {

// A thread's share of some rows of `columns`, divided by pieces of rows, not by rows: one token's is work for the whole
// pool.
template <class Work>
void for_pieces(int rows, int64_t columns, int thread, int threads, Work&& work) {
  constexpr int64_t kPiece = 256;
  const int64_t pieces = (columns + kPiece - 1) / kPiece;
  const RowRange mine = rows_of(static_cast<int>(rows * pieces), thread, threads);
  for (int i = mine.begin; i < mine.end; ++i)
    work(i / pieces, i % pieces * kPiece, std::min(kPiece, columns - i % pieces * kPiece));
}

}  // namespace

void EmbeddingOperation::lower(Lowering& to) {
  to.phase({"embedding",
            [table = table.get(), first = first, y = View(out)](const Step& step, int thread, int threads) {
              embedding_rows(*table, first, step.ids.data(), step.tokens, y.row(0), y.stride(), thread, threads);
            },
            true},
           {memory_of(out)});
}

void PositionRowsOperation::lower(Lowering& to) {
  to.phase({"embedding",
            [table = table.get(), first = first, y = View(out)](const Step& step, int thread, int threads) {
              embedding_rows(*table, -first, step.positions.data(), step.tokens, y.row(0), y.stride(), thread, threads);
            },
            true},
           {memory_of(out)});
}

void TypeRowsOperation::lower(Lowering& to) {
  to.phase({"embedding",
            [table = table.get(), y = View(out)](const Step& step, int thread, int threads) {
              embedding_rows(*table, 0, step.token_types.data(), step.tokens, y.row(0), y.stride(), thread, threads);
            },
            true},
           {memory_of(out)});
}

void StoredRowsOperation::lower(Lowering& to) {
  to.phase({"stored rows",
            [table = table.get(), otherwise = otherwise, y = View(out)](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(step.tokens, thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                const int id = step.ids[static_cast<size_t>(r)];
                table->read(id < table->rows() ? id : otherwise, y.row(r));
              }
            },
            true},
           {memory_of(out)});
}

void PlaceRowsOperation::lower(Lowering& to) {
  Phase phase{"rows",
              [x = View(x), first = first, adds = adds](const Step& step, int thread, int threads) {
                const RowRange mine = rows_of(step.tokens, thread, threads);
                const auto& places = step.row_places;
                const auto width = static_cast<size_t>(x.columns());
                auto at = std::lower_bound(places.begin(), places.end(), mine.begin);
                for (; at != places.end() && *at < mine.end; ++at) {
                  const float* row = step.input_rows + (at - places.begin()) * step.input_columns + first;
                  float* to = x.row(*at);
                  if (!adds) std::memcpy(to, row, width * sizeof(float));
                  for (size_t c = 0; adds && c < width; ++c) to[c] += row[c];
                }
              },
              true};
  phase.needed = [](const Step& step) { return !step.row_places.empty(); };
  to.phase(std::move(phase), {memory_of(x)});
}

void RmsNormOperation::lower(Lowering& to) {
  to.phase({"norm",
            [x = View(x), w = View(weight), y = View(out), kind = out.rows, eps = eps,
             norm = kernels(to.level()).rms_norm](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(rows_in(kind, step), thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                for (int64_t c = 0; c < x.columns(); c += w.columns())
                  norm(x.row(r) + c, w.row(0), y.row(r) + c, w.columns(), eps);
              }
            },
            true},
           {memory_of(x), memory_of(out)});
}

void SelectOperation::lower(Lowering& to) {
  to.phase({"select",
            [x = View(x), y = View(out)](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(step.sampled, thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                std::memcpy(y.row(r), x.row(step.sample_rows[static_cast<size_t>(r)]),
                            static_cast<size_t>(x.columns()) * sizeof(float));
              }
            }},
           {memory_of(x), memory_of(out)});
}

void RopeAnglesOperation::lower(Lowering& to) {
  to.phase({"angles",
            [this, y = View(out)](const Step& step, int thread, int threads) {
              const auto half = static_cast<int64_t>(frequencies.size());
              const RowRange rows = rows_of(step.tokens, thread, threads);
              const bool apart = !axes.empty() && !step.rope_positions.empty();
              for (int r = rows.begin; r < rows.end; ++r) {
                auto position = static_cast<float>(step.positions[static_cast<size_t>(r)] - behind);
                for (int64_t i = 0; i < half; ++i) {
                  if (apart) {
                    const auto at = static_cast<size_t>(axes[static_cast<size_t>(i)]) * step.ids.size();
                    position = static_cast<float>(step.rope_positions[at + static_cast<size_t>(r)] - behind);
                  }
                  const float angle = position * frequencies[static_cast<size_t>(i)];
                  y.row(r)[i] = std::cos(angle) * scale;
                  y.row(r)[half + i] = std::sin(angle) * scale;
                }
              }
            },
            true},
           {memory_of(out)});
}

namespace {

// The first elements of `half` pairs of neighbours, then the second ones, then the rest of the head.
const float* part_pairs(const float* head, int64_t half, int64_t head_dim, float* out) {
  for (int64_t i = 0; i < half; ++i) out[i] = head[2 * i], out[half + i] = head[2 * i + 1];
  std::copy(head + 2 * half, head + head_dim, out + 2 * half);
  return out;
}

}  // namespace

void RopeOperation::lower(Lowering& to) {
  to.phase({"rope",
            [x = View(x), angles = View(angles), y = View(out), head_dim = head_dim, adjacent = adjacent,
             rotate = kernels(to.level()).rotate](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(step.tokens, thread, threads);
              const int64_t half = angles.columns() / 2;
              float apart[kMostHead];
              for (int r = rows.begin; r < rows.end; ++r) {
                for (int64_t c = 0; c < x.columns(); c += head_dim) {
                  const float* head = x.row(r) + c;
                  if (adjacent) head = part_pairs(head, half, head_dim, apart);
                  rotate(head, y.row(r) + c, angles.row(r), half, head_dim);
                }
              }
            },
            true},
           {memory_of(x), memory_of(angles), memory_of(out)});
}

void GateOperation::fuse_producers() {
  if (up.value) return;
  auto* product = maker_of<LinearOperation>(gate_up);
  if (!product || !product->can_gate()) return;
  product->fused = true;
  product_ = product;
}

bool GateOperation::fill(LinearOperation* reader) {
  if (product_) reader_ = reader;
  return product_;
}

void GateOperation::lower(Lowering& to) {
  if (product_) return product_->lower_gated(to, gate, out, reader_);
  const int64_t half = out.columns;
  Tensor factor = up.value ? up : gate_up;
  if (!up.value) factor.begin += half;
  to.phase({"gate",
            [=, x = View(gate_up), z = View(factor), y = View(out), kind = out.rows,
             multiply = gate_kernel(gate, to.level())](const Step& step, int thread, int threads) {
              for_pieces(rows_in(kind, step), half, thread, threads, [&](int64_t row, int64_t begin, int64_t count) {
                multiply(x.row(row) + begin, z.row(row) + begin, y.row(row) + begin, count);
              });
            }},
           {memory_of(gate_up), memory_of(factor), memory_of(out)});
}

void ActivateOperation::fuse_producers() {
  auto* product = maker_of<LinearOperation>(x);
  if (!product || product->has_residual()) return;
  product->fused = true;
  product_ = product;
}

void ActivateOperation::lower(Lowering& to) {
  if (product_) return product_->lower_activated(to, how, out);
  to.phase({"activation",
            [=, x = View(x), y = View(out), kind = out.rows, activate = gate_kernel(how, to.level())](
                const Step& step, int thread, int threads) {
              for_pieces(rows_in(kind, step), x.columns(), thread, threads,
                         [&](int64_t row, int64_t begin, int64_t count) {
                           activate(x.row(row) + begin, nullptr, y.row(row) + begin, count);
                         });
            }},
           {memory_of(x), memory_of(out)});
}

void AddOperation::fuse_producers() {
  if (auto* norm = maker_of<RmsNormOperation>(y)) {
    norm->fused = true;
    norm_ = norm;
  }
  selected_ = take_selection(x);
}

void AddOperation::lower(Lowering& to) {
  const auto add = [x = View(x), sum = View(out), selected = selected_](const Step& step, int row, const float* y) {
    const float* from = x.row(selected ? step.sample_rows[static_cast<size_t>(row)] : row);
    for (int64_t c = 0; c < x.columns(); ++c) sum.row(row)[c] = from[c] + y[c];
  };
  if (!norm_) {
    const bool to_all = y.rows == RowKind::fixed && y.fixed_rows == 1;
    return to.phase({"add",
                     [=, y = View(y), kind = out.rows](const Step& step, int thread, int threads) {
                       const RowRange rows = rows_of(rows_in(kind, step), thread, threads);
                       for (int r = rows.begin; r < rows.end; ++r) add(step, r, y.row(to_all ? 0 : r));
                     },
                     !selected_},
                    {memory_of(x), memory_of(y), memory_of(out)});
  }
  to.phase({"add norm",
            [=, y = View(norm_->x), w = View(norm_->weight), z = View(out), eps = norm_->eps, kind = out.rows,
             norm = kernels(to.level()).rms_norm](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(rows_in(kind, step), thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                for (int64_t c = 0; c < y.columns(); c += w.columns())
                  norm(y.row(r) + c, w.row(0), z.row(r) + c, w.columns(), eps);
                add(step, r, z.row(r));
              }
            },
            !selected_},
           {memory_of(x), memory_of(norm_->x), memory_of(out)});
}

}  // namespace homenode
