#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "rules/facts/json_event.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// UnusedInput: docs/rules/unused_input.md.
namespace luff::rules::unused_input {
namespace {

constexpr const char* kName = "UnusedInput";
constexpr std::size_t kMost = 64, kLongest = 256;  // names, and bytes of one

struct Limits {
  std::int64_t answers;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::answers, "answers", "2",
     "answers of the model, at different steps, that name the argument (Luff)", Within(1, 2)},
};

class UnusedInput final : public KeptRule {
 public:
  explicit UnusedInput(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    if (view.rows.info.mode != query::Mode::kTrain || view.rows.info.superseded) return;
    for (const auto& answer : view.index.json_events("inputs")) {
      const double step = NumberIn(*answer, "step");
      const auto model = answer->find("model");
      if (!(step >= 0 && step < 1e9) || model == answer->end() || !model->is_string()) continue;
      for (const nlohmann::json& name : ListIn(*answer, "unused")) {
        if (!name.is_string() || name.get_ref<const std::string&>().size() > kLongest) continue;
        Answered(view, model->get_ref<const std::string&>().substr(0, kLongest),
                 name.get_ref<const std::string&>(), static_cast<std::int64_t>(step), sink);
      }
    }
  }

  void VisitFields(Fields& io) override { io("seen", seen_, kMost); }

 private:
  struct Seen {
    std::int64_t step = -1, answers = 0;  // the step of the last answer
    void VisitFields(Fields& io) {
      io("step", step);
      io("answers", answers);
    }
  };

  void Answered(const StepView& view, const std::string& model, const std::string& name, std::int64_t step,
                Sink& sink) {
    const std::string key = model + "\n" + name;
    if (seen_.size() >= kMost && !seen_.contains(key)) return;
    Seen& seen = seen_[key];
    if (seen.step >= step || seen.answers >= limits_.answers) return;
    seen.step = step;
    if (++seen.answers < limits_.answers) return;
    Finding finding = FindingAt(kName, "unused", view, TensorAt{format::kNoId});
    finding.tensor = name;
    finding.since_step = 0;
    finding.what = fmt::format("{} does not use its argument '{}'", model, name);
    finding.why =
        "its values differ from sample to sample, and given to other samples they change no bit of the "
        "outputs, in "
        "training and in evaluation mode, with the model's weights and with others: nothing can be learnt "
        "from "
        "it";
    finding.remedy = fmt::format("use '{}' in forward(), or do not give it", name);
    finding.causes = {"a result that is computed from it and not used",
                      "another variable was meant, as after a copied line"};
    finding.evidence = {{"answers", seen.answers}};
    finding.threshold = "not one bit of the outputs, asked of the model itself (Luff)";
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::string, Seen> seen_;  // by model and argument
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<UnusedInput>(kName, kParams);
  spec.summary = "an argument that differs from sample to sample, and that the model does not use";
  return spec;
}

}  // namespace luff::rules::unused_input
