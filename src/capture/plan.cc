#include "capture/plan.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace luff::capture {
namespace {

// Returns the roles whose names an expression can match. Names of gradients begin with "gradient/", so an
// expression anchored there cannot match the other roles.
std::uint32_t RolesOfExpression(std::string_view pattern) {
  constexpr std::uint32_t kGradients =
      RoleBit(format::Role::kGradient) | RoleBit(format::Role::kOutputGradient) |
      RoleBit(format::Role::kInputGradient) | RoleBit(format::Role::kCustom) | RoleBit(format::Role::kOther);
  const bool alternatives = pattern.find('|') != std::string_view::npos;
  return pattern.starts_with("^gradient/") && !alternatives ? kGradients : ~0U;
}

// Returns the roles that a tensor of this name can have.
std::uint32_t RolesOfName(std::string_view name) {
  const bool on_request = name.starts_with("gradient/") || name.starts_with("attention/");
  return on_request ? ~0U : ~format::kOnRequestRoles;
}

}  // namespace

Result<Plan> Plan::Make(Config config) {
  Plan plan;
  plan.config_ = std::move(config);
  std::size_t index = 0;
  for (const CollectionConfig& c : plan.config_.collections) {
    Matcher matcher;
    std::uint32_t roles = c.roles;
    for (const std::string& name : c.tensor_names) roles |= RolesOfName(name);
    if (!c.module_types.empty() && c.roles == 0) roles |= ~format::kOnRequestRoles;
    for (const std::string& pattern : c.include) {
      LUFF_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
      matcher.include.push_back(std::move(regex));
      roles |= c.include_roles & RolesOfExpression(pattern);
    }
    for (const std::string& pattern : c.exclude) {
      LUFF_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
      matcher.exclude.push_back(std::move(regex));
    }
    plan.matchers_.push_back(std::move(matcher));
    for (std::size_t role = 0; role < kRoleCount; ++role) {
      if ((roles >> role & 1U) != 0 && c.forms != 0) plan.possible_[role] |= std::uint64_t{1} << index;
    }
    if ((c.forms & static_cast<std::uint32_t>(format::Form::kRaw)) != 0)
      plan.raw_ |= std::uint64_t{1} << index;
    ++index;
  }
  return plan;
}

std::uint64_t Plan::Match(std::string_view name, format::Role role, std::string_view module_type,
                          std::size_t first) const {
  std::uint64_t mask = 0;
  for (std::size_t i = first; i < matchers_.size(); ++i) {
    const CollectionConfig& c = config_.collections[i];
    const Matcher& m = matchers_[i];
    const auto matches = [&](const Regex& regex) { return regex.Search(name); };
    bool in = std::binary_search(c.tensor_names.begin(), c.tensor_names.end(), name);
    if (!in) {
      in = (c.include_roles & RoleBit(role)) != 0 && std::any_of(m.include.begin(), m.include.end(), matches);
      if (!in && (c.roles != 0 || !c.module_types.empty())) {
        in = ((c.roles == 0 ? ~format::kOnRequestRoles : c.roles) & RoleBit(role)) != 0 &&
             (c.module_types.empty() ||
              std::find(c.module_types.begin(), c.module_types.end(), module_type) != c.module_types.end());
      }
      in = in && std::none_of(m.exclude.begin(), m.exclude.end(), matches);
    }
    if (in) mask |= std::uint64_t{1} << i;
  }
  return mask;
}

std::uint64_t Plan::DueCollections(format::Mode mode, std::int64_t mode_step) const noexcept {
  const std::size_t m = static_cast<std::size_t>(mode) - 1;
  if (m >= kModeCount) return 0;
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < config_.collections.size(); ++i) {
    const CollectionConfig& c = config_.collections[i];
    if (c.forms != 0 && c.save[m].ShouldSave(mode_step)) mask |= std::uint64_t{1} << i;
  }
  return mask;
}

std::uint32_t Plan::FormsOf(std::uint64_t collections) const noexcept {
  std::uint32_t forms = 0;
  for (; collections != 0; collections &= collections - 1)
    forms |= collection(std::countr_zero(collections)).forms;
  return forms;
}

bool Plan::RoleSavedIn(format::Role role, format::Mode mode) noexcept {
  const bool training_only = role == format::Role::kGradient || role == format::Role::kOptimizerState;
  return !training_only || mode == format::Mode::kTrain || mode == format::Mode::kGlobal;
}

}  // namespace luff::capture
