#include "server/profile_api.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/format.h"
#include "base/json.h"
#include "base/json_nonfinite.h"
#include "luff/profile/phase_buckets.h"
#include "luff/rules/kept_findings.h"
#include "server/columns.h"
#include "server/payload.h"
#include "server/time_json.h"

namespace luff::server {
namespace {

constexpr std::size_t kMostHosts = 8;  // in one answer
constexpr std::size_t kMostStalls = 16;

Result<std::optional<std::uint32_t>> WorkerIn(const Request& request) {
  if (request.Parameter("worker").empty()) return std::optional<std::uint32_t>();
  LUFF_ASSIGN_OR_RETURN(const auto worker, NumberIn<std::uint32_t>(request, "worker", 0));
  return std::optional(worker);
}

void AddBand(const std::string& name, const profile::Band& band, Payload* payload) {
  payload->Add(name + ".lo", band.lo);
  payload->Add(name + ".hi", band.hi);
  payload->Add(name + ".mean", band.mean);
}

/// The machines, that of the worker first.
Status AddMachines(const std::string& run, const profile::PhaseBuckets& buckets, Payload* payload) {
  const auto samples = query::Samples::Open(run);
  std::string names;
  if (samples.ok()) {
    const std::string own = fmt::format("rank.{}.cpu", buckets.worker);
    const auto has_worker = [&](const query::HostSamples& host) {
      return std::ranges::any_of(host.series(), [&](const auto& one) { return one.name == own; });
    };
    std::vector<const query::HostSamples*> hosts;
    for (const query::HostSamples& host : (*samples)->hosts()) hosts.push_back(&host);
    std::ranges::stable_partition(hosts, [&](const auto* host) { return has_worker(*host); });
    for (std::size_t i = 0; i < std::min(hosts.size(), kMostHosts); ++i) {
      LUFF_ASSIGN_OR_RETURN(const profile::MachineBands bands, profile::BandsOf(*hosts[i], buckets));
      for (const auto& [name, band] : bands.bands)
        AddBand(fmt::format("host.{}.{}", bands.host, name), band, payload);
      names += fmt::format("{}{}", names.empty() ? "" : ",", bands.host);
    }
  }
  payload->Tell("hosts", names);
  return Status::Ok();
}

}  // namespace

Result<Response> ProfileRoute(const ListedRun& listed, OpenRun& run, const Request& request) {
  profile::Scope scope;
  scope.global = true;
  LUFF_ASSIGN_OR_RETURN(scope.worker, WorkerIn(request));
  LUFF_ASSIGN_OR_RETURN(scope.from, NumberIn<std::int64_t>(request, "from", 0));
  LUFF_ASSIGN_OR_RETURN(scope.to, NumberIn<std::int64_t>(request, "to", INT64_MAX));
  LUFF_ASSIGN_OR_RETURN(const profile::TimeReport report, profile::TimeReportOf(run.trial(), scope));
  query::TimeSpan span;
  const bool part = !request.Parameter("from").empty() || !request.Parameter("to").empty();
  if (part && report.table.steps > 0) span = {report.table.begin_unix_ns, report.table.end_unix_ns};
  const profile::Machines machines = profile::MachinesOf(run.trial(), span);
  const auto findings =
      rules::TimeFindings(rules::FindingsOfRun(listed.path).findings, !report.verdict.cause);
  const std::uint32_t worker = report.table.steps > 0 ? report.table.worker : scope.worker.value_or(0);
  const profile::StackReport stacks = profile::StackReportOf(run.trial(), worker);
  const profile::TraceReport traces = profile::TraceReportOf(
      run.trial(), worker,
      [&](const profile::TraceFile& trace) { return run.traces().Of(run.trial().path(), worker, trace); });
  nlohmann::ordered_json json =
      DescribeTime({run.trial(), report, findings, machines, stacks, traces}, {.most_stalls = kMostStalls});
  NameNonFinite(&json);
  return Response{.body = JsonText(json)};
}

Result<Response> ProfileStepsRoute(const ListedRun& listed, OpenRun& run, const Request& request) {
  profile::BucketQuestion asked;
  LUFF_ASSIGN_OR_RETURN(asked.worker, WorkerIn(request));
  LUFF_ASSIGN_OR_RETURN(asked.from, NumberIn<std::int64_t>(request, "from", 0));
  LUFF_ASSIGN_OR_RETURN(asked.to, NumberIn<std::int64_t>(request, "to", INT64_MAX));
  LUFF_ASSIGN_OR_RETURN(asked.points, NumberIn<std::size_t>(request, "points", 512));
  if (asked.from > asked.to || asked.from < 0)
    return InvalidArgument("from must be at least 0 and at most to");
  if (asked.points == 0 || asked.points > kMaxPoints)
    return InvalidArgument(fmt::format("points is {}, expected 1 to {}", asked.points, kMaxPoints));
  LUFF_ASSIGN_OR_RETURN(const profile::PhaseBuckets buckets, profile::BucketsOf(run.trial(), asked));
  Payload payload;
  payload.Tell("worker", fmt::format("{}", buckets.worker));
  payload.Tell("workers", fmt::format("{}", fmt::join(buckets.workers, ",")));
  payload.Tell("bucket_steps", fmt::format("{}", buckets.bucket_steps));
  payload.Add("step", buckets.step);
  payload.Add("last", buckets.last);
  payload.Add("train", buckets.train);
  payload.Add("train_last", buckets.train_last);
  payload.Add("steps", buckets.steps);
  AddBand("step_s", buckets.wall, &payload);
  std::string names;
  for (std::size_t i = 0; i < format::kPhaseCount; ++i) {
    if (buckets.phases[i].mean.empty()) continue;
    const std::string name(format::PhaseName(static_cast<std::uint8_t>(i)));
    AddBand("phase." + name, buckets.phases[i], &payload);
    names += (names.empty() ? "" : ",") + name;
  }
  payload.Tell("phases", names);
  payload.Add("cpu", buckets.cpu);
  payload.Add("run_queue", buckets.run_queue);
  LUFF_RETURN_IF_ERROR(AddMachines(listed.path, buckets, &payload));
  return Response{.type = "application/vnd.safetensors", .body = payload.Bytes()};
}

}  // namespace luff::server
