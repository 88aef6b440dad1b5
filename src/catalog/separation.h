#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "catalog/card.h"

/// Which parameters tell the bad trials of a sweep from the others.
namespace luff::catalog {

/// A trial as this file sees it.
struct Judged {
  const std::map<std::string, Parameter>* parameters = nullptr;
  bool bad = false;
};

/// A condition on one parameter in which the bad trials are more frequent than outside of it.
struct Separation {
  std::string parameter;
  std::string op;                            // ">=", "<=" of a number, "=" of a text or truth value
  Parameter value;                           // of a trial inside the condition: the border
  double p = 1;                              // of Fisher's exact test, corrected
  std::uint64_t bad_inside = 0, inside = 0;  // trials with the parameter
  std::uint64_t bad_outside = 0, outside = 0;
};

/// Two-sided p of Fisher's exact test of a table of two by two: the probability, margins given, of a table
/// that is at most as probable (R. A. Fisher, The Logic of Inductive Inference, J. R. Stat. Soc. 98, 1935).
[[nodiscard]] double FisherExact(std::uint64_t bad_inside, std::uint64_t inside, std::uint64_t bad_outside,
                                 std::uint64_t outside);

/// For each parameter with several values the best single condition: of a number a border between two values
/// (of more than kMaxBorders, equally spaced ranks), of anything else one value. Its p is multiplied by the
/// number of conditions that were tried (Bonferroni) and then corrected over the parameters (S. Holm, A
/// Simple Sequentially Rejective Multiple Test Procedure, Scand. J. Stat. 6, 1979). Only those below
/// kSaidBelow are returned, the smallest p first.
[[nodiscard]] std::vector<Separation> Separate(const std::vector<Judged>& trials);
inline constexpr double kSaidBelow = 0.01;
inline constexpr std::size_t kMaxBorders = 64;

/// "lr >= 0.3", "optimizer = SGD".
[[nodiscard]] std::string SeparationText(const Separation& one);
/// "0.3", "true", "SGD".
[[nodiscard]] std::string ParameterText(const Parameter& value);

}  // namespace luff::catalog
