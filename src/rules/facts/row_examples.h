#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "luff/rules/rule.h"
#include "rules/facts/loss_call.h"

namespace luff::rules {

/// What one call of a loss compares, beside what the model got: for each sample columns of its inputs, the
/// target, and the model's answer.
struct RowExamples {
  enum class Kind : std::uint8_t {
    kNumbers,  // up to 4 numbers a row; 16 zeros and ones
    kClasses,  // one class of up to 64
    kTokens,   // ids (N, T) whose targets are ids of the same places
  };
  Kind kind = Kind::kNumbers;
  Formula formula = Formula::kUnknown;
  double delta = 1;             // of Huber's and the smooth absolute error
  bool as_they_are = false;     // targets are classes, or zeros and ones
  std::string inputs;           // which inputs these are, and how wide; equal for calls that can be compared
  std::size_t rows = 0;         // samples
  std::size_t width = 0;        // columns of a sample; of tokens, places
  std::size_t count = 0;        // targets of a sample; of classes 1
  std::size_t classes = 0;      // of kClasses
  std::vector<double> columns;  // rows x width; of tokens ids
  std::vector<double> targets;  // rows x count; class ids below 0 do not count
  std::vector<double> answers;  // of the model, rows x count: numbers, probabilities, ids of classes
  std::vector<std::uint64_t> hashes;  // equal for equal samples
};

/// The examples of a call of the step. Columns: numbers as they are, up to 64; of images and sequences means
/// of squares and stretches, of longer rows sums with signs; of ids, whether it is each of 16, and in rows of
/// many, how often. Returns nothing for weighted losses, targets of many numbers, what restores its input
/// (targets of the shape of an input; ids most of which are those of the input), partners in a batch, values
/// that are not finite, and where no input has a row for each target. An input is left out that is the
/// targets, or of which they are another name or measure (one column of it, or the whole): the model got its
/// labels.
[[nodiscard]] std::optional<RowExamples> RowExamplesOf(const StepView& view, const LossCall& call,
                                                       const Recognition& known);

}  // namespace luff::rules
