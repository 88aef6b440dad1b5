#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/format.h"
#include "rules/facts/model_facts.h"
#include "rules/facts/plateau_metric.h"
#include "rules/facts/rate_levels.h"
#include "rules/facts/sample.h"
#include "rules/facts/schedule_course.h"
#include "rules/facts/step_memo.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"
#include "rules/kit/select.h"

/// ScheduleCollapse: docs/rules/schedule_collapse.md.
namespace luff::rules::schedule_collapse {
namespace {

using format::EventKind;
using format::Role;
constexpr const char* kName = "ScheduleCollapse";
constexpr const char* kCause = "collapse";
constexpr std::size_t kMaxGroups = 4096;
constexpr std::int64_t kCounted = 6;  // values that count up: levels that were solved are fewer
constexpr std::size_t kPicture = 64;

struct Limits {
  double share;
  std::int64_t updates;
  double factor;
  std::int64_t constant;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::share, "share", "1e-3", "of its peak, below which a learning rate is next to nothing (Luff)",
     Above(0)},
    {&Limits::updates, "updates", "20",
     "updates below it, at least; and as many as the run had before (Luff)", AtLeast(1)},
    {&Limits::factor,
     "factor",
     "0.9",
     "forecast: factor of two learning rates in a row, or less (Luff)",
     {.most = 1, .below = true}},
    {&Limits::constant, "constant", "16",
     "forecast: how often in a row it is the same, from the first update on (Luff)", AtLeast(2)},
};

// Every learning rate of the run has been below `share` of its peak for at least `updates` updates, and for
// as many as came before. Forecast: from the first update on, every rate falls by the same factor with every
// update.
class ScheduleCollapse final : public KeptRule {
 public:
  explicit ScheduleCollapse(const Limits& limits) : limits_(limits) {}

  void OnStep(const StepView& view, Sink& sink) override {
    const query::StepInfo& info = view.rows.info;
    const std::uint32_t worker = view.index.first_worker();
    for (const query::EventAt& event : view.rows.events) {
      if (event.worker != worker || info.superseded) continue;
      const auto kind = static_cast<EventKind>(event.row.kind);
      if (kind == EventKind::kSchedulerStep) ++scheduled_;
      if (kind != EventKind::kOptimizerStep) continue;
      ++updates_;
      if (updating_.size() < kMaxGroups) updating_.insert(event.row.subject);
    }
    loaded_ = loaded_ || LoadsWeights(view.index);
    if (!info.superseded) metric_.OnStep(view);
    evaluations_ += info.mode == query::Mode::kEval && trained_ ? 1 : 0;
    trained_ = info.mode == query::Mode::kTrain;
    if (!trained_) return;
    last_.Take(info);
    bool any = false;
    for (const auto& [entry, tensor] : view.index.scalars(Role::kOptimizerSetting)) {
      if (!tensor.name.ends_with(".lr") || !std::isfinite(entry.value)) continue;
      if (groups_.size() >= kMaxGroups && !groups_.contains(tensor.name)) continue;
      any = true;
      groups_[tensor.name].Add(entry.value, info.mode_step, limits_);
    }
    if (!any) return;
    Judge(view, sink);
    JudgeMetric(view, sink);
  }

