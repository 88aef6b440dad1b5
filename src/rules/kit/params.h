#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "luff/base/result.h"
#include "luff/rules/rule.h"
#include "rules/select.h"

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
  /// Where its value goes: a number, a switch or a text.
  struct Place {
    double Limits::* real = nullptr;
    std::int64_t Limits::* whole = nullptr;
    bool Limits::* flag = nullptr;
    std::string Limits::* text = nullptr;
    constexpr Place(double Limits::* at) : real(at) {}
    constexpr Place(std::int64_t Limits::* at) : whole(at) {}
    constexpr Place(bool Limits::* at) : flag(at) {}
    constexpr Place(std::string Limits::* at) : text(at) {}
  };

  Place place;
  const char* name;
  const char* value;  // the default
  const char* doc;    // meaning, unit, where the default comes from
  Bound bound = {};
  const char* original = nullptr;  // the default of smdebug's parameters, where that is another
};

/// Where the value of one parameter goes; one of them is not null.
struct ParamTarget {
  double* real;
  std::int64_t* whole;
  bool* flag;
  std::string* text;
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
    const ParamTarget to = {at(place.real), at(place.whole), at(place.flag), at(place.text)};
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

/// A rule `Own`, made from its limits, which needs nothing beyond what is always taken; `Original` is made in
/// its place for smdebug's parameters. Version, summary and needs are for the caller to fill in.
template <typename Own, typename Original = Own, typename Limits, std::size_t kCount>
[[nodiscard]] RuleSpec SpecOf(const char* name, const Param<Limits> (&params)[kCount]) {
  RuleSpec spec;
  spec.name = name;
  spec.page = PageOf(name);
  spec.parameters = Described(params);
  spec.needs = [](const Parameters&) { return std::vector<Need>{}; };
  spec.make = [&params](const Parameters& all) -> Result<std::unique_ptr<Rule>> {
    LUFF_ASSIGN_OR_RETURN(const Limits limits, ReadLimits(params, all));
    if (IsOriginal(all)) return std::unique_ptr<Rule>(new Original(limits));
    return std::unique_ptr<Rule>(new Own(limits));
  };
  return spec;
}

}  // namespace luff::rules
