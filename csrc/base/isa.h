// Instruction set levels. A level is a set of translation units compiled with its flags (see CMakeLists.txt) behind tables of function pointers.
#pragma once

namespace homenode {

enum class Level { scalar = 0, avx2 = 1, avx512 = 2 };

Level best_level();               // what this processor and kernel can run (cpuid and xgetbv)
const char* level_name(Level);    // "scalar", "avx2", "avx512"
// The level all kernels use. set_level refuses (false) a level the machine or the build lacks. Called once, before any other kernel call.
bool set_level(Level);
Level current_level();

// Whether set_level would take it.
bool level_available(Level);

// Uses another level on this thread while it lives: a program carries its own level, so levels can be compared in one process.
class LevelScope {
 public:
  explicit LevelScope(Level);
  ~LevelScope();
  LevelScope(const LevelScope&) = delete;
  LevelScope& operator=(const LevelScope&) = delete;

 private:
  int before_;
};

}  // namespace homenode
