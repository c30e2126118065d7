#include "linear/share.h"

#include <algorithm>
#include <map>

#include "linear/group.h"

namespace homenode {

RunClaims::RunClaims(const std::vector<GroupPath>& paths) : places_(new Place[paths.size()]), circles_(paths.size()) {
  std::map<GroupPath, std::vector<int>> groups;
  for (size_t thread = 0; thread < paths.size(); ++thread) groups[paths[thread]].push_back(static_cast<int>(thread));
  for (const auto& [path, threads] : groups) {
    for (size_t place = 0; place < threads.size(); ++place) {
      Circle& circle = circles_[static_cast<size_t>(threads[place])];
      for (size_t i = 0; i < kCircle; ++i) circle[i] = (place ^ i) < threads.size() ? threads[place ^ i] : kNobody;
    }
  }
}
namespace {

// Weights of the smallest run: little enough that the last runs end together, enough that taking one costs nothing
// beside it.
constexpr int64_t kRunBytes = 32 << 10;
// Groups that are best multiplied together stay in one run where a piece has so many runs of them nevertheless.
constexpr int64_t kLeastRuns = 8;
// With few tokens the first runs of a share are longer, so that reading goes on in one stream: each is this part of
// what is left.
constexpr int64_t kPartOfRest = 4, kFewTokens = 16;

// Groups of the next run, of which `left` are left.
int64_t run_groups(int64_t left, int64_t least, int64_t tokens) {
  return std::min(left, tokens > kFewTokens ? least : std::max(least, left / kPartOfRest));
}

// Runs that `groups` groups are cut into.
int64_t count_runs(int64_t groups, int64_t least, int64_t tokens) {
  if (tokens > kFewTokens) return ceiling_of(groups, least);
  int64_t runs = 0;
  for (int64_t group = 0; group < groups; ++runs) group += run_groups(groups - group, least, tokens);
  return runs;
}

// Where run `number` of them begins. Of many tokens there are thousands of runs, and somebody asks for each.
int64_t run_begin(int64_t number, int64_t groups, int64_t least, int64_t tokens) {
  if (tokens > kFewTokens) return number * least;
  int64_t group = 0;
  for (; number > 0; --number) group += run_groups(groups - group, least, tokens);
  return group;
}

}  // namespace

Share::Share(const LinearArgs& a, int weights, const LinearTable& table, int owner, int threads)
    : a_(a), weights_(weights), table_(table), owner_(size_t(owner)), threads_(size_t(threads)), piece_(owner_) {}

// Cuts the piece at hand into runs, or goes on to the next one that there is.
bool Share::enter_piece() {
  for (; weight_ < weights_; ++weight_, piece_ = owner_) {
    const Weight& w = *a_.weights[weight_];
    if (piece_ >= w.pieces.size()) continue;
    const Weight::Piece& piece = w.pieces[piece_];
    groups_ = ceiling_of(piece.row_end - piece.row_begin, kGroupRows);
    groups_at_once_ = std::max<int64_t>(1, kRunBytes / packed_group_bytes(w.format, w.columns));
    const GroupProduct product(w, rows_for(a_, w, table_), table_);
    block_ = block_tokens(table_, a_.tokens, int64_t(product.rows().stride));
    const int64_t together = product.groups_at_once(std::min(block_, kTokensAtOnce));
    groups_at_once_ = std::max(groups_at_once_, std::min(together, groups_ / kLeastRuns));
    runs_in_block_ = count_runs(groups_, groups_at_once_, a_.tokens);
    runs_ = runs_in_block_ * ceiling_of(a_.tokens, block_);
    return true;
  }
  return false;
}

bool Share::find(int64_t number, Run& run) {
  if (!runs_in_block_ && !enter_piece()) return false;
  while (number >= first_ + runs_) {
    first_ += runs_, runs_ = 0, piece_ += threads_;
    if (!enter_piece()) return false;
  }
  const int64_t inside = number - first_, token = inside / runs_in_block_ * block_;
  const int64_t group = run_begin(inside % runs_in_block_, groups_, groups_at_once_, a_.tokens);
  run = {weight_, piece_,
         group,   group + run_groups(groups_ - group, groups_at_once_, a_.tokens),
         token,   std::min(token + block_, a_.tokens)};
  return true;
}

}  // namespace homenode