  // A schedule that is planned for all updates and has hardly begun when they are made was stepped at another
  // level of the loop.
  void OnEnd(const query::Trial& trial, Sink& sink) override {
    const ModelFacts facts = ModelFacts::Of(trial);
    JudgeNeverStepped(trial, facts, sink);
    JudgeZeroRate(trial, facts, sink);
    JudgeOverrun(trial, facts, sink);
    JudgeMilestones(trial, facts, sink);
    JudgeOther(trial, facts, sink);
    JudgeWarmUp(trial, facts, sink);
    JudgeFactor(trial, facts, sink);
    const bool told = JudgeCourse(trial, facts, sink);
    if (told || facts.schedulers().size() != 1 || scheduled_ < 1) return;
    const SchedulerFacts& scheduler = facts.schedulers().front();
    // As many updates as planned, but for those that a scaler or a rest of the data leaves out.
    const bool for_updates =
        std::abs(scheduler.length - updates_) * 20 <= std::max<std::int64_t>(updates_, 40);
    if (updates_ < limits_.updates || !for_updates || scheduled_ * 4 > scheduler.length) return;
    Finding finding = FindingAt(kName, "hardly_begun", trial, format::kNoId, 0, last_.Info());
    finding.since_step = 0;
    finding.what = fmt::format("{} is planned for {} steps and has made {} of them in {} updates",
                               scheduler.type, scheduler.length, scheduled_, updates_);
    finding.why = "it counts updates and is stepped more rarely: the learning rate never left its beginning";
    finding.remedy = "step the scheduler after each update, or plan it for as many steps as it makes";
    finding.causes = {"scheduler stepped per epoch instead of per batch", "schedule planned for updates"};
    finding.evidence = {{"planned", scheduler.length}, {"made", scheduled_}, {"updates", updates_}};
    finding.threshold =
        "planned for the number of updates, within 5 %; a quarter of the plan at the end (Luff)";
    sink.Report(std::move(finding));
  }

  void VisitFields(Fields& io) override {
    io("groups", groups_, kMaxGroups);
    io("open", open_);
    io("last", last_);
    io("scheduled", scheduled_);
    io("updates", updates_);
    io("updating", updating_, kMaxGroups);
    io("evaluations", evaluations_);
    io("trained", trained_);
    io("loaded", loaded_);
    io("metric", metric_);
    io("told_metric", told_metric_);
  }

 private:
  // A scheduler that lowers the rate when its metric gets no better, and takes better for worse.
  void JudgeMetric(const StepView& view, Sink& sink) {
    if (told_metric_ || metric_.count() < PlateauMetric::kEvaluations) return;
    const ModelFacts& facts = view.memo.Facts(view);
    if (facts.schedulers().size() != 1) return;
    const SchedulerFacts& scheduler = facts.schedulers().front();
    if (metric_.counts()) {
      if (metric_.count() >= kCounted) TellCounter(view, scheduler, sink);
      return;
    }
    const auto lowered = std::find_if(groups_.begin(), groups_.end(),
                                      [](const auto& g) { return g.second.last < g.second.peak; });
    const PlateauMetric::Against against = metric_.Judge(scheduler.mode);
    if (lowered == groups_.end() || against == PlateauMetric::Against::kNothing) return;
    told_metric_ = true;
    const bool falls = scheduler.mode == "min";  // as it is meant
    Finding finding = FindingAt(kName, "plateau_mode", view, TensorAt{format::kNoId});
    finding.tensor = lowered->first;
    finding.since_step = 0;
    finding.series = lowered->second.picture;
    finding.what =
        fmt::format("{} lowers the learning rate because its metric {}, which is what it should do",
                    scheduler.type, falls ? "rises" : "falls");
    const char* beside = against == PlateauMetric::Against::kItself ? "; it is the loss of the training"
                         : against == PlateauMetric::Against::kLoss
                             ? ", while the losses of these evaluations are below the first"
                             : ", while the losses of the training are below the first";
    finding.why = fmt::format(
        "its mode is '{}', and each of the {} values after the first is {} than it ({:.4g} to {:.4g}){}: it "
        "takes progress for a plateau",
        scheduler.mode, metric_.count() - 1, falls ? "larger" : "smaller", metric_.first(), metric_.last(),
        beside);
    finding.remedy =
        falls ? "make the scheduler with mode='max' for an accuracy or a score, or give it the loss"
              : "make the scheduler with mode='min' for a loss, or give it an accuracy or a score";
    finding.causes = {falls ? "an accuracy given to the default mode, 'min'" : "a loss given to mode 'max'"};
    finding.evidence = {{"values", metric_.count()},
                        {"first", metric_.first()},
                        {"last", metric_.last()},
                        {"learning_rate", lowered->second.last},
                        {"peak", lowered->second.peak}};
    finding.threshold =
        fmt::format("all of {} or more values, and the rate was lowered (Luff)", PlateauMetric::kEvaluations);
    sink.Report(std::move(finding));
  }

