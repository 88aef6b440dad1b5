#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "rules/builtin/original/similar_across_runs.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// SimilarAcrossRuns: docs/rules/similar_across_runs.md.
namespace luff::rules::similar_across_runs {
namespace {

constexpr const char* kName = "SimilarAcrossRuns";

struct Limits {
  std::string others;
  double rtol, atol;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::others, "other_trials", "None",
     "run directories to compare with; `luff check --other RUN` names one"},
    {nullptr, "collection_names", "None", "collections to compare (original; none of both: all tensors)"},
    {nullptr, "tensor_regex", "None", "expressions on names of tensors to compare (original)"},
    {&Limits::rtol, "rtol", "1e-5", "relative tolerance, numpy's", AtLeast(0), "1e-05"},
    {&Limits::atol, "atol", "1e-8", "absolute tolerance, numpy's", AtLeast(0), "1e-08"},
};

// As numpy.allclose on two numbers; NaN is close to nothing.
bool Close(double a, double b, const Tolerance& tolerance) noexcept {
  if (a == b) return true;
  return std::isfinite(a) && std::isfinite(b) &&
         std::abs(a - b) <= tolerance.atol + tolerance.rtol * std::abs(b);
}

class SimilarAcrossRuns final : public KeptRule {
 public:
  SimilarAcrossRuns(TensorSelector selector, Others others, const Tolerance& tolerance, bool by_mode)
      : selector_(std::move(selector)),
        others_(std::move(others)),
        tolerance_(tolerance),
        by_mode_(by_mode),
        told_(others_.size(), false) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.superseded) return;
    const query::Mode mode = by_mode_ ? view.rows.info.mode : query::Mode::kGlobal;
    const std::int64_t step = by_mode_ ? view.rows.info.mode_step : view.rows.info.global_step;
    for (std::size_t n = 0; n < others_.size(); ++n) {
      const query::Trial& other = *others_[n];
      std::vector<std::string> differ;
      std::string first;
      for (const auto& entry : view.rows.scalars) {
        if (!selector_.Selects(view.trial, entry.tensor)) continue;
        const std::string& name = view.trial.tensor(entry.tensor).name;
        const auto id = other.TensorNamed(name);
        if (!id) continue;
        const auto values = other.Scalars(*id, mode, entry.worker);
        if (!values.ok()) continue;
        for (const query::ScalarAt& at : values.value()) {
          if ((by_mode_ ? at.mode_step : at.global_step) != step) continue;
          if (!Close(entry.value, at.value, tolerance_)) {
            if (first.empty()) first = fmt::format("{:.8g} here, {:.8g} there", entry.value, at.value);
            differ.push_back(name);
          }
          break;
        }
      }
      for (const auto& entry : view.rows.summaries) {
        if (!selector_.Selects(view.trial, entry.tensor)) continue;
        const std::string& name = view.trial.tensor(entry.tensor).name;
        const auto id = other.TensorNamed(name);
        if (!id) continue;
        const std::string how = Compare(view, entry, other, *id, step, mode);
        if (how.empty()) continue;
        if (first.empty()) first = how;
        differ.push_back(name);
      }
      if (differ.empty()) continue;
      Tell(view, n, std::move(differ), first, sink);
    }
  }

  void VisitFields(Fields& io) override {
    io("told", told_, others_.size());
    io.Check(told_.size() == others_.size(), "of as many runs");
  }

 private:
  // Returns how two values differ; "" if they are alike or cannot be compared.
  [[nodiscard]] std::string Compare(const StepView& view, const query::Trial::SummaryEntry& entry,
                                    const query::Trial& other, query::TensorId id, std::int64_t step,
                                    query::Mode mode) const {
    const auto here =
        view.trial.ReadValue(entry.tensor, view.rows.info.global_step, query::Mode::kGlobal, entry.worker);
    const auto there = other.ReadValue(id, step, mode, entry.worker);
    if (here.ok() && there.ok()) {
      if (here->shape != there->shape)
        return fmt::format("shape ({}) here, ({}) there", fmt::join(here->shape, ", "),
                           fmt::join(there->shape, ", "));
      const std::vector<double> a = NumbersOf(here.value());
      const std::vector<double> b = NumbersOf(there.value());
      std::size_t count = 0;
      double most = 0;
      for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        if (Close(a[i], b[i], tolerance_)) continue;
        ++count;
        const double gap = std::abs(a[i] - b[i]);
        most = std::isfinite(gap) ? std::max(most, gap) : most;
      }
      if (count == 0) return "";
      return fmt::format("{} of {} elements differ, by up to {:.4g}", count, a.size(), most);
    }
    // Without values, compares summaries: tensors differ if these do.
    const auto summary = other.ReadSummary(id, step, mode, entry.worker);
    if (!summary.ok()) return "";
    const Summary& a = entry.summary;
    const Summary& b = *summary;
    if (a.count != b.count) return fmt::format("{} elements here, {} there", a.count, b.count);
    const bool alike = a.nan_count == b.nan_count && a.inf_count == b.inf_count &&
                       std::abs(a.sum - b.sum) <= static_cast<double>(a.count) * tolerance_.atol +
                                                      tolerance_.rtol * std::max(a.abs_sum, b.abs_sum) &&
                       Close(a.sum_sq, b.sum_sq, {2 * tolerance_.rtol, tolerance_.atol});
    return alike ? "" : fmt::format("sum {:.8g} here, {:.8g} there", a.sum, b.sum);
  }

  void Tell(const StepView& view, std::size_t n, std::vector<std::string> differ, const std::string& how,
            Sink& sink) {
    // By mode, only the first step that differs is reported: later differences follow from it.
    if (!by_mode_ || !told_[n]) {
      const std::string cause = others_.size() == 1 ? "differs" : fmt::format("differs_{}", n + 1);
      Finding finding = FindingAt(kName, cause.c_str(), view, TensorAt{format::kNoId});
      finding.tensor = by_mode_ ? differ.front() : "";
      finding.evidence = {{"tensors", differ.size()}};
      finding.what =
          fmt::format("{} {} from the other run at {} step {}", differ.front(),
                      differ.size() == 1 ? "differs" : fmt::format("and {} more differ", differ.size() - 1),
                      finding.mode, view.rows.info.mode_step);
      finding.why = how;
      finding.other_tensors.assign(differ.begin() + (by_mode_ ? 1 : 0), differ.end());
      finding.remedy =
          "compare seeds, order of the data, versions and settings of the two runs up to this step";
      finding.causes = {"another seed or order of the data", "other settings or code",
                        "operations that are not exact"};
      finding.threshold = fmt::format("allclose with rtol {:g}, atol {:g}", tolerance_.rtol, tolerance_.atol);
      sink.Report(std::move(finding));
    }
    told_[n] = true;
  }

  TensorSelector selector_;
  Others others_;
  const Tolerance tolerance_;
  const bool by_mode_;
  std::deque<bool> told_;  // by run
};

