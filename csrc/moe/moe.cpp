#include "moe/moe.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/kernels.h"
#include "linear/gated.h"
#include "moe/routes.h"

namespace homenode {
namespace {

const float* bias_of(const std::vector<const float*>& biases, size_t expert) {
  return biases.empty() ? nullptr : biases[expert];
}

int64_t block_of(const LinearTable& table, const GroupProduct& product, int64_t slots) {
  return block_tokens(table, slots, std::max<int64_t>(static_cast<int64_t>(product.rows().stride), 1));
}

// activation(gate, up) of one expert's slots, for the rows of one piece.
class GateUp {
 public:
  GateUp(const MoeInput& input, const PreparedRows& to, const Experts& experts, const LinearTable& table)
      : gate_rows_(input.gate_rows()),
        up_rows_(input.up_rows()),
        to_(to),
        experts_(experts),
        table_(table),
        gate_mul_(gate_kernel(experts.activation, current_level())) {}

  void multiply(size_t expert, size_t piece, int thread, int64_t begin, int64_t end) const {
    const Weight &gate = *experts_.gate[expert], &up = *experts_.up[expert];
    const float* const biases[2] = {bias_of(experts_.gate_bias, expert), bias_of(experts_.up_bias, expert)};
    const GroupProduct gates(gate, gate_rows_, table_), ups(up, up_rows_, table_);
    const Weight::Piece& rows = gate.pieces[piece];  // up's has the same
    GatedGroups groups(gates, experts_.gated ? &ups : nullptr, to_, gate_mul_, table_,
                       biases[0] || biases[1] ? biases : nullptr);
    const GatedGroups::Piece both{gate.data(piece, thread), up.data(piece, thread), rows.row_begin, rows.row_end};
    const int64_t block = std::min(block_of(table_, gates, end - begin), block_of(table_, ups, end - begin));
    for (int64_t from = begin; from < end; from += block) {
      groups.multiply(both, 0, ceiling_of(rows.row_end - rows.row_begin, kGroupRows), from,
                      std::min(from + block, end));
    }
  }

