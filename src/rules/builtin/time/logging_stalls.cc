#include <algorithm>
#include <vector>

#include "base/format.h"
#include "luff/profile/input.h"
#include "luff/profile/stacks.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/pause_rule.h"

/// LoggingStalls: docs/rules/logging_stalls.md.
namespace luff::rules::logging_stalls {
namespace {

constexpr const char* kName = "LoggingStalls";
constexpr const char* kCause = "periodic";
constexpr std::size_t kUsual = 64;  // steps that say what is usual
constexpr double kMost = 0.5;       // of the looks at long `other` that met a line
constexpr std::uint64_t kSeen = 5;  // looks
constexpr std::size_t kLast = 12;   // outliers whose distances are compared

struct Limits {
  double share, seconds, longer, least_ms;
  std::int64_t times;
};
constexpr Param<Limits> kParams[] = {
    ShareParam<Limits>("0.03"),
    SecondsParam<Limits>("5"),
    TimesParam<Limits>("6"),
    {&Limits::longer, "longer", "0.5", "of a usual step's time that such a step takes more (Luff)", Above(0)},
    {&Limits::least_ms, "least_ms", "5", "that such a step takes more, in milliseconds (Luff)", Above(0)},
};

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Every p-th step takes longer in the script's own code. What comes at the same distance each time is
/// written into the loop; what the machine does is not.
class LoggingStalls final : public KeptRule {
 public:
  explicit LoggingStalls(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    const query::StepPhases* phases = worker_.In(view);
    if (phases == nullptr) return;
    const double wall = static_cast<double>(phases->head.wall_ns) * 1e-9;
    run_s_ += wall;
    if (info.mode != query::Mode::kTrain || phases->head.steps != 1) return;
    ++steps_;
    const double other = SecondsOf(*phases, format::Phase::kOther);
    const double queue = std::max<double>(static_cast<double>(phases->head.run_queue_ns) * 1e-9, 0);
    if (usual_.size() == kUsual && walls_.size() == kUsual) {
      const double excess = other - queue - MedianOf(usual_);
      if (excess > limits_.longer * MedianOf(walls_) && excess * 1e3 > limits_.least_ms) {
        Outlier(view, excess, sink);
        return;
      }
    }
    Keep(&usual_, other);
    Keep(&walls_, wall);
  }

  void VisitFields(Fields& io) override {
    worker_.VisitFields(io);
    io("usual", usual_, kUsual);
    io("walls", walls_, kUsual);
    io("last", last_, kLast);
    io("excesses", excesses_, kLast);
    io.Check(last_.size() == excesses_.size(), "as many times as steps");
    io("run_s", run_s_);
    io("spent_s", spent_s_);
    io("told_s", told_s_);
    io("steps", steps_);
    io("times", times_);
    io("since", since_);
  }

 private:
  void Keep(std::vector<double>* values, double value) {
    if (values->size() < kUsual)
      values->push_back(value);
    else
      (*values)[static_cast<std::size_t>(steps_) % kUsual] = value;
  }

  void Outlier(const StepView& view, double excess, Sink& sink) {
    const query::StepInfo& info = view.rows.info;
    if (last_.size() == kLast) {
      last_.erase(last_.begin());
      excesses_.erase(excesses_.begin());
    }
    last_.push_back(info.mode_step);
    excesses_.push_back(excess);
    const std::int64_t period = Period();
    if (period == 0) {
      if (last_.size() == kLast) spent_s_ = 0, times_ = 0, since_ = -1;
      return;
    }
    if (times_ == 0) {  // those count that showed the period
      since_ = last_.front();
      for (const double one : excesses_) spent_s_ += one;
      times_ = static_cast<std::int64_t>(last_.size());
    } else {
      spent_s_ += excess;
      ++times_;
    }
    if (times_ < limits_.times || spent_s_ < limits_.seconds || spent_s_ < limits_.share * run_s_) return;
    if (told_s_ > 0 && spent_s_ < 1.1 * told_s_) return;
    // There the script waits for what it asks a device for, which would take its time anyway.
    const ModelFacts model = ModelFacts::Of(view.trial);
    for (const OptimizerFacts& one : model.optimizers())
      if (one.device != "cpu") return;
    told_s_ = spent_s_;
    sink.Report(Described(view, period));
  }

