#include "rules/facts/own_answers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "base/format.h"
#include "rules/kit/select.h"

namespace luff::rules {

bool OwnAnswers::Add(std::int64_t step, const LabelledRows& rows, double loss) {
  // A loss that falls afterwards is what own answers make of it.
  const bool unsure = loss >= kUnsure * std::log(static_cast<double>(rows.classes));
  const bool begins = steps_ > 0 || (step <= kBegins && rows.classes > 1 && unsure);
  over_ = !begins || rows.labels.empty() || rows.labels != rows.predictions;
  if (over_) return false;
  ++steps_;
  std::map<std::int64_t, std::int64_t> now;
  for (const std::int64_t label : rows.labels) {
    rows_ += 1;
    ++now[label];
    if (counts_.size() < kMost || counts_.contains(label)) counts_[label] += 1;
  }
  even_ = even_ && now.size() > 1 && std::all_of(now.begin(), now.end(), [&](const auto& one) {
            return one.second == now.begin()->second;
          });
  double most = 0;
  for (const auto& [label, count] : counts_) most = std::max(most, count);
  if (rows_ < kRows || steps_ < kSteps || rows_ - most < kOthers) return false;
  over_ = true;
  return !even_;
}

bool OwnAnswers::OnTrainStep(const StepView& view, LossReader* reader, std::size_t max_classes,
                             Finding* finding) {
  if (over_) return false;
  const std::vector<LossCall>& calls = LossReader::Read(view);
  if (calls.size() != 1) return false;
  const LossCall& call = calls.front();
  if (!call.value || !call.output.is_float() || !call.whole()) return false;
  const Recognition known = reader->Recognise(call);
  const std::optional<LabelledRows> rows =
      known.by_value ? LabelledRowsOf(call, known, max_classes) : std::nullopt;
  if (!rows || known.per_sample.empty()) return false;
  const double sum = std::accumulate(known.per_sample.begin(), known.per_sample.end(), 0.0);
  const double mean = sum / static_cast<double>(known.per_sample.size());  // the value may be a sum
  if (!Add(view.rows.info.mode_step, *rows, mean)) return false;
  finding->tensor = view.trial.tensor(call.loss).name;
  finding->what = fmt::format("the targets of {} are the model's own answers", call.kind);
  finding->why = fmt::format(
      "all {:.0f} targets since the first step are the class of the highest score, of a model whose loss "
      "said "
      "that it knows nothing: it learns to be sure of whatever it says",
      rows_);
  finding->remedy = "give the loss the labels of the data: criterion(outputs, labels), not the predictions";
  finding->causes = {"predictions in the place of the labels",
                     "outputs.argmax() that is taken for the target"};
  finding->evidence = {{"rows", rows_}};
  finding->threshold = fmt::format("all of {:g} rows and {} captured steps (Luff)", kRows, kSteps);
  return true;
}

}  // namespace luff::rules
