#include "catalog/separation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/format.h"

namespace luff::catalog {
namespace {

constexpr double kRounding = 1 + 1e-7;  // tables as probable as the one seen count, whatever rounding does

double LogChoose(std::uint64_t n, std::uint64_t k) {
  const auto log_factorial = [](std::uint64_t of) { return std::lgamma(static_cast<double>(of) + 1); };
  return log_factorial(n) - log_factorial(k) - log_factorial(n - k);
}

/// Takes `one` if it is a better condition than `best`: more of the bad trials lie inside, and p is smaller.
void Consider(Separation one, std::optional<Separation>* best) {
  if (one.inside == 0 || one.outside == 0) return;
  if (one.bad_inside * one.outside <= one.bad_outside * one.inside) return;
  one.p = FisherExact(one.bad_inside, one.inside, one.bad_outside, one.outside);
  if (!*best || one.p < (*best)->p) *best = std::move(one);
}

struct Valued {
  const Parameter* value;
  bool bad;
};

/// The best border between numbers, with its p times the number of borders.
std::optional<Separation> OfNumbers(std::vector<Valued> of) {
  std::erase_if(of, [](const Valued& one) { return std::isnan(std::get<double>(*one.value)); });
  const auto number = [](const Valued& one) { return std::get<double>(*one.value); };
  std::ranges::stable_sort(of, {}, number);
  std::uint64_t bad = 0;
  for (const Valued& one : of) bad += one.bad ? 1 : 0;
  std::vector<std::size_t> borders;  // the first place above each
  std::vector<std::uint64_t> bad_below(of.size() + 1);
  for (std::size_t i = 0; i < of.size(); ++i) {
    bad_below[i + 1] = bad_below[i] + (of[i].bad ? 1 : 0);
    if (i > 0 && number(of[i]) > number(of[i - 1])) borders.push_back(i);
  }
  const std::size_t tried = std::min(borders.size(), kMaxBorders);
  std::optional<Separation> best;
  for (std::size_t k = 0; k < tried; ++k) {
    const std::size_t at = borders[k * borders.size() / tried];
    Separation above;
    above.op = ">=";
    above.value = *of[at].value;
    above.inside = of.size() - at;
    above.bad_inside = bad - bad_below[at];
    above.outside = at;
    above.bad_outside = bad_below[at];
    Separation below;
    below.op = "<=";
    below.value = *of[at - 1].value;
    below.inside = above.outside;
    below.bad_inside = above.bad_outside;
    below.outside = above.inside;
    below.bad_outside = above.bad_inside;
    Consider(std::move(above), &best);
    Consider(std::move(below), &best);
  }
  if (best) best->p = std::min(1.0, best->p * static_cast<double>(tried));
  return best;
}

std::optional<Separation> OfWords(const std::vector<Valued>& of) {
  std::map<std::string, Separation> values;
  std::uint64_t bad = 0;
  for (const Valued& one : of) {
    Separation& to = values[ParameterText(*one.value)];
    to.op = "=";
    to.value = *one.value;
    ++to.inside;
    to.bad_inside += one.bad ? 1 : 0;
    bad += one.bad ? 1 : 0;
  }
  std::optional<Separation> best;
  for (auto& [text, one] : values) {
    one.outside = of.size() - one.inside;
    one.bad_outside = bad - one.bad_inside;
    Consider(one, &best);
  }
  if (best) best->p = std::min(1.0, best->p * static_cast<double>(values.size()));
  return best;
}

}  // namespace

double FisherExact(std::uint64_t bad_inside, std::uint64_t inside, std::uint64_t bad_outside,
                   std::uint64_t outside) {
  const std::uint64_t all = inside + outside;
  const std::uint64_t bad = bad_inside + bad_outside;
  if (bad_inside > inside || bad_outside > outside || all == 0) return 1;
  const double margin = LogChoose(all, bad);
  const auto probability = [&](std::uint64_t k) {
    return std::exp(LogChoose(inside, k) + LogChoose(outside, bad - k) - margin);
  };
  const double seen = probability(bad_inside);
  double sum = 0;
  for (std::uint64_t k = bad > outside ? bad - outside : 0; k <= std::min(bad, inside); ++k) {
    if (const double one = probability(k); one <= seen * kRounding) sum += one;
  }
  return std::min(1.0, sum);
}

std::vector<Separation> Separate(const std::vector<Judged>& trials) {
  std::set<std::string> names;
  for (const Judged& trial : trials)
    for (const auto& [name, value] : *trial.parameters) names.insert(name);
  std::vector<Separation> found;
  std::size_t tested = 0;
  for (const std::string& name : names) {
    std::vector<Valued> of;
    bool numbers = true;
    for (const Judged& trial : trials) {
      const auto at = trial.parameters->find(name);
      if (at == trial.parameters->end()) continue;
      of.push_back({&at->second, trial.bad});
      numbers = numbers && std::holds_alternative<double>(at->second);
    }
    if (std::ranges::all_of(of, [&](const Valued& one) { return *one.value == *of.front().value; })) continue;
    ++tested;
    std::optional<Separation> best = numbers ? OfNumbers(std::move(of)) : OfWords(of);
    if (!best) continue;
    best->parameter = name;
    found.push_back(std::move(*best));
  }
  std::ranges::stable_sort(found, {}, &Separation::p);
  double before = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    before = found[i].p = std::max(before, std::min(1.0, found[i].p * static_cast<double>(tested - i)));
  std::erase_if(found, [](const Separation& one) { return !(one.p < kSaidBelow); });
  return found;
}

std::string ParameterText(const Parameter& value) {
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{:.6g}", *number);
  if (const auto* yes = std::get_if<bool>(&value)) return *yes ? "true" : "false";
  return std::get<std::string>(value);
}

std::string SeparationText(const Separation& one) {
  return fmt::format("{} {} {}", one.parameter, one.op, ParameterText(one.value));
}

}  // namespace luff::catalog
