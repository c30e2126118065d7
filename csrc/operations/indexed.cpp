#include "operations/indexed.h"

#include <algorithm>

#include "linear/group.h"

namespace homenode {
namespace {

// Up to so many rows every thread sorts and prepares them all for itself: less work than waiting for each other.
constexpr int kFewRows = 8;

size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t list_bytes(size_t matrices, int rows) {
  return whole_lines(RouteList::length(static_cast<int>(matrices), rows) * sizeof(int32_t));
}

// How one matrix's rows are divided: thread by thread its pieces, and where it has fewer than there are threads, parts
// of the rows that it is multiplied with. Matrices follow each other round the threads then.
struct Division {
  int64_t filled = 0, parts = 1;

  Division(const Weight& w, int threads) {
    for (const Weight::Piece& piece : w.pieces) filled += piece.row_end > piece.row_begin;
    parts = std::max<int64_t>(1, threads / std::max<int64_t>(1, filled));
  }
  bool is_mine(size_t matrix, size_t piece, int64_t part, int thread, int threads) const {
    const auto turn = parts > 1 ? (part + static_cast<int64_t>(matrix)) * filled : 0;
    return (static_cast<int64_t>(piece) + turn) % threads == thread;
  }
};

}  // namespace

void AdapterIndexOperation::lower(Lowering& to) {
  Phase phase{"adapters",
              [y = View(out)](const Step& step, int thread, int threads) {
                const RowRange mine = rows_of(step.tokens, thread, threads);
                for (size_t s = 0; s < step.adapters.size(); ++s) {
                  const int end = std::min(mine.end, step.query_start[s + 1]);
                  for (int t = std::max(mine.begin, step.query_start[s]); t < end; ++t)
                    y.row(t)[0] = static_cast<float>(step.adapters[s]);
                }
              },
              true};
  phase.needed = [](const Step& step) { return !step.adapters.empty(); };
  to.phase(std::move(phase), {memory_of(out)});
}

LinearIndexedOperation::LinearIndexedOperation(Tensor from, std::vector<std::shared_ptr<const Weight>> with, Tensor by,
                                               Tensor to, bool adds)
    : x(std::move(from)), index(std::move(by)), out(std::move(to)), weights_(std::move(with)), adds_(adds) {
  for (const auto& weight : weights_) any_ = weight ? weight.get() : any_;
}

LinearIndexedOperation::Own LinearIndexedOperation::own_of(const Memory& own, int thread) const {
  std::byte* at = own.data + own.own_bytes * static_cast<size_t>(thread);
  auto* matrices = reinterpret_cast<int32_t*>(at);
  at += whole_lines(static_cast<size_t>(most_rows_) * sizeof(int32_t));
  const RouteList list(reinterpret_cast<int32_t*>(at), static_cast<int>(weights_.size()));
  at += list_bytes(weights_.size(), most_rows_);
  return {matrices, list, reinterpret_cast<uint8_t*>(at)};
}

// The rows that have a matrix, in the order of the list.
LinearArgs LinearIndexedOperation::arguments(const Own& mine, uint8_t* prepared) const {
  const View from(x);
  LinearArgs args{from.row(0), from.stride(), mine.list.slots(), &any_, 1, nullptr, nullptr, 0, nullptr, 0, prepared};
  args.picked = mine.list.routes();
  return args;
}

void LinearIndexedOperation::sort(const Step& step, const Own& mine) const {
  const View by(index);
  const int rows = rows_in(out.rows, step);
  const bool selected = out.rows == RowKind::sampled && index.rows != RowKind::sampled;
  const auto none = static_cast<int32_t>(weights_.size());
  for (int r = 0; r < rows; ++r) {
    const float told = by.row(selected ? step.sample_rows[static_cast<size_t>(r)] : r)[0];
    const bool there = told >= 0 && told < static_cast<float>(none) && weights_[static_cast<size_t>(told)];
    mine.matrices[r] = there ? static_cast<int32_t>(told) : none;
  }
  RouteList list = mine.list;
  list.sort(mine.matrices, rows);
}

// Zeros in this thread's part of the rows that have no matrix.
void LinearIndexedOperation::clear(const Step& step, const Own& mine, int thread, int threads) const {
  const View y(out);
  const int64_t first = names_any(step) ? mine.list.slots() : 0;
  const RowRange rows = rows_of(static_cast<int>(rows_in(out.rows, step) - first), thread, threads);
  for (int64_t i = rows.begin; i < rows.end; ++i)
    std::fill_n(y.row(names_any(step) ? mine.list.route(first + i) : i), out.columns, 0.0f);
}

void LinearIndexedOperation::multiply(const LinearArgs& args, const Own& mine, int thread, int threads) const {
  alignas(64) float sums[(kTokensAtOnce + kSpareRows) * kGroupRows];
  const LinearTable& table = linear_table(current_level());
  const View y(out);
  for (size_t m = 0; m < weights_.size(); ++m) {
    const int64_t begin = mine.list.begin(static_cast<int>(m)), rows = mine.list.end(static_cast<int>(m)) - begin;
    if (!rows) continue;
    const Weight& w = *weights_[m];
    const GroupProduct product(w, rows_for(args, w, table), table);
    const Division division(w, threads);
    const auto work = [&](size_t p, int64_t from, int64_t to) {
      const Weight::Piece& piece = w.pieces[p];
      const uint8_t* group = w.data(p, thread);
      for (int64_t row = piece.row_begin; row < piece.row_end; row += kGroupRows, group += product.group_bytes()) {
        const int64_t width = std::min<int64_t>(kGroupRows, piece.row_end - row);
        for (int64_t slot = from; slot < to; slot += kTokensAtOnce) {
          const int64_t count = std::min(kTokensAtOnce, to - slot);
          product.multiply(group, 1, slot, count, sums);
          for (int64_t i = 0; i < count; ++i) {
            float* result = y.row(mine.list.route(slot + i)) + row;
            const float* made = sums + i * kGroupRows;
            for (int64_t c = 0; c < width; ++c) result[c] = adds_ ? result[c] + made[c] : made[c];
          }
        }
      }
    };
    for (size_t p = 0; p < w.pieces.size(); ++p) {
      for (int64_t part = 0; part < division.parts; ++part) {
        if (division.is_mine(m, p, part, thread, threads))
          work(p, begin + rows * part / division.parts, begin + rows * (part + 1) / division.parts);
      }
    }
  }
}

void LinearIndexedOperation::lower(Lowering& to) {
  const RowKind kind = out.rows;
  most_rows_ = to.most_rows(kind);
  of_step_ = dynamic_cast<AdapterIndexOperation*>(index.value->made_by);
  const auto scratch_bytes = [&](int rows) { return linear_scratch_bytes(rows, x.columns, &any_, 1, true); };
  Memory* shared = to.scratch(scratch_bytes(most_rows_));
  Memory* own = to.own_scratch(whole_lines(static_cast<size_t>(most_rows_) * sizeof(int32_t)) +
                               list_bytes(weights_.size(), most_rows_) + scratch_bytes(std::min(kFewRows, most_rows_)));
  const std::vector<Memory*> read{memory_of(x), memory_of(index), shared, own};
  to.phase({"indexed rows",
            [=, this](const Step& step, int thread, int threads) {
              const Own mine = own_of(*own, thread);
              sort(step, mine);
              linear_prepare(arguments(mine, reinterpret_cast<uint8_t*>(shared->data)), thread, threads);
            },
            false, [=, this](const Step& step) { return rows_in(kind, step) > kFewRows && names_any(step); }},
           read);
  std::vector<Memory*> touched = read;
  touched.push_back(memory_of(out));
  to.phase({"indexed",
            [=, this](const Step& step, int thread, int threads) {
              const Own mine = own_of(*own, thread);
              const bool few = rows_in(kind, step) <= kFewRows;
              if (few && names_any(step)) sort(step, mine);
              if (!adds_) clear(step, mine, thread, threads);
              if (!names_any(step)) return;
              const LinearArgs args = arguments(mine, few ? mine.prepared : reinterpret_cast<uint8_t*>(shared->data));
              if (few) linear_prepare(args, 0, 1);
              multiply(args, mine, thread, threads);
            },
            false, [=, this](const Step& step) { return rows_in(kind, step) > 0 && (!adds_ || names_any(step)); }},
           touched);
}

}  // namespace homenode
