#include "base/isa.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace homenode {
namespace {

constexpr int kNoOverride = -1;
thread_local int override_level = kNoOverride;

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
  return r;
}

// Extended control register 0: which register states the kernel saves and restores.
unsigned enabled_states() {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr bool has(unsigned word, unsigned bits) { return (word & bits) == bits; }
constexpr unsigned bit(int i) { return 1u << i; }

Level detect() {
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0), seven1 = cpuid(7, 1);
  const bool fma_f16c_avx_osxsave = has(one.ecx, bit(12) | bit(29) | bit(28) | bit(27));
  if (!fma_f16c_avx_osxsave || !has(enabled_states(), 0x6) || !has(seven.ebx, bit(5))) return Level::scalar;
  // F, DQ, BW, VL; VBMI, VNNI; and the kernel saving opmask and both halves of the zmm registers.
  const bool wide = has(seven.ebx, bit(16) | bit(17) | bit(30) | bit(31)) && has(seven.ecx, bit(1) | bit(11)) && has(enabled_states(), 0xe6);
  if (!wide) return Level::avx2;
  return has(seven1.eax, bit(5)) ? Level::avx512bf16 : Level::avx512;
}

#else

Level detect() { return Level::scalar; }

#endif

bool built(Level level) {
  switch (level) {
    case Level::scalar: return true;
    case Level::avx2:
#ifdef HOMENODE_HAVE_AVX2
      return true;
#else
      return false;
#endif
    case Level::avx512:
#ifdef HOMENODE_HAVE_AVX512
      return true;
#else
      return false;
#endif
    case Level::avx512bf16:
#ifdef HOMENODE_HAVE_AVX512BF16
      return true;
#else
      return false;
#endif
  }
  return false;
}

Level best_built() {
  int level = static_cast<int>(detect());
  while (!built(static_cast<Level>(level))) --level;
  return static_cast<Level>(level);
}

std::atomic<int>& process_level() {
  static std::atomic<int> level{static_cast<int>(best_level())};
  return level;
}

}  // namespace

Level best_level() {
  static const Level level = best_built();
  return level;
}

const char* level_name(Level level) {
  switch (level) {
    case Level::avx2: return "avx2";
    case Level::avx512: return "avx512";
    case Level::avx512bf16: return "avx512bf16";
    default: return "scalar";
  }
}

bool level_available(Level level) { return built(level) && static_cast<int>(level) <= static_cast<int>(best_level()); }

bool set_level(Level level) {
  if (!level_available(level)) return false;
  process_level().store(static_cast<int>(level), std::memory_order_relaxed);
  return true;
}

Level current_level() {
  if (override_level != kNoOverride) return static_cast<Level>(override_level);
  return static_cast<Level>(process_level().load(std::memory_order_relaxed));
}

LevelScope::LevelScope(Level level) : before_(override_level) { override_level = static_cast<int>(level); }
LevelScope::~LevelScope() { override_level = before_; }

}  // namespace homenode
