#include "recorder/row_operations.h"

#include "graph/operation.h"
#include "recorder/recorder.h"

namespace homenode {
namespace {

// The handles among the fields of an operation, by what has to be true of them.
struct Handles {
  std::vector<Tensor> rows, vectors;
  bool numbers_alone = true;  // of parameters in the place of a number

  void add(const Tensor& x) { rows.push_back(x); }
  void add(const Vector& x) { vectors.push_back(x.tensor); }
  void add(const RowsOrVector& x) { (is_vector(x.tensor) ? vectors : rows).push_back(x.tensor); }
  void add(const Number& x) {
    const auto* tensor = std::get_if<Tensor>(&x.given);
    if (tensor && (!is_vector(*tensor) || tensor->columns != 1)) numbers_alone = false;
  }
  template <class T>
  void add(const std::optional<T>& x) {
    if (x) add(*x);
  }
  template <class T>
  void add(const T&) {}  // a number
};

template <class Named>
Handles handles_of(const Named& operation) {
  Handles handles;
  std::apply([&](const auto&... field) { (handles.add(operation.*(field.member)), ...); }, Named::fields());
  return handles;
}

template <class Named>
class RowOperation : public Operation {
 public:
  RowOperation(Named operation, Tensor to) : operation_(std::move(operation)), out_(std::move(to)) {}

  void lower(Lowering& to) override {
    constexpr bool whole = !requires(const Named& x) { x.piece(); };
    std::vector<Memory*> touched;
    for (const Tensor& x : handles_of(operation_).rows) touched.push_back(memory_of(x));
    touched.push_back(memory_of(out_));
    int64_t piece = out_.columns;
    if constexpr (!whole) piece = operation_.piece();
    to.phase({Named::kPhase,
              [this, y = View(out_), piece, kernels = &kernels(to.level())](const Step& step, int thread, int threads) {
                const int64_t pieces = (y.columns() + piece - 1) / piece;
                const RowRange mine = rows_of(static_cast<int>(rows_in(out_.rows, step) * pieces), thread, threads);
                for (int64_t i = mine.begin; i < mine.end; ++i) {
                  const int64_t row = i / pieces, begin = i % pieces * piece;
                  operation_.compute({step, *kernels, row, begin, std::min(piece, y.columns() - begin), y.row(row)});
                }
              },
              whole},
             touched);
  }

 private:
  Named operation_;
  Tensor out_;
};

}  // namespace

template <class Named>
Result<Tensor> Recorder::rows(Named operation) {
  const Handles handles = handles_of(operation);
  const std::string name = Named::kName;
  const Tensor& first = handles.rows[0];
  for (const Tensor& x : handles.rows) {
    if (!x.value) return misuse(name + ": an empty tensor handle");
    if (auto error = check_input(x, Named::kName)) return *error;
    if (rows_made_of(x) != rows_made_of(first)) return misuse(name + ": some rows are selected, others are not");
  }
  for (const Tensor& x : handles.vectors) {
    if (!is_vector(x) || x.columns < 1) {
      return misuse(name + ": rows of " + std::to_string(x.columns) + " in the place of a parameter that is a vector");
    }
  }
  if (!handles.numbers_alone) return misuse(name + ": a factor that is no parameter of one number");
  if constexpr (requires { operation.problem(); }) {
    if (const std::string problem = operation.problem(); !problem.empty()) return misuse(name + ": " + problem);
  }
  int64_t columns = first.columns;
  if constexpr (requires { operation.columns(); }) columns = operation.columns();
  const Tensor out = make(columns, rows_made_of(first));
  return append(std::make_unique<RowOperation<Named>>(std::move(operation), out), out, handles.rows);
}

#define INSTANTIATE(Named) template Result<Tensor> Recorder::rows(Named);
HOMENODE_ROW_OPERATIONS(INSTANTIATE)
#undef INSTANTIATE

}  // namespace homenode
