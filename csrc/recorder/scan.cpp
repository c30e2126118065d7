#include <string>

#include "operations/scan.h"
#include "recorder/recorder.h"

namespace homenode {

using std::to_string;

Result<Tensor> Recorder::selective_scan(const Tensor& xbc, const Tensor& dt, const Tensor& decay_weight,
                                        const Tensor& decay_bias, const Tensor& skip,
                                        std::shared_ptr<StateMemory> memory, const ScanParams& params) {
  const char* const name = "selective_scan";
  for (const Tensor* t : {&xbc, &dt}) {
    if (auto error = check_input(*t, name)) return *error;
    if (t->rows != RowKind::tokens) return misuse("selective_scan: rows that are not the step's tokens");
  }
  if (auto error = check_state(memory.get(), params.layer, name)) return *error;
  const StateShape& shape = memory->layers()[static_cast<size_t>(params.layer)];
  for (const Tensor* t : {&decay_weight, &decay_bias, &skip}) {
    if (!t->value || t->rows != RowKind::fixed || t->fixed_rows != 1 || t->columns != shape.heads)
      return misuse("selective_scan: parameters that are not a number for each of " + to_string(shape.heads) +
                    " heads");
  }
  const int64_t inner = shape.heads * shape.value_width, both = xbc.columns - inner,
                groups = shape.heads ? both / (2 * shape.key_width) : 0;
  if (params.per_group < 1 || params.first < 0 || params.first >= params.per_group || groups < 1 ||
      both != 2 * groups * shape.key_width || dt.columns != shape.heads ||
      (params.first + shape.heads - 1) / params.per_group != groups - 1) {
    return misuse("selective_scan: rows of " + to_string(xbc.columns) + " and " + to_string(dt.columns) + ", " +
                  to_string(params.per_group) + " heads a group from head " + to_string(params.first) +
                  " on, with a state of " + to_string(shape.heads) + " heads of " + to_string(shape.key_width) + " x " +
                  to_string(shape.value_width));
  }
  const Tensor out = make(inner, RowKind::tokens);
  return append(
      std::make_unique<ScanOperation>(xbc, dt, decay_weight, decay_bias, skip, params, std::move(memory), out), out,
      {{xbc, dt}});
}

}  // namespace homenode
