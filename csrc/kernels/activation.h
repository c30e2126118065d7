// What goes on between the products of an MLP. A new activation is a line here and a formula in simd/elements.h; Python
// calls it by the same name (homenode.compute.activations).
#pragma once
#include <cstdint>

// X(name), of each that is a function of one value.
#define HOMENODE_PLAIN_ACTIVATIONS(X) X(silu) X(gelu) X(gelu_erf) X(relu) X(relu2) X(exp_rest)
// Of those that are functions of a gate and what it is multiplied with.
#define HOMENODE_PAIR_ACTIVATIONS(X) X(clamped) X(limited)
#define HOMENODE_ACTIVATIONS(X) HOMENODE_PLAIN_ACTIVATIONS(X) HOMENODE_PAIR_ACTIVATIONS(X)

namespace homenode {

#define HOMENODE_NAME(name) name,
enum class Activation { HOMENODE_ACTIVATIONS(HOMENODE_NAME) };
#undef HOMENODE_NAME

#define HOMENODE_NAME(name) #name,
constexpr const char* kActivationNames[] = {HOMENODE_ACTIVATIONS(HOMENODE_NAME)};
#undef HOMENODE_NAME
constexpr int kActivations = sizeof(kActivationNames) / sizeof(*kActivationNames);

#define HOMENODE_COUNT(name) +1
constexpr int kPlainActivations = HOMENODE_PLAIN_ACTIVATIONS(HOMENODE_COUNT);
#undef HOMENODE_COUNT

constexpr bool is_plain(Activation activation) { return static_cast<int>(activation) < kPlainActivations; }

// out = activation(gate) * up; without `up` (null), of plain ones alone, out = activation(gate). out may be gate or up.
using GateKernel = void (*)(const float* gate, const float* up, float* out, int64_t count);

}  // namespace homenode
