#include <atomic>
#include <thread>

#include "tests/cases.h"

namespace homenode::checks {
namespace {

std::vector<GroupPath> random_groups(Random& random, int members) {
  std::vector<GroupPath> groups;
  if (random.one_in(4)) return groups;
  const int depth = random.between(0, 4), names = random.between(1, 4);
  for (int m = 0; m < members; ++m) {
    GroupPath path;
    for (int d = random.one_in(5) ? random.between(0, depth) : depth; d > 0; --d) path.push_back(random.between(0, names - 1));
    groups.push_back(path);
  }
  return groups;
}

// Plain values handed on from member to member, with nothing but barriers between writing and reading.
void hand_around(Team& team, int rounds) {
  const int size = team.size();
  std::vector<int64_t> held(static_cast<size_t>(size)), next(static_cast<size_t>(size));
  for (int m = 0; m < size; ++m) held[static_cast<size_t>(m)] = m;
  for (int run = 0; run < 3; ++run) {
    auto work = [&](int member) {
      const auto mine = static_cast<size_t>(member), left = static_cast<size_t>((member + 1) % size);
      for (int i = 0; i < rounds; ++i) {
        next[mine] = held[left] + 1;
        team.barrier(member);
        held[mine] = next[mine];
        team.barrier(member);
      }
    };
    run % 2 ? team.run(work) : team.compute(work);
  }
  for (int m = 0; m < size; ++m) {
    const int64_t from = (m + 3 * rounds) % size;
    require(held[static_cast<size_t>(m)] == from + 3 * rounds, "a value goes around the team, one member a round");
  }
}

}  // namespace

void check_team(Random& random) {
  const int members = random.between(1, 9), spin_us = random.of<int>({0, 3, 200});
  auto team = taken(Team::create(std::vector<int>(static_cast<size_t>(members), -1), spin_us, false, random_groups(random, members)));
  hand_around(*team, random.between(1, 30));

  // Runs from several threads take turns, while another asks for the figures.
  std::vector<int> calls(static_cast<size_t>(members));
  std::atomic<bool> done{false};
  std::thread asks([&] {
    while (!done.load()) require(team->lost_shares().size() == static_cast<size_t>(members) && team->spin_us() <= spin_us, "figures of every member");
  });
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 10; ++i) team->compute([&](int member) { ++calls[static_cast<size_t>(member)]; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  done = true;
  asks.join();
  for (const int made : calls) require(made == 30, "every call reaches every member");
}

}  // namespace homenode::checks
