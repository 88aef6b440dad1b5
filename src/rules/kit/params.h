#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "luff/base/result.h"
#include "luff/rules/rule.h"
#include "rules/kit/select.h"

/// The parameters of a rule, each told once: where its value goes, its name, default, meaning and bound.
///
///     struct Limits {
///       double factor;
///       std::int64_t steps;
///     };
///     constexpr Param<Limits> kParams[] = {
///         {&Limits::factor, "factor", "50", "norm of the gradients over the limit (Luff)", Above(0)},
///         {&Limits::steps, "steps", "64", "clipped steps in a row (Luff)", AtLeast(1)},
///     };
namespace luff::rules {

/// Values that a number may have.
struct Bound {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above = false;  // `least` itself is too small
  bool below = false;  // `most` itself is too large
};
constexpr Bound AtLeast(double least) { return {.least = least}; }
constexpr Bound Above(double least) { return {.least = least, .above = true}; }
constexpr Bound Between(double least, double most) {  // neither of the two
  return {.least = least, .most = most, .above = true, .below = true};
}
constexpr Bound Within(double least, double most) { return {.least = least, .most = most}; }

template <typename Limits>
struct Param {
  /// Where its value goes: a number, a switch, a text, or a number that may be missing.
  struct Place {
    double Limits::* real = nullptr;
    std::int64_t Limits::* whole = nullptr;
    bool Limits::* flag = nullptr;
    std::string Limits::* text = nullptr;
    std::optional<double> Limits::* maybe = nullptr;  // "None" is nothing
    constexpr Place(std::nullptr_t) {}                // read elsewhere: a TensorSelector's
    constexpr Place(double Limits::* at) : real(at) {}
    constexpr Place(std::int64_t Limits::* at) : whole(at) {}
    constexpr Place(bool Limits::* at) : flag(at) {}
    constexpr Place(std::string Limits::* at) : text(at) {}
    constexpr Place(std::optional<double> Limits::* at) : maybe(at) {}
  };

  Place place;
  const char* name;
  const char* value;  // the default
  const char* doc;    // meaning, unit, where the default comes from
  Bound bound = {};
  const char* original = nullptr;  // the default of smdebug's parameters, where that is another
};

/// Where the value of one parameter goes; at most one of them is not null.
struct ParamTarget {
  double* real;
  std::int64_t* whole;
  bool* flag;
  std::string* text;
  std::optional<double>* maybe;
};
/// Errors: kInvalidArgument, which names the parameter, for text that is no such value, or a number out of
/// bounds.
[[nodiscard]] Status ReadParam(const Parameters& all, const char* name, const Bound& bound,
                               const ParamTarget& to);

/// The values of complete parameters. Errors: as ReadParam.
template <typename Limits, std::size_t kCount>
[[nodiscard]] Result<Limits> ReadLimits(const Param<Limits> (&params)[kCount], const Parameters& all) {
  Limits limits{};
  const auto at = [&limits](auto member) { return member != nullptr ? &(limits.*member) : nullptr; };
  for (const Param<Limits>& param : params) {
    const auto& place = param.place;
    const ParamTarget to = {at(place.real), at(place.whole), at(place.flag), at(place.text), at(place.maybe)};
    LUFF_RETURN_IF_ERROR(ReadParam(all, param.name, param.bound, to));
  }
  return limits;
}

/// What `luff rules` tells of them.
template <typename Limits, std::size_t kCount>
[[nodiscard]] std::vector<Parameter> Described(const Param<Limits> (&params)[kCount]) {
  std::vector<Parameter> all;
  for (const Param<Limits>& param : params) {
    const char* original = param.original != nullptr ? param.original : param.value;
    all.push_back({param.name, param.value, original, param.doc});
  }
  return all;
}

using MadeRule = Result<std::unique_ptr<Rule>>;

/// A rule that `make` makes from its limits and all its parameters, and which needs nothing beyond what is
/// always taken. Version, summary and needs are for the caller to fill in.
template <typename Limits, std::size_t kCount>
[[nodiscard]] RuleSpec SpecMadeBy(const char* name, const Param<Limits> (&params)[kCount],
                                  std::type_identity_t<MadeRule (*)(const Limits&, const Parameters&)> make) {
  RuleSpec spec;
  spec.name = name;
  spec.page = PageOf(name);
  spec.parameters = Described(params);
  spec.needs = [](const Parameters&) { return std::vector<Need>{}; };
  spec.make = [&params, make](const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(const Limits limits, ReadLimits(params, all));
    return make(limits, all);
  };
  return spec;
}

/// The rule `Own`, made from its limits; `Original` is made in its place for smdebug's parameters. Either may
/// begin with the tensors that `collection_names` and `tensor_regex` select.
template <typename Own, typename Original = Own, typename Limits, std::size_t kCount>
[[nodiscard]] RuleSpec SpecOf(const char* name, const Param<Limits> (&params)[kCount]) {
  return SpecMadeBy(name, params, [](const Limits& limits, const Parameters& all) -> MadeRule {
    if constexpr (std::is_constructible_v<Original, TensorSelector, const Limits&>) {
      LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(all, false));  // for both sets
      if (std::is_same_v<Own, Original> || IsOriginal(all))
        return std::unique_ptr<Rule>(new Original(std::move(selector), limits));
    } else {
      if (IsOriginal(all)) return std::unique_ptr<Rule>(new Original(limits));
    }
    if constexpr (!std::is_constructible_v<Own, const Limits&>) {
      return Internal("a rule of selected tensors has one set of parameters");  // cannot be
    } else {
      return std::unique_ptr<Rule>(new Own(limits));
    }
  });
}

}  // namespace luff::rules