  // Other schedulers were given the epoch, once; one that waits for a metric takes it for one.
  void TellCounter(const StepView& view, const SchedulerFacts& scheduler, Sink& sink) {
    told_metric_ = true;
    Finding finding = FindingAt(kName, "plateau_counter", view, TensorAt{format::kNoId});
    finding.since_step = 0;
    finding.what =
        fmt::format("{} is given a number that counts up by one in the place of its metric", scheduler.type);
    finding.why = fmt::format(
        "its {} values so far went from {:g} to {:g} in steps of 1, as a number of epochs does: {}",
        metric_.count(), metric_.first(), metric_.last(),
        scheduler.mode == "max" ? "it looks as if each epoch were the best, and the rate never falls"
                                : "it looks as if nothing got better, and the rate falls again and again");
    finding.remedy = "give step() the metric: the loss of the evaluation, scheduler.step(validation_loss)";
    finding.causes = {"step(epoch), as other schedulers once took it"};
    finding.evidence = {{"values", metric_.count()}, {"first", metric_.first()}, {"last", metric_.last()}};
    finding.threshold = fmt::format("all of {} or more values, exactly (Luff)", kCounted);
    sink.Report(std::move(finding));
  }

  // That a scheduler was made is a fact of the optimizer. One that steps once per epoch must have stepped by
  // the second evaluation, or in so many updates.
  void JudgeNeverStepped(const query::Trial& trial, const ModelFacts& facts, Sink& sink) {
    constexpr std::int64_t kManyUpdates = 1000;
    const bool made = std::any_of(facts.optimizers().begin(), facts.optimizers().end(),
                                  [](const OptimizerFacts& one) { return one.scheduled; });
    const bool constant =
        std::all_of(groups_.begin(), groups_.end(), [](const auto& g) { return g.second.Constant(); });
    if (!made || scheduled_ > 0 || !facts.schedulers().empty() || groups_.empty() || !constant ||
        updates_ < limits_.updates || (evaluations_ < 2 && updates_ < kManyUpdates))
      return;
    Finding finding = FindingAt(kName, "never_stepped", trial, format::kNoId, 0, last_.Info());
    finding.tensor = groups_.begin()->first;
    finding.since_step = 0;
    finding.what =
        fmt::format("a learning rate scheduler was made and never stepped, in {} updates", updates_);
    finding.why = "the rate is the same in all of them: the schedule has no effect";
    finding.remedy = "call scheduler.step() after each epoch, or after each update if it counts these";
    finding.causes = {"scheduler.step() is missing", "scheduler.step without parentheses"};
    finding.evidence = {{"updates", updates_}, {"evaluations", evaluations_}};
    finding.threshold = "a fact, told after two evaluations or 1000 updates (Luff)";
    sink.Report(std::move(finding));
  }

  // A cosine that was planned for as many steps as there are evaluations, that is, epochs, and stepped after
  // each update: beyond its length it rises again, and so on.
  void JudgeOverrun(const query::Trial& trial, const ModelFacts& facts, Sink& sink) {
    if (facts.schedulers().size() != 1 || evaluations_ < 3) return;
    const SchedulerFacts& scheduler = facts.schedulers().front();
    const bool for_epochs = std::abs(scheduler.length - evaluations_) <= 1;
    const bool each_update = std::abs(scheduled_ - updates_) * 20 <= updates_;
    if (scheduler.type != "CosineAnnealingLR" || !for_epochs || !each_update ||
        scheduled_ < 4 * scheduler.length)
      return;
    Finding finding = FindingAt(kName, "overrun", trial, format::kNoId, 0, last_.Info());
    finding.since_step = 0;
    finding.what =
        fmt::format("{} is planned for {} steps and has made {}: the rate falls and rises {} times",
                    scheduler.type, scheduler.length, scheduled_, scheduled_ / (2 * scheduler.length));
    finding.why = fmt::format("there are {} evaluations: it counts epochs and is stepped after each batch",
                              evaluations_);
    finding.remedy = "step the scheduler once per epoch, or set T_max to the number of updates";
    finding.causes = {"scheduler.step() inside the loop over batches", "T_max in epochs instead of updates"};
    finding.evidence = {{"planned", scheduler.length}, {"made", scheduled_}, {"evaluations", evaluations_}};
    finding.threshold =
        "planned for the number of evaluations, and stepped at each update, four times as often (Luff)";
    sink.Report(std::move(finding));
  }

