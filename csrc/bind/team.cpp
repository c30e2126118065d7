#include <atomic>
#include <optional>

#include <nanobind/stl/optional.h>

#include "bind/bind.h"

namespace homenode {
namespace {

std::shared_ptr<Team> make_team(const std::vector<int>& cpus, int spin_us, bool pin_caller, std::optional<std::vector<GroupPath>> groups) {
  nb::gil_scoped_release unlocked;
  auto team = Team::create(cpus, spin_us, pin_caller, std::move(groups).value_or(std::vector<GroupPath>{}));
  if (!team) {
    nb::gil_scoped_acquire locked;
    raise(team.error());
  }
  return std::shared_ptr<Team>(std::move(team.value()));
}

// Every member counts each round and checks after the barrier that all have: the number of misses, 0 on a sound team.
int64_t exercise(Team& team, int runs, int rounds) {
  std::atomic<int64_t> count{0}, missed{0};
  int64_t expected = 0;
  nb::gil_scoped_release unlocked;
  for (int r = 0; r < runs; ++r) {
    team.compute([&](int member) {
      for (int i = 1; i <= rounds; ++i) {
        count.fetch_add(1, std::memory_order_relaxed);
        team.barrier(member);
        missed += count.load(std::memory_order_relaxed) != expected + int64_t(i) * team.size();
        team.barrier(member);
      }
    });
    expected += int64_t(rounds) * team.size();
  }
  return missed + (count != expected);
}

}  // namespace

void bind_team(nb::module_& m) {
  nb::class_<Team>(m, "Team", "Threads pinned to the CPUs given (-1: not pinned).")
      .def(nb::new_(&make_team), nb::arg("cpus"), nb::arg("spin_us"), nb::arg("pin_caller"),
           nb::arg("groups").none() = nb::none())
      .def_prop_ro("cpus", [](const Team& t) { return t.cpus(); })
      .def_prop_ro("spin_us", &Team::spin_us, "Microseconds members watch for others: less than asked for where they share CPUs.")
      .def_prop_ro("lost_shares", &Team::lost_shares, "For each member the share of the CPU time it recently wanted that it did not get.")
      .def("exercise", &exercise, nb::arg("runs"), nb::arg("rounds"), "Self-test: runs with many barriers; returns how often one let go too early.");
}

}  // namespace homenode
