#include "kernels/moe.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/kernels.h"
#include "kernels/linear_group.h"
#include "kernels/moe_routes.h"

namespace homenode {
namespace {

// x on its way into gate and up.
struct InputProduct {
  const Weight* weights[2];
  LinearArgs args;
  explicit InputProduct(const MixtureArgs& a)
      : weights{a.experts->gate[0], a.experts->up[0]}, args{a.x, a.x_stride, a.tokens, weights, 2, nullptr, nullptr, 0, nullptr, 0, a.scratch} {}
  InputProduct(const InputProduct&) = delete;
};

// The gated values, a row for each slot, on their way into down.
LinearArgs inner_product(const MixtureArgs& a) {
  return {a.memory->inner, a.memory->inner_stride, a.routes(), a.experts->down.data(), 1, nullptr, nullptr, 0, nullptr, 0, a.scratch};
}

// Copies the activations of this thread's share of the slots to their places.
void gather_rows(const ActivationRows& rows, const MixtureArgs& a, const RouteList& list, int64_t begin, int64_t end, uint8_t* to) {
  const GatheredRow row = gathered_row(rows, a.x);
  for (int64_t slot = begin; slot < end; ++slot) {
    const int64_t token = list.route(slot) / a.chosen;
    std::memcpy(to + static_cast<size_t>(slot) * row.stride, rows.data + static_cast<size_t>(token) * rows.stride, row.bytes);
  }
}

// Activations by slot. The only token of a step is the same row for each of its experts, so that it stays where it is.
ActivationRows by_slot(ActivationRows rows, const MixtureArgs& a, const uint8_t* gathered) {
  if (!mixture_needs_gather(a)) {
    rows.stride = 0;
    return rows;
  }
  rows.stride = gathered_row(rows, a.x).stride;
  rows.data = gathered;
  return rows;
}

// Multiplies slots begin .. end - 1 with the groups of a piece. sink(row, rows, slot, count, sums): the sums [count, 32] of these rows and slots.
template <class Sink>
void multiply_piece(const GroupProduct& product, const Weight::Piece& piece, int64_t begin, int64_t end, Sink&& sink) {
  alignas(64) float sums[kTokensAtOnce * kGroupRows];
  const int64_t block = block_tokens(end - begin, std::max<int64_t>(static_cast<int64_t>(product.rows().stride), 1));
  for (int64_t from = begin; from < end; from += block) {
    const int64_t to = std::min(from + block, end);
    const uint8_t* group = piece.data;
    for (int64_t row = piece.row_begin; row < piece.row_end; row += kGroupRows, group += product.group_bytes()) {
      for (int64_t slot = from; slot < to; slot += kTokensAtOnce) {
        const int64_t count = std::min(kTokensAtOnce, to - slot);
        std::fill(sums, sums + count * kGroupRows, 0.0f);
        product.multiply(group, slot, count, sums);
        sink(row, std::min<int64_t>(kGroupRows, piece.row_end - row), slot, count, static_cast<const float*>(sums));
      }
    }
  }
}

}  // namespace

size_t mixture_scratch_bytes(const Experts& experts, int chosen, int64_t max_tokens) {
  const Weight* inputs[] = {experts.gate[0], experts.up[0]};
  return std::max(linear_scratch_bytes(max_tokens, experts.columns(), inputs, 2),
                  linear_scratch_bytes(max_tokens * chosen, experts.inner(), experts.down.data(), 1));
}

void mixture_route(const MixtureArgs& a, int thread, int threads) {
  const MixtureMemory& m = *a.memory;
  const int64_t end = a.tokens * (thread + 1) / threads;
  for (int64_t t = a.tokens * thread / threads; t < end; ++t) {
    choose_experts(a.logits + t * a.logits_stride, a.experts->count(), a.chosen, a.normalise, m.indices + t * a.chosen, m.weights + t * a.chosen);
  }
  const InputProduct input(a);
  if (linear_needs_prepare(input.args)) linear_prepare(input.args, thread, threads);
}

void mixture_gather(const MixtureArgs& a, int thread, int threads) {
  const MixtureMemory& m = *a.memory;
  RouteList list(m, thread, a.experts->count());
  list.sort(m.indices, a.routes());
  const LinearTable& table = linear_table(current_level());
  const InputProduct input(a);
  const int64_t begin = a.routes() * thread / threads, end = a.routes() * (thread + 1) / threads;
  gather_rows(rows_for(input.args, *input.weights[0], table), a, list, begin, end, m.gathered);
  if (m.gathered_up != m.gathered) gather_rows(rows_for(input.args, *input.weights[1], table), a, list, begin, end, m.gathered_up);
}

void mixture_gate_up(const MixtureArgs& a, int thread, int threads) {
  const MixtureMemory& m = *a.memory;
  const Experts& experts = *a.experts;
  RouteList list(m, thread, experts.count());
  if (!mixture_needs_gather(a)) list.sort(m.indices, a.routes());
  const LinearTable& table = linear_table(current_level());
  const auto silu_mul = kernels(current_level()).silu_mul;
  const InputProduct input(a);
  const ActivationRows gate_rows = by_slot(rows_for(input.args, *input.weights[0], table), a, m.gathered);
  const ActivationRows up_rows = by_slot(rows_for(input.args, *input.weights[1], table), a, m.gathered_up);
  for (int e = 0; e < experts.count(); ++e) {
    const int64_t begin = list.begin(e), end = list.end(e);
    if (begin == end) continue;
    const Weight &gate = *experts.gate[static_cast<size_t>(e)], &up = *experts.up[static_cast<size_t>(e)];
    const GroupProduct gates(gate, gate_rows, table), ups(up, up_rows, table);
    for (size_t p = static_cast<size_t>(thread); p < gate.pieces.size(); p += static_cast<size_t>(threads)) {
      // All of the gate first: each matrix is one sequential stream.
      multiply_piece(gates, gate.pieces[p], begin, end, [&](int64_t row, int64_t rows, int64_t slot, int64_t count, const float* sums) {
        for (int64_t i = 0; i < count; ++i, sums += kGroupRows) {
          std::memcpy(m.inner + (slot + i) * m.inner_stride + row, sums, static_cast<size_t>(rows) * sizeof(float));
        }
      });
      multiply_piece(ups, up.pieces[p], begin, end, [&](int64_t row, int64_t rows, int64_t slot, int64_t count, const float* sums) {
        for (int64_t i = 0; i < count; ++i, sums += kGroupRows) {
          float* inner = m.inner + (slot + i) * m.inner_stride + row;
          silu_mul(inner, sums, inner, rows);
        }
      });
    }
  }
}

bool mixture_needs_prepare(const MixtureArgs& a) { return linear_needs_prepare(inner_product(a)); }

void mixture_prepare(const MixtureArgs& a, int thread, int threads) { linear_prepare(inner_product(a), thread, threads); }

void mixture_down(const MixtureArgs& a, int thread, int threads) {
  const MixtureMemory& m = *a.memory;
  const Experts& experts = *a.experts;
  const RouteList list(m, thread, experts.count());
  const LinearTable& table = linear_table(current_level());
  const LinearArgs inner = inner_product(a);
  const Weight& first = *experts.down[0];
  for (size_t p = static_cast<size_t>(thread); p < first.pieces.size(); p += static_cast<size_t>(threads)) {
    const int64_t begin = first.pieces[p].row_begin, end = first.pieces[p].row_end;
    for (int64_t t = 0; t < a.tokens && begin < end; ++t) {
      std::memcpy(a.out + t * a.out_stride + begin, a.residual + t * a.residual_stride + begin, static_cast<size_t>(end - begin) * sizeof(float));
    }
    for (int e = 0; e < experts.count(); ++e) {
      if (list.begin(e) == list.end(e)) continue;
      const Weight& down = *experts.down[static_cast<size_t>(e)];
      const GroupProduct product(down, rows_for(inner, down, table), table);
      multiply_piece(product, down.pieces[p], list.begin(e), list.end(e), [&](int64_t row, int64_t rows, int64_t slot, int64_t count, const float* sums) {
        for (int64_t i = 0; i < count; ++i, sums += kGroupRows) {
          const int64_t route = list.route(slot + i);
          const float weight = m.weights[route];
          float* out = a.out + route / a.chosen * a.out_stride + row;
          for (int64_t r = 0; r < rows; ++r) out[r] += weight * sums[r];
        }
      });
    }
  }
}

namespace {

Error misfit(const std::string& message) { return Error{Fault::user, 0, "mixture: " + message}; }

std::string shape_of(const Weight& w) { return std::string(format_name(w.format)) + " " + std::to_string(w.rows) + " x " + std::to_string(w.columns); }

bool alike(const Weight& a, const Weight& b) {
  const auto same_rows = [](const Weight::Piece& p, const Weight::Piece& q) { return p.row_begin == q.row_begin && p.row_end == q.row_end; };
  return a.rows == b.rows && a.columns == b.columns && std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(), same_rows);
}

std::optional<Error> check_alike(const std::vector<const Weight*>& matrices) {
  for (const Weight* w : matrices) {
    if (w->format != matrices[0]->format || !alike(*w, *matrices[0])) {
      return misfit("experts of one shape and format are needed; seen " + shape_of(*matrices[0]) + " and " + shape_of(*w));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> check_experts(const Experts& experts) {
  if (experts.gate.empty() || experts.up.size() != experts.gate.size() || experts.down.size() != experts.gate.size()) {
    return misfit("gate, up and down matrices of " + std::to_string(experts.gate.size()) + ", " + std::to_string(experts.up.size()) + " and " +
                  std::to_string(experts.down.size()) + " experts; wanted as many of each, and at least one");
  }
  for (const auto* matrices : {&experts.gate, &experts.up, &experts.down}) {
    if (auto error = check_alike(*matrices)) return error;
  }
  const Weight &gate = *experts.gate[0], &up = *experts.up[0], &down = *experts.down[0];
  if (!alike(gate, up) || down.rows != gate.columns || down.columns != gate.rows) {
    return misfit("an expert of gate " + shape_of(gate) + ", up " + shape_of(up) + " and down " + shape_of(down) + "; the shapes do not fit each other");
  }
  return std::nullopt;
}

}  // namespace homenode
