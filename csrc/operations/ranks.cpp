#include "operations/ranks.h"

#include "host/rank_group.h"
#include "host/thread_pool.h"

namespace homenode {
namespace {

FloatRows rows_at(const View& x, int64_t rows) { return {x.row(0), x.stride(), rows, x.columns()}; }

// A phase that every thread of every rank takes part in. Whether it failed is asked after the barrier that follows it.
template <class Exchange>
void add_exchange(Lowering& to, const char* name, RowKind kind, const std::vector<Memory*>& touched,
                  Exchange exchange) {
  Phase phase{name, [=, pool = to.pool(), number = to.next_phase()](const Step& step, int thread, int threads) {
                Caller caller{thread, threads, number};
                exchange(rows_in(kind, step), caller);
                pool->slept(thread, caller.slept_ns);
              }};
  phase.needed = [=](const Step& step) { return rows_in(kind, step) > 0; };
  phase.exchanges = true;
  to.phase(std::move(phase), touched);
}

}  // namespace

void SumOperation::lower(Lowering& to) {
  add_exchange(to, "sum", out.rows, {memory_of(x), memory_of(out)},
               [group = group.get(), x = View(x), y = View(out)](int64_t rows, Caller& caller) {
                 group->sum(rows_at(x, rows), rows_at(y, rows), caller);
               });
}

void GatherOperation::lower(Lowering& to) {
  add_exchange(to, "gather", out.rows, {memory_of(x), memory_of(out)},
               [this, x = View(x), y = View(out)](int64_t rows, Caller& caller) {
                 group->gather(rows_at(x, rows), rows_at(y, rows), widths, caller);
               });
}

}  // namespace homenode