  /// The distance of the last outliers, where it is the same for at least four in five; else 0.
  [[nodiscard]] std::int64_t Period() const {
    if (last_.size() < 5) return 0;
    std::vector<std::int64_t> distances;
    for (std::size_t i = 1; i < last_.size(); ++i) distances.push_back(last_[i] - last_[i - 1]);
    std::vector<std::int64_t> sorted = distances;
    std::ranges::sort(sorted);
    const std::int64_t middle = sorted[sorted.size() / 2];
    const auto same = std::ranges::count(distances, middle);
    return middle >= 2 && static_cast<std::size_t>(same) * 5 >= distances.size() * 4 ? middle : 0;
  }

  [[nodiscard]] Finding Described(const StepView& view, std::int64_t period) const {
    using profile::TimeText;
    const double each = spent_s_ / static_cast<double>(times_);
    Finding finding = FindingAt(kName, kCause, view.trial, format::kNoId, worker_.number(), view.rows.info);
    finding.since_step = std::max<std::int64_t>(since_, 0);
    finding.what = fmt::format("every {} step takes {} more in the script's own code: {} of {}",
                               Ordinal(period), TimeText(each), TimeText(spent_s_), TimeText(run_s_));
    const std::string line = Line(view);
    if (!line.empty()) finding.what += "; it is mostly in " + line;
    finding.why =
        "what comes at this distance is written into the loop: logging, pictures, metrics, a file that is "
        "flushed";
    finding.remedy = fmt::format(
        "look at what the script does each {} steps outside of model, loss and optimizer; do it less often, "
        "or in a "
        "thread",
        period);
    finding.causes = {"logging that writes or sends", "metrics over all that was kept",
                      "a print to a pipe that nobody reads fast enough"};
    finding.evidence = {{"period", period},
                        {"each_s", each},
                        {"spent_s", spent_s_},
                        {"run_s", run_s_},
                        {"detail", DetailOf(spent_s_)}};
    const double a_step = spent_s_ / static_cast<double>(std::max<std::int64_t>(times_ * period, 1));
    finding.saving = {
        a_step, spent_s_ / run_s_, a_step / 2, a_step,
        fmt::format("what these steps take more, over {} steps: {} / {}", period, TimeText(each), period)};
    finding.threshold =
        fmt::format("{} times at the same distance, {:g} % of a usual step more, {:g} s of the run (Luff)",
                    limits_.times, 100 * limits_.longer, limits_.seconds);
    return finding;
  }

  /// The line in which most of the long time of the script's own code was spent; "" where it was not seen.
  [[nodiscard]] static std::string Line(const StepView& view) {
    for (const profile::LineTime& one :
         profile::ParseLinesUntrusted(view.trial.DocumentAt("lines", view.number))) {
      if (one.phase != format::Phase::kOther || one.share < kMost || one.count < kSeen) continue;
      profile::StackThread thread;
      thread.frames = {one.at};
      return profile::PlaceOf(thread);
    }
    return "";
  }

  static std::string Ordinal(std::int64_t number) {
    const std::int64_t tens = number / 10 % 10, ones = number % 10;
    const char* end = tens == 1 ? "th" : ones == 1 ? "st" : ones == 2 ? "nd" : ones == 3 ? "rd" : "th";
    return std::to_string(number) + end;
  }

  const Limits limits_;
  JudgedWorker worker_;
  std::vector<double> usual_, walls_;  // `other` and all of the last usual steps, in a ring
  std::vector<std::int64_t> last_;     // mode steps of the last outliers
  std::vector<double> excesses_;       // what these took more, in seconds
  double run_s_ = 0, spent_s_ = 0, told_s_ = 0;
  std::int64_t steps_ = 0, times_ = 0, since_ = -1;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<LoggingStalls>(kName, kParams);
  spec.summary = "every p-th step takes longer in the script's own code";
  return spec;
}

}  // namespace luff::rules::logging_stalls
