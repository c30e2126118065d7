// Instruction set levels. A level is a set of translation units compiled with its flags (see CMakeLists.txt) behind
// tables of function pointers.
#pragma once

namespace homenode {

// In order of preference: the last one that runs here, and is not slower here than its base, is the one to take. Each
// needs what its base has, and takes from it what it has no unit of its own for.
//   avx2        AVX2, FMA and F16C                                          base scalar
//   avx2vnni    dot products of bytes in the registers of AVX2 (AVX-VNNI)   base avx2
//   avx512      F, BW, DQ, VL, VBMI and VNNI                                base avx2
//   avx512bf16  dot products of bfloat16 pairs: BF16 matrices, bf16 KV      base avx512
//   amx         tiles of bytes and of bfloat16 pairs, for matrices          base avx512bf16
//   neon        what every 64-bit Arm processor has                         base scalar
//   dotprod     dot products of bytes                                       base neon
//   i8mm        tiles of bytes (I8MM) and of bfloat16 pairs (BF16)          base dotprod
enum class Level { scalar, avx2, avx2vnni, avx512, avx512bf16, amx, neon, dotprod, i8mm };
inline constexpr Level kLevels[] = {Level::scalar, Level::avx2, Level::avx2vnni, Level::avx512, Level::avx512bf16,
                                    Level::amx,    Level::neon, Level::dotprod,  Level::i8mm};

const char* level_name(Level);  // as above

bool level_built(Level);
// What keeps a level from being used here, in words after "it needs" or the like; null when nothing does. Asked of amx
// for the first time, the kernel is asked to let this process use tiles, once and for all.
const char* level_lack(Level);
inline bool level_available(Level level) { return !level_lack(level); }
// What makes a level slower than its base on this processor, in words: it is used only when asked for. Null when
// nothing that is known.
const char* level_drawback(Level);
// Whether plain functions stand in for instructions of a level: in builds of the checks alone.
bool level_emulated(Level);

Level best_level();  // the last one that is available and has no drawback
// The level all kernels use. set_level refuses (false) one that is not available. Called once, before any other kernel
// call.
bool set_level(Level);
Level current_level();

// Uses another level on this thread while it lives: a program carries its own level, so levels can be compared in one
// process.
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