  // All milestones lie within as many steps as there are evaluations, that is, epochs, and the scheduler
  // steps after each update: all decays are over in the first epochs' first batches.
  void JudgeMilestones(const query::Trial& trial, const ModelFacts& facts, Sink& sink) {
    constexpr std::int64_t kTimes = 8;
    if (facts.schedulers().size() != 1 || evaluations_ < 3 || groups_.empty()) return;
    const SchedulerFacts& scheduler = facts.schedulers().front();
    if (scheduler.type != "MultiStepLR" || scheduler.milestones.empty() || !(scheduler.gamma.value_or(1) < 1))
      return;
    const std::int64_t last = *std::max_element(scheduler.milestones.begin(), scheduler.milestones.end());
    const bool each_update = std::abs(scheduled_ - updates_) * 20 <= updates_;
    if (last > evaluations_ || !each_update || scheduled_ < kTimes * evaluations_) return;
    const auto& [name, group] = *groups_.begin();
    Finding finding = FindingAt(kName, "milestones", trial, format::kNoId, 0, last_.Info());
    finding.tensor = name;
    finding.since_step = 0;
    finding.series = group.picture;
    finding.what = fmt::format(
        "{} has passed its last milestone, {}, after {:.1g} % of {} updates: the rate is {:.3g} times its "
        "peak",
        scheduler.type, last, 100.0 * static_cast<double>(last) / static_cast<double>(updates_), updates_,
        group.peak > 0 ? group.last / group.peak : 0);
    finding.why = fmt::format(
        "there are {} evaluations: its milestones count epochs, and it is stepped after each batch",
        evaluations_);
    finding.remedy = "step the scheduler once per epoch, or give milestones in updates";
    finding.causes = {"scheduler.step() inside the loop over batches",
                      "milestones in epochs instead of updates"};
    finding.evidence = {{"last_milestone", last}, {"steps", scheduled_}, {"evaluations", evaluations_}};
    finding.threshold = fmt::format(
        "all milestones within the number of evaluations, stepped at each update, {} times as often (Luff)",
        kTimes);
    sink.Report(std::move(finding));
  }

  // A scheduler holds the optimizer that it was made for. If another one was made afterwards, it goes on
  // setting the rates of the first, which nobody uses.
  void JudgeOther(const query::Trial& trial, const ModelFacts& facts, Sink& sink) {
    if (updates_ < limits_.updates || scheduled_ < 1 || updating_.size() >= kMaxGroups) return;
    const auto other =
        std::find_if(facts.schedulers().begin(), facts.schedulers().end(), [&](const SchedulerFacts& one) {
          return one.moved && one.optimizer &&
                 (*one.optimizer < 0 || !updating_.contains(static_cast<std::uint32_t>(*one.optimizer)));
        });
    if (other == facts.schedulers().end()) return;
    std::string used;  // a rate of an optimizer that makes updates
    bool constant = true;
    for (const auto& [name, group] : groups_) {
      const bool idle = std::any_of(facts.optimizers().begin(), facts.optimizers().end(),
                                    [&, &setting = name](const OptimizerFacts& one) {
                                      return !updating_.contains(one.number) &&
                                             setting.starts_with("optimizer/" + one.name + ".");
                                    });
      if (idle) continue;
      constant = constant && group.Constant();
      if (used.empty()) used = name;
    }
    if (used.empty() || !constant) return;
    Finding finding = FindingAt(kName, "other_optimizer", trial, format::kNoId, 0, last_.Info());
    finding.tensor = used;
    finding.since_step = 0;
    finding.what = fmt::format("{} sets the rates of an optimizer that makes no updates", other->type);
    finding.why = fmt::format(
        "schedulers have made {} steps and changed the rates of an optimizer that never steps; the rates "
        "with which "
        "{} updates were made are the same in all of them: the schedule has no effect",
        scheduled_, updates_);
    finding.remedy = "make the scheduler anew, for the optimizer that steps, after that optimizer is made";
    finding.causes = {"the optimizer was made again after its scheduler",
                      "a scheduler of another model's optimizer"};
    finding.evidence = {{"scheduler_steps", scheduled_}, {"updates", updates_}};
    finding.threshold = fmt::format("a fact at the end, after {} updates or more (Luff)", limits_.updates);
    sink.Report(std::move(finding));
  }