/// Used if no other run is given: there is nothing to compare.
class Silent final : public KeptRule {
 public:
  void OnStep(const StepView&, Sink&) override {}
};

}  // namespace

std::unique_ptr<Rule> MakeSimilarAcrossRuns(TensorSelector selector, Others others,
                                            const Tolerance& tolerance, bool by_mode) {
  return std::make_unique<SimilarAcrossRuns>(std::move(selector), std::move(others), tolerance, by_mode);
}

RuleSpec Spec() {
  RuleSpec spec = SpecMadeBy(kName, kParams, [](const Limits& limits, const Parameters& all) -> MadeRule {
    LUFF_ASSIGN_OR_RETURN(TensorSelector selector, TensorSelector::Make(all, true));
    if (!HasParameter(all, "other_trials")) return std::unique_ptr<Rule>(new Silent());
    Others others;
    for (const std::string& path : ParseList(limits.others)) {
      LUFF_ASSIGN_OR_RETURN(std::unique_ptr<query::Trial> other, query::Trial::Open(path));
      others.push_back(std::move(other));
    }
    return MakeSimilarAcrossRuns(std::move(selector), std::move(others), {limits.rtol, limits.atol},
                                 !IsOriginal(all));
  });
  spec.summary = "tensors that differ from those of another run at the same step";
  spec.needs = [](const Parameters& all) -> std::vector<Need> {
    if (!HasParameter(all, "other_trials")) return {};
    return SelectedNeeds(all, "similar_across_runs", Bit(format::Form::kSummary) | Bit(format::Form::kRaw));
  };
  return spec;
}

}  // namespace luff::rules::similar_across_runs
