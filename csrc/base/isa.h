// Instruction set levels. A level is a set of translation units compiled with its flags (see CMakeLists.txt) behind tables of function pointers.
#pragma once

namespace homenode {

// Every level runs on a machine that has a later one. avx512: F, BW, DQ, VL, VBMI and VNNI; avx512bf16: dot products of bfloat16 pairs besides,
// used for BF16 matrices (see kernels/linear_tiles.h) and attention over bf16 KV memory; all else is then that of avx512.
enum class Level { scalar = 0, avx2 = 1, avx512 = 2, avx512bf16 = 3 };

Level best_level();               // what this processor and kernel can run (cpuid and xgetbv)
const char* level_name(Level);    // "scalar", "avx2", "avx512", "avx512bf16"
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