  // A warm-up that has not come to its end when the training has: the rates rose in a straight line from next
  // to nothing at each update, and stay below what the optimizer was given. A range test ends above it.
  void JudgeWarmUp(const query::Trial& trial, const ModelFacts& facts, Sink& sink) {
    constexpr std::int64_t kSureUpdates = 100;
    constexpr double kReached = 0.9;  // of the rate
    if (facts.optimizers().size() != 1 || groups_.empty() || evaluations_ < 1) return;
    const double base = facts.optimizers().front().lr;
    const auto& [name, group] = *groups_.begin();
    const bool rises = std::all_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
      const Group& one = entry.second;
      return one.values >= kSureUpdates && one.Rises() && one.last < kReached * base;
    });
    if (!rises || !(base > 0)) return;
    Finding finding = FindingAt(kName, "warm_up_unfinished", trial, format::kNoId, 0, last_.Info());
    finding.tensor = name;
    finding.since_step = 0;
    finding.series = group.picture;
    finding.what = fmt::format(
        "the warm-up of the learning rate outlasts the training: it has come to {:.2g} % in {} "
        "updates",
        100 * group.last / base, group.values);
    finding.why = fmt::format(
        "the rate rose at each update and ended at {:.3g}; the optimizer was given {:.3g}", group.last, base);
    finding.remedy = "count the steps of the warm-up in updates that are made: a few per cent of all";
    finding.causes = {"warm-up steps meant for a longer training", "warm-up in samples instead of updates"};
    finding.evidence = {{"learning_rate", group.last}, {"given", base}, {"updates", group.values}};
    finding.threshold = fmt::format(
        "a straight rise from below a tenth over all of {} or more updates, that ends below "
        "{:g} times the given rate (Luff)",
        kSureUpdates, kReached);
    sink.Report(std::move(finding));
  }

  // A function that returns a rate where a factor is expected: the rate that the optimizer was given is
  // multiplied by it, and all rates are about the square of it. A base of 1, with which functions do return
  // rates, is far above. A training that goes on from a file begins where its schedule has come to.
  void JudgeFactor(const query::Trial& trial, const ModelFacts& facts, Sink& sink) {
    constexpr double kLargestBase = 0.05, kMost = 2, kLeast = 0.1;  // the latter two: of the square
    if (facts.schedulers().size() != 1 || facts.optimizers().size() != 1 || groups_.empty() || loaded_)
      return;
    const double base = facts.optimizers().front().lr;
    if (facts.schedulers().front().type != "LambdaLR" || !(base > 0 && base <= kLargestBase)) return;
    const bool squares = std::all_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
      const Group& one = entry.second;
      return one.values >= limits_.updates && one.peak <= kMost * base * base &&
             one.first >= 0.99 * one.peak && one.first >= kLeast * base * base;
    });
    if (!squares) return;
    const auto& [name, group] = *groups_.begin();
    Finding finding = FindingAt(kName, "rate_for_factor", trial, format::kNoId, 0, last_.Info());
    finding.tensor = name;
    finding.since_step = 0;
    finding.series = group.picture;
    finding.what = fmt::format("the learning rate began at {:.3g}, although the optimizer was given {:.3g}",
                               group.first, base);
    finding.why = fmt::format(
        "LambdaLR multiplies the rate that the optimizer was given by what its function returns, and that "
        "was "
        "{:.3g}: a rate, where a factor is expected",
        group.first / base);
    finding.remedy = fmt::format(
        "return a factor, which is 1 for the full rate, from the function of LambdaLR, or give the optimizer "
        "lr=1");
    finding.causes = {"a function that returns the learning rate itself"};
    finding.evidence = {{"first", group.first}, {"given", base}, {"updates", group.values}};
    finding.threshold = fmt::format(
        "a first and largest rate of {:g} to {:g} times the square of the given one, which is {:g} at most "
        "(Luff)",
        kLeast, kMost, kLargestBase);
    sink.Report(std::move(finding));
  }

  // How the rates of the only optimizer went from level to level. Returns whether anything was said.
  bool JudgeCourse(const query::Trial& trial, const ModelFacts& facts, Sink& sink) {
    if (facts.optimizers().size() != 1 || groups_.empty() || trial.outcome().state != "completed")
      return false;
    const OptimizerFacts& optimizer = facts.optimizers().front();
    // Rare evaluations: a test of rates may have one at each update.
    const bool evaluated = !trained_ && evaluations_ >= 1 && evaluations_ * 8 <= updates_;
    Finding finding = FindingAt(kName, "", trial, format::kNoId, 0, last_.Info());
    bool counts = true, grows = evaluated && !loaded_;
    for (const auto& [name, group] : groups_) {  // the first finding is of the first group
      const ScheduleCourse course{.updates = updates_, .given = GivenTo(optimizer, name)};
      Finding other;
      Finding* const said = finding.cause.empty() ? &finding : &other;
      counts = counts && course.CountsUpdates(group.levels, said);
      grows = grows && !counts && course.Grows(group.levels, said);
      if (!counts && !grows) return false;
    }
    const auto& [name, group] = *groups_.begin();
    finding.tensor = name;
    finding.since_step = 0;
    finding.series = group.picture;
    sink.Report(std::move(finding));
    return true;
  }

  // The rate of a group before any schedule, by the name of its setting, "optimizer/NAME.group0.lr".
  static double GivenTo(const OptimizerFacts& optimizer, const std::string& name) {
    const std::string prefix = "optimizer/" + optimizer.name + ".group";
    if (!name.starts_with(prefix)) return 0;
    std::size_t number = 0;
    for (std::size_t i = prefix.size(); i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i)
      number = std::min<std::size_t>(10 * number + static_cast<std::size_t>(name[i] - '0'), kMaxGroups);
    return ScheduleCourse::GivenTo(optimizer, number);
  }

  // Groups whose rate was 0 at every update, beside others, or that were given 0 and got no further than to
  // the least rate of a schedule. Weights that were loaded may be frozen so.
  void JudgeZeroRate(const query::Trial& trial, const ModelFacts& facts, Sink& sink) {
    constexpr double kNothing = 0.05;           // of the largest rate
    constexpr std::int64_t kSureUpdates = 100;  // stages that thaw have thawed by the end
    std::vector<std::string> zero;
    double largest = 0;
    for (const auto& [name, group] : groups_) largest = std::max(largest, group.peak);
    bool rises = false;
    for (const auto& [name, group] : groups_) {
      if (group.values < kSureUpdates || group.first != 0 || group.peak > kNothing * largest) continue;
      if (group.peak > 0) {
        const std::string& setting = name;
        const bool given_zero =
            std::any_of(facts.optimizers().begin(), facts.optimizers().end(), [&](const OptimizerFacts& one) {
              return setting.starts_with("optimizer/" + one.name + ".group") && GivenTo(one, setting) == 0;
            });
        if (!given_zero || facts.schedulers().empty()) continue;
        rises = true;
      }
      zero.push_back(name);
    }
    if (zero.empty() || zero.size() == groups_.size() || loaded_) return;
    Finding finding = FindingAt(kName, "zero_rate", trial, format::kNoId, 0, last_.Info());
    finding.tensor = zero.front();
    finding.other_tensors.assign(zero.begin() + 1, zero.end());
    finding.since_step = 0;
    finding.what = fmt::format("the learning rate of {} parameter group{} was 0 {}", zero.size(),
                               zero.size() == 1 ? "" : "s", rises ? "at first" : "in every update");
    finding.why = "these parameters stay as they were drawn at random, while the others learn";
    if (rises)
      finding.why = "they were given a rate of 0, and the schedule brings them only to the least rate of all";
    finding.remedy =
        "give the group a learning rate; freeze with requires_grad_(False) what is not meant to be trained";
    finding.causes = {"a group with lr=0", "an integer division in the rate, as 1 // 10",
                      "a warm-up that never began"};
    finding.evidence = {{"groups", zero.size()}, {"updates", updates_}};
    finding.threshold =
        "a fact, told at the end of the run after 100 updates, if no weights were loaded (Luff)";
    sink.Report(std::move(finding));
  }

  struct Group {
    std::int64_t values = 0;  // updates
    double peak = 0, last = 0;
    std::int64_t low = 0;     // updates in a row below the share
    std::int64_t since = -1;  // step of the first of them
    double ratio = 0;         // of the second rate to the first
    std::int64_t equal = 0;   // pairs of neighbours with that ratio; -1: one had another
    std::vector<std::pair<std::int64_t, double>> picture;
    std::int64_t stride = 1;
    double first = 0, slope = 0;  // the first rate, and by how much the second was above it
    bool straight = true;         // each was so much above the one before
    RateLevels levels;

    void VisitFields(Fields& io) {
      io("levels", levels);
      io("first", first);
      io("slope", slope);
      io("straight", straight);
      io("values", values);
      io("peak", peak);
      io("last", last);
      io("low", low);
      io("since", since);
      io("ratio", ratio);
      io("equal", equal);
      io("picture", picture, kPicture);
      io("stride", stride);
      io.Check(stride > 0, "a stride above 0");
      io.Check(std::isfinite(peak) && std::isfinite(last) && (equal <= 0 || ratio > 0), "a learning rate");
    }
    void Add(double rate, std::int64_t step, const Limits& limits) {
      if (values > 0 && equal >= 0) {
        const double now = last > 0 ? rate / last : 0;
        if (equal == 0) ratio = now;
        equal = now > 0 && std::abs(now - ratio) <= 1e-6 * ratio ? equal + 1 : -1;
      }
      if (values == 0) first = rate;
      if (values == 1) slope = rate - first;
      if (values > 1 && std::abs(rate - last - slope) > 1e-3 * slope + 1e-9 * rate) straight = false;
      if (values % stride == 0) picture.emplace_back(step, rate);
      if (picture.size() >= kPicture) {
        std::size_t kept = 0;
        for (std::size_t i = 0; i < picture.size(); i += 2) picture[kept++] = picture[i];
        picture.resize(kept);
        stride *= 2;
      }
      ++values;
      levels.Add(rate);
      peak = std::max(peak, rate);
      last = rate;
      const bool is_low = rate < limits.share * peak;
      if (is_low && low == 0) since = step;
      low = is_low ? low + 1 : 0;
    }
    [[nodiscard]] bool Constant() const {
      return values > 0 && equal == values - 1 && (equal == 0 || ratio == 1);
    }
    [[nodiscard]] bool Rises() const { return straight && slope > 0 && first <= 0.1 * last; }
    [[nodiscard]] bool Collapsed(const Limits& limits) const {
      return low >= limits.updates && low >= values - low;
    }
    [[nodiscard]] bool Falls(const Limits& limits) const {
      return low == 0 && equal >= limits.constant && ratio <= limits.factor && last > 0;
    }
  };

  void Judge(const StepView& view, Sink& sink) {
    const bool collapsed = std::all_of(groups_.begin(), groups_.end(),
                                       [&](const auto& g) { return g.second.Collapsed(limits_); });
    const bool falls = !collapsed && std::all_of(groups_.begin(), groups_.end(), [&](const auto& g) {
      return g.second.Falls(limits_) || g.second.low > 0;
    });
    if (!collapsed && !falls) {
      if (!open_.empty()) sink.Heal(kCause, open_, view.rows.info.mode_step);
      open_.clear();
      return;
    }
    const auto& [name, group] = *groups_.begin();
    const double left = group.peak > 0 ? group.last / group.peak : 0;
    if (falls && group.low > 0) return;  // the forecast has come true, but not for long enough to be reported
    Finding finding = FindingAt(kName, kCause, view, TensorAt{format::kNoId});
    if (open_.empty()) open_ = name;
    finding.tensor = open_;
    for (const auto& [other, unused] : groups_) {
      if (other != open_) finding.other_tensors.push_back(other);
    }
    finding.severity = collapsed ? Severity::kStop : Severity::kWarn;
    finding.series = group.picture;
    if (collapsed) {
      finding.since_step = group.since;
      finding.what =
          fmt::format("the learning rate has all but vanished: {:.1g} times its peak, in {} of {} updates",
                      left, group.low, group.values);
      finding.why =
          "at such a rate nothing more is learnt: the schedule has run out long before the training";
    } else {
      finding.since_step = 0;
      finding.forecast = true;
      finding.lead_steps = static_cast<std::int64_t>(
          std::ceil(std::log(limits_.share * group.peak / group.last) / std::log(group.ratio)));
      finding.what = fmt::format(
          "every update multiplies the learning rate by {:.3g}: in {} more it is {:g} times its peak",
          group.ratio, finding.lead_steps, limits_.share);
      finding.why =
          "a decay meant for each epoch is applied to each batch: the training ends before it has begun";
    }
    finding.remedy =
        "step the scheduler once per epoch if it counts epochs; if it counts updates, give it as many as "
        "there "
        "are";
    finding.causes = {"scheduler stepped per batch instead of per epoch",
                      "schedule planned for fewer updates than are made", "decay factor too small"};
    finding.evidence = {{"learning_rate", group.last},
                        {"peak", group.peak},
                        {"updates", group.values},
                        {"updates_below", group.low}};
    finding.threshold = collapsed
                            ? fmt::format(
                                  "every learning rate below {:g} of its peak for {} updates, and for as "
                                  "many as came before (Luff)",
                                  limits_.share, limits_.updates)
                            : fmt::format(
                                  "the same factor of {:g} or less {} times in a row from the first update "
                                  "on (Luff)",
                                  limits_.factor, limits_.constant);
    sink.Report(std::move(finding));
  }

  const Limits limits_;
  std::map<std::string, Group> groups_;
  std::string open_;
  Anchor last_;
  std::int64_t scheduled_ = 0, updates_ = 0;  // steps of schedulers and of optimizers
  std::set<std::uint32_t> updating_;          // optimizers that have made an update
  std::int64_t evaluations_ = 0;
  PlateauMetric metric_;
  bool told_metric_ = false;
  bool trained_ = false, loaded_ = false;  // trained_: the step before was one of TRAIN
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<ScheduleCollapse>(kName, kParams);  // settings are always recorded
  // 4: "warm_up_unfinished"; 5: "plateau_mode"; 6: "plateau_counter"; 7: "milestones", "other_optimizer",
  // "rate_for_factor"; 8: "warm_up_per_epoch", "grows"
  spec.version = 8;
  spec.summary =
      "a learning rate that has fallen to next to nothing long before the end, or never left its beginning";
  return spec;
}

}  // namespace luff::rules::schedule_collapse
