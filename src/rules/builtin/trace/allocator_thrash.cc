#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/profile/input.h"
#include "luff/profile/machine.h"
#include "rules/facts/trace_rule.h"
#include "rules/kit/select.h"

/// AllocatorThrash: docs/rules/allocator_thrash.md.
namespace luff::rules::allocator_thrash {
namespace {

using profile::DeviceTrace;
using Json = nlohmann::json;
constexpr const char* kName = "AllocatorThrash";
constexpr Param<TraceLimits> kParams[] = {
    TraceShareParam("0.03", "of the time that the host is in cudaMalloc and cudaFree (Luff)"),
    TraceFirstParam()};

constexpr double kRetriesAStep = 0.05;

/// A look at the allocator's counters.
struct Counters {
  std::int64_t step = 0, retries = 0, reserved = 0, active = 0;
};
/// The last three looks of the document "allocator" at one device; empty if there are fewer.
std::vector<Counters> LastLooksOf(std::string_view document) {
  const Json json = TryParseJson(document, {1U << 16U, 6});
  std::vector<Counters> looks;
  if (!json.is_object() || !json.contains("looks") || !json["looks"].is_array()) return looks;
  constexpr std::size_t kLooks = 3;
  const Json& all = json["looks"];
  for (std::size_t i = all.size() < kLooks ? 0 : all.size() - kLooks; i < all.size(); ++i) {
    const Json& one = all[i];
    if (!one.is_object() || WholeMember(one, "device", -1) != WholeMember(all.back(), "device", -2))
      return {};
    looks.push_back({WholeMember(one, "step", -1), WholeMember(one, "retries", -1),
                     WholeMember(one, "reserved", 0), WholeMember(one, "active", 0)});
    constexpr std::int64_t kMost = 1LL << 53;
    for (const std::int64_t number : {looks.back().step, looks.back().retries})
      if (number < 0 || number > kMost) return {};
  }
  return looks.size() == kLooks ? looks : std::vector<Counters>();
}

/// Retries for each step between two looks; 0 where the counters began anew.
double RetriesAStep(const Counters& a, const Counters& b) {
  if (b.step <= a.step || b.retries <= a.retries) return 0;
  return static_cast<double>(b.retries - a.retries) / static_cast<double>(b.step - a.step);
}

/// Memory goes back to the driver and is asked for again in each step.
class AllocatorThrash final : public TraceRule {
 public:
  explicit AllocatorThrash(const TraceLimits& limits) : TraceRule(kName, limits) {}
  void VisitFields(Fields& io) override {
    TraceRule::VisitFields(io);
    io("retries", retries_);
    io("looked", looked_);
  }

 private:
  static constexpr const char* kRetries = "retries";

  /// Judges the counters, of the first worker that has some.
  void LookAt(const StepView& view, Sink& sink) override {
    const std::vector<Counters> looks = LastLooksOf(view.trial.DocumentAt("allocator", view.number));
    if (looks.empty() || looks.back().step == looked_ || looks.front().step < first()) return;
    looked_ = looks.back().step;
    const double before = RetriesAStep(looks[0], looks[1]), now = RetriesAStep(looks[1], looks[2]);
    if (retries_ && now == 0) {
      retries_ = false;
      sink.Heal(kRetries, "", view.rows.info.mode_step);
    }
    if (retries_ || before < kRetriesAStep || now < kRetriesAStep) return;
    retries_ = true;
    const Counters &from = looks[0], &to = looks[2];
    Finding finding = FindingAt(kName, kRetries, view.trial, format::kNoId, 0, view.rows.info);
    finding.since_step = std::max<std::int64_t>(view.rows.info.mode_step - (to.step - from.step), 0);
    finding.what = fmt::format(
        "memory of the device ran out {} times in {} steps; each time the allocator gave its cache back and "
        "tried "
        "again ({} reserved, {} of it in use)",
        to.retries - from.retries, to.step - from.step, profile::BytesText(static_cast<double>(to.reserved)),
        profile::BytesText(static_cast<double>(to.active)));
    finding.why =
        "to give memory back, the host waits until the device has nothing to do; then it asks the driver "
        "again";
    finding.remedy =
        "a smaller batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "where much "
        "is reserved and not in use";
    finding.causes = {"memory that is nearly full", "blocks of ever new sizes: the cache is in pieces"};
    finding.evidence = {{"retries", to.retries - from.retries},
                        {"steps", to.step - from.step},
                        {"reserved", to.reserved},
                        {"active", to.active}};
    finding.threshold = fmt::format("{:g} times a step, between three looks (Luff)", kRetriesAStep);
    sink.Report(std::move(finding));
  }
  std::optional<TraceClaim> Judge(const DeviceTrace& trace) override {
    // A new shape allocates once, and gives nothing back.
    if (trace.frees < static_cast<std::uint64_t>(steps()) || trace.allocation_s < share() * trace.span_s)
      return std::nullopt;
    TraceClaim claim;
    claim.cause = "empty_cache";
    claim.what = fmt::format("the host spends {} in cudaMalloc and cudaFree ({} calls in the trace)",
                             OfStep(trace.allocation_s, trace), trace.allocations);
    claim.why =
        "the allocator keeps what it has been given; that it asks the driver in the middle of a training "
        "means "
        "that its cache was emptied, or is too small for blocks of changing size. cudaFree waits for the "
        "device";
    claim.remedy =
        "take torch.cuda.empty_cache() out of the loop; if memory is nearly full, smaller batches or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
    claim.causes = {"torch.cuda.empty_cache() in each step",
                    "memory that is nearly full: the allocator frees and tries "
                    "again",
                    "batches of ever new shapes"};
    claim.evidence = {
        {"seconds", trace.allocation_s}, {"span_s", trace.span_s}, {"calls", trace.allocations}};
    claim.threshold = fmt::format("{:g} % of the traced time (Luff)", 100 * share());
    claim.saving_s = claim.high_s = trace.allocation_s;
    claim.low_s = trace.allocation_s / 2;
    claim.method = "time in these calls";
    return claim;
  }

  bool retries_ = false;      // the finding on the counters stands
  std::int64_t looked_ = -1;  // the last look that was judged
};

}  // namespace

RuleSpec Spec() {
  RuleSpec spec = SpecOf<AllocatorThrash>(kName, kParams);
  spec.version = 2;  // 2: counts steps at which a device was idle, tells traces apart by their files
  spec.summary = "memory goes back to the driver and is asked for again in each step";
  return spec;
}

}  // namespace luff::rules::allocator_thrash
