// Half a group's rows: sixteen registers hold the sums of more tokens beside 16 rows than beside 32.
#pragma once
#include "linear/block.h"

namespace homenode {
namespace {

constexpr int kHalfVectors = kVectors / 2;
constexpr int kHalfRows = kGroupRows / 2;

}  // namespace
}  // namespace homenode