 private:
  ActivationRows gate_rows_, up_rows_;
  const PreparedRows& to_;
  const Experts& experts_;
  const LinearTable& table_;
  const GateKernel gate_mul_;
};

// Adds what one expert makes of its slots to their tokens, for the rows of one piece of down, whose groups lie at
// `groups`. `bias`: of its outputs, or null.
void add_expert(const MoeArgs& a, const MoeMemory& m, const GroupProduct& product, const Weight::Piece& piece,
                const uint8_t* groups, const float* bias, int64_t begin, int64_t end) {
  alignas(64) float sums[(kTokensAtOnce + kSpareRows) * kGroupRows];
  const int64_t block = block_of(linear_table(current_level()), product, end - begin);
  for (int64_t from = begin; from < end; from += block) {
    const int64_t to = std::min(from + block, end);
    const uint8_t* group = groups;
    for (int64_t row = piece.row_begin; row < piece.row_end; row += kGroupRows, group += product.group_bytes()) {
      const int64_t rows = std::min<int64_t>(kGroupRows, piece.row_end - row);
      for (int64_t slot = from; slot < to; slot += kTokensAtOnce) {
        const int64_t count = std::min(kTokensAtOnce, to - slot);
        product.multiply(group, 1, slot, count, sums);
        for (int64_t i = 0; i < count; ++i) {
          const int64_t route = m.list.route(slot + i);
          const float weight = m.weights[route];
          float* values = sums + i * kGroupRows;
          float* out = a.out + route / a.plan->routing.chosen * a.out_stride + row;
          for (int64_t r = 0; bias && r < rows; ++r) values[r] += bias[row + r];
          for (int64_t r = 0; r < rows; ++r) out[r] += weight * values[r];
        }
      }
    }
  }
}

}  // namespace

void moe_route(const MoeArgs& a, int thread, int threads) {
  const MoeMemory m = memory_of(a, thread);
  const MoeInput input(a, m);
  const int64_t begin = a.tokens * thread / threads, end = a.tokens * (thread + 1) / threads;
  input.prepare(thread, threads);
  // All of it: a router has too few rows to share out
  if (a.plan->source.router && begin < end) input.multiply_router(begin, end, 0, 1);
  choose_all(a, m, begin, end);
}

void moe_logits(const MoeArgs& a, int thread, int threads) {
  const MoeMemory m = memory_of(a, thread);
  const MoeInput input(a, m);
  input.prepare(0, 1);
  input.multiply_router(0, a.tokens, thread, threads);
}

void moe_gather(const MoeArgs& a, int thread, int threads) {
  MoeMemory m = memory_of(a, thread);
  m.list.sort(m.indices, a.routes());
  const int64_t slots = m.list.slots();
  MoeInput(a, m).gather(slots * thread / threads, slots * (thread + 1) / threads);
}

void moe_gate_up(const MoeArgs& a, int thread, int threads) {
  MoeMemory m = memory_of(a, thread);
  const MoeInput input(a, m);
  if (moe_is_few(a.tokens)) {
    choose_all(a, m, 0, a.tokens);
    m.list.sort(m.indices, a.routes());
    if (!a.plan->source.router) input.prepare(0, 1);
    if (a.tokens > 1) input.gather(0, m.list.slots());
  }
  const LinearTable& table = linear_table(current_level());
  const Experts& experts = a.plan->experts;
  const PreparedRows inner = prepared_rows(inner_product(a, m), table);
  const GateUp product(input, inner, experts, table);
  for (size_t e = 0; e < experts.gate.size(); ++e) {
    const int64_t begin = m.list.begin(static_cast<int>(e)), end = m.list.end(static_cast<int>(e));
    if (begin == end) continue;
    if (thread == 0) a.plan->count(static_cast<int>(e), end - begin);
    for (size_t p = static_cast<size_t>(thread); p < experts.gate[e]->pieces.size();
         p += static_cast<size_t>(threads)) {
      product.multiply(e, p, thread, begin, end);
    }
  }
}

void moe_down(const MoeArgs& a, int thread, int threads) {
  const MoeMemory m = memory_of(a, thread);
  const Experts& experts = a.plan->experts;
  const LinearTable& table = linear_table(current_level());
  const LinearArgs inner = inner_product(a, m);
  const auto& pieces = experts.down[0]->pieces;
  for (size_t p = static_cast<size_t>(thread); p < pieces.size(); p += static_cast<size_t>(threads)) {
    const int64_t row = pieces[p].row_begin, rows = pieces[p].row_end - row;
    for (int64_t t = 0; t < a.tokens && rows > 0; ++t) {
      float* to = a.out + t * a.out_stride + row;
      if (a.residual)
        std::memcpy(to, a.residual + t * a.residual_stride + row, static_cast<size_t>(rows) * sizeof(float));
      else std::fill_n(to, rows, 0.0f);
    }
    for (size_t e = 0; e < experts.down.size(); ++e) {
      const int64_t begin = m.list.begin(static_cast<int>(e)), end = m.list.end(static_cast<int>(e));
      if (begin == end) continue;
      const Weight& down = *experts.down[e];
      add_expert(a, m, GroupProduct(down, rows_for(inner, down, table), table), down.pieces[p], down.data(p, thread),
                 bias_of(experts.down_bias, e), begin, end);
    }
  }
}

namespace {

Error misfit(const std::string& message) { return Error{Fault::user, 0, "moe: " + message}; }

std::string shape_of(const Weight& w) {
  return std::string(format_name(w.format)) + " " + std::to_string(w.rows) + " x " + std::to_string(w.columns);
}

bool alike(const Weight& a, const Weight& b) {
  const auto same_rows = [](const Weight::Piece& p, const Weight::Piece& q) {
    return p.row_begin == q.row_begin && p.row_end == q.row_end;
  };
  return a.rows == b.rows && a.columns == b.columns &&
         std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(), same_rows);
}

std::optional<Error> check_alike(const std::vector<const Weight*>& matrices) {
  for (const Weight* w : matrices) {
    if (w->format != matrices[0]->format || !alike(*w, *matrices[0])) {
      return misfit("experts of one shape and format are needed; seen " + shape_of(*matrices[0]) + " and " +
                    shape_of(*w));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> check_experts(const Experts& experts) {
  if (experts.gate.empty() || experts.up.size() != experts.gate.size() || experts.down.size() != experts.gate.size()) {
    return misfit("gate, up and down matrices of " + std::to_string(experts.gate.size()) + ", " +
                  std::to_string(experts.up.size()) + " and " + std::to_string(experts.down.size()) +
                  " experts; wanted as many of each, and at least one");
  }
  for (const auto* matrices : {&experts.gate, &experts.up, &experts.down}) {
    if (auto error = check_alike(*matrices)) return error;
  }
  const Weight &gate = *experts.gate[0], &up = *experts.up[0], &down = *experts.down[0];
  if (!alike(gate, up) || down.rows != gate.columns || down.columns != gate.rows) {
    return misfit("an expert of gate " + shape_of(gate) + ", up " + shape_of(up) + " and down " + shape_of(down) +
                  "; the shapes do not fit each other");
  }
  return std::nullopt;
}

}  // namespace homenode
