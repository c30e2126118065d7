// homenode_checks CHECK ROUNDS SEED: one check of cases.h, so many times, each time with other choices.
#include <functional>
#include <map>

#include "tests/cases.h"

int main(int count, char** words) {
  using namespace homenode::checks;
  const std::map<std::string, std::function<void(Random&)>> all = {
      {"attention", check_attention},
      {"chosen", check_chosen},
      {"coded", check_coded},
      {"copy", check_copy},
      {"delta", check_delta},
      {"elements", check_elements},
      {"lane", check_lane},
      {"levels", check_levels},
      {"linear", check_linear},
      {"packed", check_packed},
      {"program", check_program},
      {"ranks", check_ranks},
      {"sampling", check_sampling},
      {"shared_weights", check_shared_weights},
      {"stream", check_stream},
      {"thread_pool", check_thread_pool},
  };
  const auto check = count == 4 ? all.find(words[1]) : all.end();
  if (check == all.end()) {
    std::fprintf(stderr, "usage: homenode_checks CHECK ROUNDS SEED, where CHECK is one of");
    for (const auto& [name, run] : all) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  const int rounds = std::atoi(words[2]);
  for (int round = 0; round < rounds; ++round) {
    const uint64_t seed = std::strtoull(words[3], nullptr, 10) + static_cast<uint64_t>(round);
    Random random(seed);
    std::fprintf(stderr, "\r%s %d of %d, seed %llu ", words[1], round + 1, rounds,
                 static_cast<unsigned long long>(seed));
    check->second(random);
  }
  std::fprintf(stderr, "\n");
  print_levels();
  std::printf("%s: %d rounds\n", words[1], rounds);
  return 0;
}
