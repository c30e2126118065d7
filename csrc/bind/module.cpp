#include "bind/bind.h"

#include <cerrno>

#include "base/isa.h"

namespace homenode {

void raise(const Error& error) {
  switch (error.fault) {
    case Fault::user: throw nb::value_error(error.message.c_str());
    case Fault::host: {
      const nb::object exception = nb::module_::import_("builtins").attr("OSError")(error.code, error.message);
      PyErr_SetObject(PyExc_OSError, exception.ptr());
      throw nb::python_error();
    }
    default: throw std::runtime_error(error.message);
  }
}

}  // namespace homenode

NB_MODULE(_native, m) {
  namespace hn = homenode;
  hn::nb::enum_<hn::Level> levels(m, "Level", "Instruction set levels, the weakest first.");
  for (const hn::Level level : hn::kLevels) levels.value(hn::level_name(level), level);
  m.def("best_level", &hn::best_level, "The best level here: the last that is available and has no drawback.");
  m.def("level_built", &hn::level_built, hn::nb::arg("level"));
  m.def("level_lack", &hn::level_lack, hn::nb::arg("level"), hn::nb::sig("def level_lack(level: Level) -> str | None"),
        "What keeps a level from being used here; None when nothing does.");
  m.def("level_drawback", &hn::level_drawback, hn::nb::arg("level"),
        hn::nb::sig("def level_drawback(level: Level) -> str | None"),
        "What makes a level slower here than its base; None when nothing does.");
  hn::bind_thread_pool(m);
  hn::bind_weights(m);
  hn::bind_kv_memory(m);
  hn::bind_kv_stream(m);
  hn::bind_lane(m);
  hn::bind_ranks(m);
  hn::bind_program(m);
  hn::bind_sampling(m);
  hn::bind_bench(m);
}
