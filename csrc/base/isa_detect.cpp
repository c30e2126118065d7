#include "base/isa_detect.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace homenode {
namespace {

[[maybe_unused]] constexpr bool has(unsigned long word, unsigned long bits) { return (word & bits) == bits; }
[[maybe_unused]] constexpr unsigned bit(int i) { return 1u << i; }

constexpr char kOtherProcessor[] = "another kind of processor";

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
  return r;
}

struct Features {
  Registers one = cpuid(1, 0), seven = cpuid(7, 0), more = cpuid(7, 1);
  unsigned states = 0;  // extended control register 0: which register states the kernel saves and restores

  Features() {
    if (!has(one.ecx, bit(27))) return;
    unsigned high;
    __asm__("xgetbv" : "=a"(states), "=d"(high) : "c"(0));
  }
};

const Features& features() {
  static const Features found;
  return found;
}

const char* avx2_lack() {
  const Features& f = features();
  if (!has(f.one.ecx, bit(12) | bit(28) | bit(29)) || !has(f.seven.ebx, bit(5)))
    return "a processor with AVX2, FMA and F16C";
  return has(f.states, 0x6) ? nullptr : "a kernel that keeps the registers of AVX";
}

#ifdef HOMENODE_EMULATE_AVX512
const char* avx2vnni_lack() { return avx2_lack(); }
const char* avx512_lack() { return avx2_lack(); }
const char* avx512bf16_lack() { return avx2_lack(); }
#else
const char* avx2vnni_lack() {
  if (const char* lack = avx2_lack()) return lack;
  return has(features().more.eax, bit(4)) ? nullptr : "a processor with AVX-VNNI";
}

const char* avx512_lack() {
  if (const char* lack = avx2_lack()) return lack;
  const Features& f = features();
  if (!has(f.seven.ebx, bit(16) | bit(17) | bit(30) | bit(31)) || !has(f.seven.ecx, bit(1) | bit(11))) {
    return "a processor with AVX-512 F, DQ, BW, VL, VBMI and VNNI";
  }
  return has(f.states, 0xe6) ? nullptr : "a kernel that keeps the registers of AVX-512";
}

const char* avx512bf16_lack() {
  if (const char* lack = avx512_lack()) return lack;
  return has(features().more.eax, bit(5)) ? nullptr : "a processor with AVX-512 BF16";
}
#endif

#ifndef HOMENODE_EMULATE_TILES
// The registers of tiles are eight KiB a thread, which the kernel keeps for processes that asked for it (Linux 5.16).
bool tiles_permitted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}
#endif

const char* amx_lack() {
  if (const char* lack = avx512bf16_lack()) return lack;
#ifndef HOMENODE_EMULATE_TILES
  const Features& f = features();
  if (!has(f.seven.edx, bit(22) | bit(24) | bit(25))) return "a processor with AMX tiles, AMX-INT8 and AMX-BF16";
  if (!has(f.states, bit(17) | bit(18))) return "a kernel that keeps the registers of AMX";
  if (!tiles_permitted())
    return "a kernel that lets this process use AMX: it refused arch_prctl(ARCH_REQ_XCOMP_PERM, XTILE_DATA)";
#endif
  return nullptr;
}

struct Vendor {
  unsigned ebx, edx, ecx;
};
constexpr Vendor kAmd = {0x68747541, 0x69746e65, 0x444d4163};    // "AuthenticAMD"
constexpr Vendor kIntel = {0x756e6547, 0x49656e69, 0x6c65746e};  // "GenuineIntel"

bool is_of(const Vendor& vendor) {
  const Registers r = cpuid(0, 0);
  return r.ebx == vendor.ebx && r.edx == vendor.edx && r.ecx == vendor.ecx;
}

// By the numbers in AMD's revision guides (family 19h, of which models 0h-Fh, 20h-5Fh are Zen 3), and by Linux' list of
// Intel's models (8Fh Sapphire Rapids, CFh Emerald Rapids: cores alike).
Processor detected() {
  const unsigned version = features().one.eax, family = (version >> 8 & 15) + (version >> 20 & 255),
                 model = (version >> 4 & 15) | (version >> 12 & 0xf0);
  if (is_of(kIntel)) return family == 6 && (model == 0x8f || model == 0xcf) ? Processor::golden_cove : Processor::other;
  if (!is_of(kAmd) || family != 0x19) return Processor::other;
  const bool zen4 = (model >= 0x10 && model <= 0x1f) || (model >= 0x60 && model <= 0x7f) ||
                    (model >= 0xa0 && model <= 0xaf);
  return zen4 ? Processor::zen4 : Processor::other;
}

#elif defined(__aarch64__)

constexpr unsigned long kDotProducts = 1ul << 20;                      // HWCAP_ASIMDDP
constexpr unsigned long kMatrices = 1ul << 13, kBfloat16 = 1ul << 14;  // HWCAP2_I8MM, HWCAP2_BF16

const char* dotprod_lack() {
  return has(getauxval(AT_HWCAP), kDotProducts) ? nullptr : "a processor with dot products of bytes (asimddp)";
}

const char* i8mm_lack() {
  if (const char* lack = dotprod_lack()) return lack;
  return has(getauxval(AT_HWCAP2), kMatrices | kBfloat16) ? nullptr : "a processor with i8mm and bf16";
}

#endif

}  // namespace

const char* processor_lack(Level level) {
  switch (level) {
    case Level::scalar: return nullptr;
#if defined(__x86_64__)
    case Level::avx2: return avx2_lack();
    case Level::avx2vnni: return avx2vnni_lack();
    case Level::avx512: return avx512_lack();
    case Level::avx512bf16: return avx512bf16_lack();
    case Level::amx: return amx_lack();
#elif defined(__aarch64__)
    case Level::neon: return nullptr;
    case Level::dotprod: return dotprod_lack();
    case Level::i8mm: return i8mm_lack();
#endif
    default: return kOtherProcessor;
  }
}

// `homenode bench kernels` on an Emerald Rapids whose hypervisor hides AMX, two threads, 1e9 operations a second:
// 170 of bfloat16 pairs, 346 of float32.
const char* level_drawback(Level level) {
  const bool slow_pairs = level == Level::avx512bf16 && processor() == Processor::golden_cove;
  return slow_pairs ? "this processor multiplies bfloat16 pairs half as fast as float32" : nullptr;
}

Processor processor() {
#if defined(__x86_64__)
  static const Processor found = detected();
  return found;
#else
  return Processor::other;
#endif
}

bool level_emulated([[maybe_unused]] Level level) {
#ifdef HOMENODE_EMULATE_AVX512
  if (level == Level::avx2vnni || level == Level::avx512 || level == Level::avx512bf16) return true;
#endif
#ifdef HOMENODE_EMULATE_TILES
  if (level == Level::amx) return true;
#endif
  return false;
}

}  // namespace homenode
