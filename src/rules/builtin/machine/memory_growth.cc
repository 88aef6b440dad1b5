#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/profile/input.h"
#include "rules/facts/machine_rule.h"

/// MemoryGrowth: docs/rules/memory_growth.md.
namespace luff::rules::memory_growth {
namespace {

constexpr const char* kName = "MemoryGrowth";
constexpr std::size_t kMostPoints = 360;

struct Limits : MachineLimits {
  std::int64_t points;
  double grown_mb, hours;
};
constexpr Param<Limits> kParams[] = {
    {&Limits::points, "points", "30", "windows over which memory must grow: five minutes (Luff)",
     Within(8, kMostPoints)},
    {&Limits::grown_mb, "grown_mb", "100", "least growth in all, in MB, and 5 % (Luff)", AtLeast(0)},
    {&Limits::hours, "hours", "12", "within which memory would be used up (Luff)", AtLeast(0)},
    LUFF_MACHINE_PARAMS(Limits),
};

/// Kendall's test whether values rise: the number of standard deviations by which rising pairs outnumber
/// falling ones (normal approximation, ties left out of the variance: conservative). Mann, 1945.
double Rising(const std::vector<double>& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = i + 1; j < values.size(); ++j)
      sum += values[j] > values[i] ? 1 : values[j] < values[i] ? -1 : 0;
  }
  const auto n = static_cast<double>(values.size());
  return sum / std::sqrt(n * (n - 1) * (2 * n + 5) / 18);
}

/// Median of the slopes of all pairs (Theil, 1950; Sen, 1968), a point.
double Slope(const std::vector<double>& values) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = i + 1; j < values.size(); ++j)
      slopes.push_back((values[j] - values[i]) / static_cast<double>(j - i));
  }
  if (slopes.empty()) return 0;
  const auto middle = slopes.begin() + static_cast<std::ptrdiff_t>(slopes.size() / 2);
  std::ranges::nth_element(slopes, middle);
  return *middle;
}

/// Graphs of earlier steps that were still in memory, by the document "kept_graphs".
struct KeptGraphs {
  std::int64_t step = 0, looked_at = 0, alive = 0, newest = 0;
};
std::optional<KeptGraphs> KeptGraphsOf(const MachineWindow& window) {
  const nlohmann::json json =
      TryParseJson(window.trial->DocumentAt("kept_graphs", window.number), {1U << 12U, 4});
  if (!json.is_object()) return std::nullopt;
  const KeptGraphs kept{WholeMember(json, "step", -1), WholeMember(json, "looked_at", 0),
                        WholeMember(json, "alive", 0),
                        WholeMember(json, "newest", WholeMember(json, "step", -1))};
  // Those of a window of steps go again, so most of all must be there, and the newest, of the last power of
  // two before the look: the first hundred that a list has kept do not grow.
  return kept.step >= 0 && kept.alive > 0 && kept.alive >= kept.looked_at - kept.looked_at / 4 &&
                 kept.newest >= kept.step / 2
             ? std::optional(kept)
             : std::nullopt;
}

class MemoryGrowth final : public MachineRule {
 public:
  explicit MemoryGrowth(const Limits& limits) : MachineRule(kName, limits), limits_(limits) {}

  void VisitFields(Fields& io) override {
    MachineRule::VisitFields(io);
    io("rss", rss_, kMostPoints);
    io("ends", ends_, kMostPoints);
    io.Check(ends_.size() == rss_.size(), "as many times as windows");
    io("first_epoch", first_epoch_);
  }

