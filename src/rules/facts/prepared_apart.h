#pragma once
#include <string>
#include <vector>

#include "luff/rules/finding.h"
#include "rules/facts/erased_values.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/missing_code.h"
#include "rules/facts/row_scale.h"
#include "rules/facts/whole_numbers.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Of what a finding says, all but where it is.
struct SideText {
  std::string cause, what, why, remedy;
  std::vector<std::string> causes;
  std::vector<NamedNumber> evidence;
  std::string threshold;
};

/// **Thread-compatible.** What training or evaluations do to an input and the others do not: a cast to
/// integers, a scaling of rows one by one, or a code for what is missing; and whether only evaluations have
/// parts of their rows erased.
class PreparedApart {
 public:
  void Add(const SampleValues& sample, bool train);
  /// What tells the newest evaluation from the training, if that is certain. `name`: of the input.
  [[nodiscard]] std::vector<SideText> Find(const std::string& name) const;
  /// Call after an evaluation.
  void Next();
  void VisitFields(Fields& io);

 private:
  WholeNumbers whole_, evaluated_whole_;
  RowScale scale_, evaluated_scale_;
  MissingCodes codes_, evaluated_codes_;
  ErasedValues erased_, evaluated_erased_;
};

/// Says that values of `name` were cut to integers on one side, `in_training` or in evaluations.
[[nodiscard]] SideText CutText(const std::string& name, const WholeNumbers::Cut& cut, bool in_training,
                               const std::string& cause);

}  // namespace luff::rules
