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

/// Declares the parameters of a rule in one table: destination, name, default, meaning and bound of each.
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

/// Range of a number.
struct Bound {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above = false;  // excludes `least` itself
  bool below = false;  // excludes `most` itself
};
constexpr Bound AtLeast(double least) { return {.least = least}; }
constexpr Bound Above(double least) { return {.least = least, .above = true}; }
constexpr Bound Between(double least, double most) {  // excludes both
  return {.least = least, .most = most, .above = true, .below = true};
}
constexpr Bound Within(double least, double most) { return {.least = least, .most = most}; }

template <typename Limits>
struct Param {
  /// Member that receives the value: a number, a flag, a text, or a number that may be missing.
  struct Place {
    double Limits::* real = nullptr;
    std::int64_t Limits::* whole = nullptr;
    bool Limits::* flag = nullptr;
    std::string Limits::* text = nullptr;
    std::optional<double> Limits::* maybe = nullptr;  // "None" leaves it empty
    constexpr Place(std::nullptr_t) {}                // read by TensorSelector instead
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
  const char* original = nullptr;  // default in smdebug's parameter set, if different
};

/// Where the value of one parameter goes; at most one of the pointers is not null.
struct ParamTarget {
  double* real;
  std::int64_t* whole;
  bool* flag;
  std::string* text;
  std::optional<double>* maybe;
};
/// Parses one parameter into `to`. Errors: kInvalidArgument, naming the parameter, if its text does not parse
/// or the number is out of bounds.
[[nodiscard]] Status ReadParam(const Parameters& all, const char* name, const Bound& bound,
                               const ParamTarget& to);

/// Reads all parameters; `all` must be complete. Errors: as ReadParam.
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

/// The parameters as `luff rules` lists them.
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

/// Spec of a rule that `make` creates from its limits and all its parameters. It needs nothing beyond the
/// default capture. The caller fills in version, summary and further needs.
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

/// Spec of a rule that is made from its limits as an `Own`, or for smdebug's parameter set as an `Original`.
/// If the constructor of `Original` takes a TensorSelector, it gets the tensors that `collection_names` and
/// `tensor_regex` select.
template <typename Own, typename Original = Own, typename Limits, std::size_t kCount>
[[nodiscard]] RuleSpec SpecOf(const char* name, const Param<Limits> (&params)[kCount]) {
  return SpecMadeBy(name, params, [](const Limits& limits, const Parameters& all) -> MadeRule {
    if constexpr (std::is_constructible_v<Original, TensorSelector, const Limits&>) {
      // Made for both sets, so that a bad pattern is always reported.
      LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(all, false));
      if (std::is_same_v<Own, Original> || IsOriginal(all))
        return std::unique_ptr<Rule>(new Original(std::move(selector), limits));
    } else {
      if (IsOriginal(all)) return std::unique_ptr<Rule>(new Original(limits));
    }
    if constexpr (!std::is_constructible_v<Own, const Limits&>) {
      return Internal("a rule of selected tensors has one set of parameters");  // unreachable
    } else {
      return std::unique_ptr<Rule>(new Own(limits));
    }
  });
}

}  // namespace luff::rules