 private:
  std::optional<MachineClaim> Judge(const MachineWindow& window) override {
    const profile::MachineUse* use = window.own();
    if (use == nullptr) return std::nullopt;
    const auto rank = std::ranges::find(use->ranks, window.worker, &profile::RankUse::worker);
    // Without pages of files: those of a dataset that is mapped come as it is read, and go when they must.
    if (rank == use->ranks.end() || !rank->anonymous) return std::nullopt;
    const bool first_epoch = window.last_step + 1 < window.epoch_steps;
    if (std::exchange(first_epoch_, first_epoch) && !first_epoch) rss_.clear(), ends_.clear();
    rss_.push_back(*rank->anonymous);
    ends_.push_back(static_cast<double>(window.to_unix_ns) * 1e-9);
    const auto points = static_cast<std::size_t>(limits_.points);
    if (rss_.size() < points) return std::nullopt;
    if (rss_.size() > points) rss_.erase(rss_.begin()), ends_.erase(ends_.begin());
    const double grown = rss_.back() - rss_.front();
    if (grown < limits_.grown_mb * 1e6 || grown < 0.05 * rss_.front()) return std::nullopt;
    // It still grows now: what was loaded once, or is full, stays as it is.
    const std::vector<double> late(rss_.end() - static_cast<std::ptrdiff_t>(points / 3), rss_.end());
    if (Rising(rss_) < 3.3 || Slope(late) < 0.5 * Slope(rss_)) return std::nullopt;
    // A window is longer where steps or evaluations are.
    const double lasted = ends_.back() - ends_.front();
    if (lasted <= 0) return std::nullopt;
    const double slope = Slope(rss_) * static_cast<double>(rss_.size() - 1) / lasted;  // bytes a second
    double left = use->memory_least_available.value_or(0);
    if (use->memory_limit && use->memory_used) left = std::min(left, *use->memory_limit - *use->memory_used);
    if (slope <= 0 || left <= 0 || left / slope > limits_.hours * 3600) return std::nullopt;
    const double window_s = static_cast<double>(window.to_unix_ns - window.from_unix_ns) * 1e-9;
    const double a_step = slope * window_s / static_cast<double>(std::max<std::int64_t>(window.steps, 1));
    // A dataset that is cached is in memory when the first epoch ends: that it grows on is not known before.
    if (first_epoch && a_step * static_cast<double>(window.epoch_steps - window.last_step) < left)
      return std::nullopt;
    MachineClaim claim;
    claim.cause = "grows";
    claim.what =
        fmt::format("the memory of rank {} has grown by {} in {}, {} a step", window.worker,
                    profile::BytesText(grown), profile::TimeText(lasted), profile::BytesText(a_step));
    claim.why = "something is kept from each step to the next";
    claim.remedy = "a bound on what a dataset caches; .detach() for what is kept of outputs";
    claim.causes = {"a cache in the dataset", "a list that only grows", "outputs that are kept"};
    claim.evidence = {{"grown", grown}, {"bytes_a_second", slope}, {"left", left}, {"rss", rss_.back()}};
    if (const auto kept = KeptGraphsOf(window)) {
      claim.cause = "graphs_kept";
      claim.what +=
          fmt::format("; at step {}, {} of {} losses of earlier steps were in memory with their graphs",
                      kept->step, kept->alive, kept->looked_at);
      claim.why = "a loss that is kept, or added up, keeps the graph that made it";
      claim.remedy =
          "losses.append(loss.item()) instead of loss, total += loss.item() instead of loss; .detach() "
          "where a tensor is needed";
      claim.causes = {"losses that are kept with their graphs"};
      claim.evidence.emplace_back("graphs", kept->alive);
    }
    claim.what += fmt::format("; what is left is used up in about {}", profile::TimeText(left / slope));
    claim.threshold =
        fmt::format("steady growth over {} windows of 10 s, {:g} MB and 5 %, full within {:g} h (Luff)",
                    limits_.points, limits_.grown_mb, limits_.hours);
    return claim;
  }
  const Limits limits_;
  std::vector<double> rss_;   // resident, without files, at the end of each window
  std::vector<double> ends_;  // of these windows, in Unix seconds
  bool first_epoch_ = false;
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<MemoryGrowth>(kName, kParams);
  spec.version = 2;  // 2: "graphs_kept"
  spec.summary = "the memory of a training grows and will be used up";
  return spec;
}

}  // namespace luff::rules::memory_growth
