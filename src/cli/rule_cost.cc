#include "cli/rule_cost.h"

#include <algorithm>

#include "base/format.h"
#include "luff/base/regex.h"
#include "luff/tensor/dtype.h"
#include "rules/kit/need_names.h"

namespace luff::cli {
namespace {

using format::Form;
using format::Role;

constexpr std::int64_t kNever = 1024;  // an interval that means "only at the start"

bool Has(std::uint32_t forms, Form form) { return (forms & static_cast<std::uint32_t>(form)) != 0; }

bool Wants(const rules::Need& need, const query::TensorInfo& tensor, std::span<const Regex> patterns) {
  if (std::any_of(patterns.begin(), patterns.end(), [&](const Regex& p) { return p.Search(tensor.name); }))
    return true;
  const bool role = std::find(need.roles.begin(), need.roles.end(), tensor.role) != need.roles.end();
  return role && (need.module_types.empty() || std::find(need.module_types.begin(), need.module_types.end(),
                                                         tensor.module_type) != need.module_types.end());
}

}  // namespace

std::string NeedText(const rules::Need& need) {
  std::string forms, of;
  if (Has(need.forms, Form::kRaw)) forms = "values";
  for (const auto& [form, name] : rules::kFormNames) {
    if (form != Form::kRaw && Has(need.forms, form)) forms += (forms.empty() ? "" : ", ") + std::string(name);
  }
  for (const Role role : need.roles)
    of += (of.empty() ? "" : ", ") +
          std::string(
              rules::kRolePlurals[std::min(static_cast<std::size_t>(role), rules::kRolePlurals.size() - 1)]);
  if (!need.module_types.empty()) of += fmt::format(" of {}", fmt::join(need.module_types, ", "));
  if (!need.include.empty())
    of += fmt::format("{}{}", of.empty() ? "" : " and ", fmt::join(need.include, ", "));
  std::string when = need.save_interval == 1
                         ? "every " + need.mode + " step"
                         : fmt::format("every {}th {} step", need.save_interval, need.mode);
  if (need.first_steps > 0 && need.save_interval >= kNever)
    when = fmt::format("the first {} {} steps", need.first_steps, need.mode);
  else if (need.first_steps > 0 && need.save_interval > 1)
    when += fmt::format(" and the first {}", need.first_steps);
  return fmt::format("{} of {}, {}", forms, of, when);
}

CostModel::CostModel(const query::Trial& trial) {
  for (query::TensorId id = 0; id < trial.tensor_count(); ++id) {
    const auto columns = trial.SharedSummaries(id, query::Mode::kTrain);
    if (!columns.ok() || columns.value()->count.size() == 0) continue;
    const auto last = columns.value()->count.size() - 1;
    const auto at = trial.ReadSummaryAt(id, columns.value()->mode_step[last], query::Mode::kTrain);
    const double size = at.ok() ? static_cast<double>(DTypeSize(at.value().dtype)) : 4.0;
    tensors_.push_back({trial.tensor(id), size * static_cast<double>(columns.value()->count[last])});
  }
}

CaptureCost CostModel::CostOf(std::span<const rules::Need> needs) const {
  CaptureCost cost;
  std::vector<double> read(tensors_.size(), 0.0);
  std::vector<double> kept(tensors_.size(), 0.0);
  for (const rules::Need& need : needs) {
    if (need.mode != "TRAIN") continue;
    std::vector<Regex> patterns;
    for (const std::string& text : need.include) {
      if (auto made = Regex::Compile(text); made.ok()) patterns.push_back(std::move(made).value());
    }
    const double rate = 1.0 / static_cast<double>(std::max<std::int64_t>(1, need.save_interval));
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!Wants(need, tensors_[i].info, patterns)) continue;
      read[i] = std::max(read[i], rate * tensors_[i].bytes);
      if (Has(need.forms, Form::kRaw)) kept[i] = std::max(kept[i], rate * tensors_[i].bytes);
    }
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    cost.read += read[i];
    cost.kept += kept[i];
  }
  return cost;
}

std::vector<rules::Need> DefaultNeeds() {
  rules::Need need;
  need.collection = "defaults";
  need.roles = {Role::kWeight, Role::kBias, Role::kGradient, Role::kLoss, Role::kScalar};
  need.forms = static_cast<std::uint32_t>(Form::kSummary);
  return {need};
}

}  // namespace luff::cli
