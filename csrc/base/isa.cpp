#include "base/isa.h"

#include <atomic>

#include "base/isa_detect.h"

namespace homenode {
namespace {

constexpr int kNoOverride = -1;
thread_local int override_level = kNoOverride;

constexpr unsigned bit(Level level) { return 1u << static_cast<int>(level); }

constexpr unsigned kBuilt = bit(Level::scalar)
#ifdef HOMENODE_HAVE_AVX2
                            | bit(Level::avx2)
#endif
#ifdef HOMENODE_HAVE_AVX2VNNI
                            | bit(Level::avx2vnni)
#endif
#ifdef HOMENODE_HAVE_AVX512
                            | bit(Level::avx512)
#endif
#ifdef HOMENODE_HAVE_AVX512BF16
                            | bit(Level::avx512bf16)
#endif
#ifdef HOMENODE_HAVE_AMX
                            | bit(Level::amx)
#endif
#ifdef HOMENODE_HAVE_NEON
                            | bit(Level::neon)
#endif
#ifdef HOMENODE_HAVE_DOTPROD
                            | bit(Level::dotprod)
#endif
#ifdef HOMENODE_HAVE_I8MM
                            | bit(Level::i8mm)
#endif
    ;

std::atomic<int>& process_level() {
  static std::atomic<int> level{static_cast<int>(best_level())};
  return level;
}

}  // namespace

const char* level_name(Level level) {
  switch (level) {
    case Level::scalar: return "scalar";
    case Level::avx2: return "avx2";
    case Level::avx2vnni: return "avx2vnni";
    case Level::avx512: return "avx512";
    case Level::avx512bf16: return "avx512bf16";
    case Level::amx: return "amx";
    case Level::neon: return "neon";
    case Level::dotprod: return "dotprod";
    case Level::i8mm: return "i8mm";
  }
  return "unknown";
}

bool level_built(Level level) { return kBuilt & bit(level); }

const char* level_lack(Level level) {
  return level_built(level) ? processor_lack(level) : "a build for its processors, by a compiler that knows it";
}

Level best_level() {
  static const Level best = [] {
    Level found = Level::scalar;
    for (const Level level : kLevels) found = level_available(level) && !level_drawback(level) ? level : found;
    return found;
  }();
  return best;
}

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
