#include "kernels/linear_rounded.h"

#include <algorithm>

namespace homenode {
namespace {

int64_t parts_of(int64_t columns) { return (columns + kPartColumns - 1) / kPartColumns; }

bool is_bf16(const Weight* w) { return w->format == Format::bf16; }

}  // namespace

bool takes_rounded(const LinearTable& table, const Weight& w) { return table.round && is_bf16(&w); }

bool any_takes_rounded(const LinearTable& table, const LinearArgs& a) { return table.round && std::any_of(a.weights, a.weights + a.count, is_bf16); }

// An odd number of cache lines, so that the rows of a tile never compete for the same few places of the nearest cache.
size_t rounded_row_bytes(int64_t columns) { return size_t(parts_of(columns) | 1) * kPartColumns * sizeof(uint16_t); }

size_t rounded_bytes(int64_t tokens, int64_t columns, const Weight* const* weights, int count) {
  return std::any_of(weights, weights + count, is_bf16) ? size_t(tokens) * rounded_row_bytes(columns) : 0;
}

void round_share(const LinearArgs& a, const LinearTable& table, uint8_t* out, int thread, int threads) {
  const int64_t columns = a.weights[0]->columns, parts = parts_of(columns), all = a.tokens * parts, end = all * (thread + 1) / threads;
  for (int64_t i = all * thread / threads; i < end;) {
    const int64_t token = i / parts, part = i % parts, now = std::min(parts - part, end - i), column = part * kPartColumns;
    auto* row = reinterpret_cast<uint16_t*>(out + size_t(token) * rounded_row_bytes(columns));
    table.round(a.x + token * a.x_stride + column, std::min(now * kPartColumns, columns - column), row + column);
    i += now;
  }
}

}  // namespace homenode
