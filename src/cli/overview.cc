#include "cli/overview.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "cli/report.h"

namespace luff::cli {
namespace {

using query::Role;
using query::TensorId;

// Of one kind, so that no kind takes all the room: charts of losses, tensors of findings, gradients, scalars.
constexpr std::size_t kMaxLossCharts = 4, kMaxOfFindings = 2, kMaxGradients = 2, kMaxScalars = 2;
constexpr std::size_t kMaxLooked = 256;  // tensors of a kind; a look costs an index of the run

class Chooser {
 public:
  Chooser(const query::Trial& trial, std::size_t charts) : trial_(trial), charts_(charts) {}

  // Takes a tensor if it has data, and room for all of its modes (or nothing was taken). Returns its charts.
  std::size_t Take(TensorId id) {
    const std::size_t needed = taken_.contains(id) ? 0 : Charts(id);
    if (needed == 0 || (used_ > 0 && used_ + needed > charts_)) return 0;
    used_ += needed;
    taken_.insert(id);
    names_.push_back(trial_.tensor(id).name);
    return needed;
  }
  // Same, of one tensor after the other until `most` charts are taken.
  void TakeSome(const std::vector<TensorId>& of, std::size_t most) {
    std::size_t taken = 0;
    for (const TensorId id : of) {
      if (taken >= most || used_ >= charts_) return;
      taken += Take(id);
    }
  }
  [[nodiscard]] std::size_t Steps(TensorId id) const {
    const auto steps = trial_.TensorSteps(id, query::Mode::kGlobal);
    return steps.ok() ? steps->size() : 0;
  }
  [[nodiscard]] const std::set<TensorId>& taken() const { return taken_; }
  [[nodiscard]] std::vector<std::string> names() && { return std::move(names_); }

 private:
  [[nodiscard]] std::size_t Charts(TensorId id) const {
    if (Steps(id) == 0) return 0;
    const Role role = trial_.tensor(id).role;
    if (role != Role::kLoss && role != Role::kScalar) return 1;
    std::size_t modes = 0;
    for (const query::Mode mode : {query::Mode::kTrain, query::Mode::kEval, query::Mode::kPredict}) {
      const auto steps = trial_.TensorSteps(id, mode);
      modes += steps.ok() && !steps->empty() ? 1 : 0;
    }
    return std::max<std::size_t>(modes, 1);
  }

  const query::Trial& trial_;
  const std::size_t charts_;
  std::size_t used_ = 0;
  std::set<TensorId> taken_;
  std::vector<std::string> names_;
};

// Roles that no person knows count as kOther.
Role KnownRole(Role role) {
  const bool unknown =
      role == Role::kLossInput || role == Role::kCustom || role == Role::kLabel || role > Role::kSample;
  return unknown ? Role::kOther : role;
}

std::string Counted(Role role, std::size_t count) {
  const auto plural = [count](const char* one, const char* many) { return Plural(count, one, many); };
  switch (role) {
    case Role::kWeight: return plural("weight", "weights");
    case Role::kBias: return plural("bias", "biases");
    case Role::kGradient: return plural("gradient", "gradients");
    case Role::kLoss: return plural("loss", "losses");
    case Role::kInput: return plural("input", "inputs");
    case Role::kOutput: return plural("output", "outputs");
    case Role::kOptimizerSetting: return plural("setting of optimizers", "settings of optimizers");
    case Role::kOptimizerState: return plural("state of optimizers", "states of optimizers");
    case Role::kScalar: return plural("scalar", "scalars");
    case Role::kSample: return plural("sample", "samples");
    default: return plural("other tensor", "other tensors");
  }
}

bool IsLearningRate(const std::string& name) { return name.ends_with(".lr") || name == "lr"; }

}  // namespace

Overview OverviewOf(const query::Trial& trial, const std::vector<rules::Finding>& findings,
                    std::size_t charts) {
  std::map<Role, std::vector<TensorId>> of;
  std::vector<TensorId> rates;
  for (TensorId id = 0; id < trial.tensor_count(); ++id) {
    const auto& info = trial.tensor(id);
    of[info.role].push_back(id);
    if (IsLearningRate(info.name) && rates.empty()) rates.push_back(id);
  }
  Chooser chooser(trial, charts);

  // A loss that the whole training has comes before one of a few steps.
  std::vector<TensorId>& losses = of[Role::kLoss];
  std::vector<std::pair<std::size_t, TensorId>> by_steps;
  for (std::size_t i = 0; i < std::min(losses.size(), kMaxLooked); ++i)
    by_steps.emplace_back(chooser.Steps(losses[i]), losses[i]);
  std::stable_sort(by_steps.begin(), by_steps.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<TensorId> ordered;
  for (const auto& [steps, id] : by_steps) ordered.push_back(id);
  chooser.TakeSome(ordered, kMaxLossCharts);

  std::vector<const rules::Finding*> named;
  for (const rules::Finding& finding : findings) {
    if (finding.leader.empty()) named.push_back(&finding);
  }
  std::stable_sort(named.begin(), named.end(),
                   [](const auto* a, const auto* b) { return a->severity > b->severity; });
  std::vector<TensorId> found;
  for (std::size_t i = 0; i < std::min(named.size(), kMaxLooked); ++i) {
    if (const auto id = trial.TensorNamed(named[i]->tensor)) found.push_back(*id);
  }
  chooser.TakeSome(found, kMaxOfFindings);
  chooser.TakeSome(rates, 1);

  // The norm of all gradients, or the first and the last: where one vanishes or explodes, they part.
  std::vector<TensorId> gradients = of[Role::kGradient];
  if (gradients.size() > 1) std::swap(gradients[1], gradients.back());
  if (gradients.size() > kMaxLooked) gradients.resize(kMaxLooked);
  if (const auto norm = trial.TensorNamed("clip/norm"); norm && chooser.Take(*norm) > 0)
    chooser.TakeSome(gradients, kMaxGradients - 1);
  else
    chooser.TakeSome(gradients, kMaxGradients);
  chooser.TakeSome(of[Role::kScalar], kMaxScalars);

  Overview overview;
  for (const auto& [role, ids] : of) {
    const auto left =
        std::count_if(ids.begin(), ids.end(), [&](TensorId id) { return !chooser.taken().contains(id); });
    if (left > 0) overview.left[KnownRole(role)] += static_cast<std::size_t>(left);
  }
  overview.names = std::move(chooser).names();
  return overview;
}

std::string LeftText(const Overview& overview) {
  std::vector<std::pair<std::size_t, Role>> kinds;
  for (const auto& [role, count] : overview.left) kinds.emplace_back(count, role);
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [count, role] : kinds) text += (text.empty() ? "" : ", ") + Counted(role, count);
  return text;
}

}  // namespace luff::cli
