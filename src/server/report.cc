#include "server/report.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "luff/query/ranks.h"
#include "luff/rules/kept_findings.h"
#include "server/archive.h"
#include "server/assets.h"
#include "server/boosting.h"
#include "server/columns.h"
#include "server/finding_steps.h"
#include "server/gzip.h"
#include "server/run_api.h"
#include "server/samples.h"

namespace luff::server {
namespace {

using Json = nlohmann::ordered_json;
using query::Mode;
using query::TensorId;

constexpr std::size_t kAll = SIZE_MAX;
constexpr std::size_t kGroup = 64;                // curves a pack
constexpr std::size_t kFewPoints = 64;            // of curves, at least
constexpr std::size_t kNamedSteps = 256;          // steps that findings name
constexpr std::size_t kSpreadBytes = 2'000'000;   // of steps that nothing points to
constexpr std::size_t kHistograms = 20'000;       // of a step
constexpr std::size_t kLookedForHistograms = 64;  // newest steps
constexpr std::size_t kMaxTemplate = std::size_t{16} << 20;

struct WantedCurve {
  TensorId tensor;
  NamedStatistic statistic = kStatistics[0];
  std::optional<Mode> mode = {};  // none: the one that is shown unless another is asked for

  [[nodiscard]] std::string Route() const {
    return fmt::format("columns?tensor={}&stat={}{}{}", tensor, statistic.name, mode ? "&mode=" : "",
                       mode ? query::ModeName(*mode) : "");
  }
};

/// Chooses what a report holds, the most important first.
class Filling {
 public:
  Filling(const ListedRun& listed, OpenRun& run, const ReportOptions& options, std::size_t limit)
      : listed_(listed),
        run_(run),
        trial_(run.trial()),
        samples_(options.samples),
        archive_(limit) {}

  /// Returns the blocks.
  [[nodiscard]] Result<std::string> Fill(std::size_t limit);

 private:
  [[nodiscard]] Result<std::string> Ask(const std::string& route);
  [[nodiscard]] Status AddNames();
  void AddProfile();
  void AddNamedCurves();
  void AddAllCurves();
  void AddHeat(const NamedStatistic& statistic, std::size_t most);
  bool AddStep(std::int64_t step, std::size_t most);
  void AddNamedSteps();
  void AddSpreadSteps();
  void AddOtherStatistics();
  void AddHistograms();
  void AddSamples(std::size_t most);
  void AddConfusion(Mode mode);

  /// Adds curves of at most `points` points; all of them, or none if they take more than `most` bytes. Sets
  /// `exact` to false if one is not exact. Returns how many would have fitted.
  std::size_t AddCurves(const std::vector<WantedCurve>& wanted, std::size_t points, bool single,
                        std::size_t most, bool* exact);
  [[nodiscard]] std::vector<WantedCurve> AllCurves(const NamedStatistic& statistic) const;
  [[nodiscard]] std::string Facts() const;

  const ListedRun& listed_;
  OpenRun& run_;
  const query::Trial& trial_;
  const bool samples_;
  Archive archive_;
  rules::KeptFindings findings_;
  std::set<std::int64_t> steps_;          // that are in the file
  std::map<std::int64_t, Mode> sampled_;  // steps whose samples are
  std::size_t sampled_all_ = 0;
  std::vector<std::string> left_out_;
  std::map<TensorId, std::string> unread_;  // what is damaged, and how
};

Result<std::string> Filling::Ask(const std::string& route) {
  Request request;
  request.method = "GET";
  const std::string base = std::string(kApi) + "runs/" + listed_.id;
  LUFF_RETURN_IF_ERROR(ParseTarget(route.empty() ? base : base + "/" + route, &request));
  const Route* found = FindRoute("GET", std::string_view(request.path).substr(kApi.size()));
  if (found == nullptr || found->answer == nullptr) return NotFound("there is no route " + route);
  LUFF_ASSIGN_OR_RETURN(Response response, found->answer(listed_, run_, request));
  return std::move(response.body);
}

Status Filling::AddNames() {
  std::vector<RouteAnswer> answers;
  for (const char* route : {"", "tensors", "findings", "requests", "pages"}) {
    LUFF_ASSIGN_OR_RETURN(std::string bytes, Ask(route));
    answers.push_back({route, std::move(bytes)});
  }
  if (IsBoosted(trial_)) {
    LUFF_ASSIGN_OR_RETURN(std::string bytes, Ask("boosting"));
    answers.push_back({"boosting", std::move(bytes)});
  }
  if (archive_.Add(answers, kAll)) return Status::Ok();
  return ResourceExhausted(
      "verdict, findings and names of the tensors alone do not fit; allow more with --max-bytes");
}

std::size_t Filling::AddCurves(const std::vector<WantedCurve>& wanted, std::size_t points, bool single,
                               std::size_t most, bool* exact) {
  const std::size_t before = archive_.packs();
  const std::size_t end = archive_.used() + std::min(most, archive_.left());
  for (std::size_t begin = 0; begin < wanted.size(); begin += kGroup) {
    std::vector<RouteAnswer> answers;
    for (std::size_t i = begin; i < std::min(begin + kGroup, wanted.size()); ++i) {
      const WantedCurve& one = wanted[i];
      Payload payload;
      const auto added = AddCurve(trial_,
                                  {.tensor = one.tensor,
                                   .statistic = one.statistic.statistic,
                                   .mode = one.mode,
                                   .points = points,
                                   .brief = true,
                                   .single = single},
                                  &payload);
      if (!added.ok()) {
        unread_.try_emplace(one.tensor, added.status().message());
        continue;
      }
      *exact = *exact && *added;
      answers.push_back({one.Route(), payload.Bytes()});
    }
    if (!answers.empty() && !archive_.Add(answers, end - std::min(end, archive_.used()))) {
      archive_.CutTo(before);
      return begin;
    }
  }
  return wanted.size();
}

/// Where the time went: at most half a megabyte, however long the run.
void Filling::AddProfile() {
  auto told = Ask("profile"), steps = Ask("profile/steps");
  if (!told.ok() || !steps.ok() ||
      !archive_.Add({{"profile", *std::move(told)}, {"profile/steps", *std::move(steps)}},
                    archive_.left() / 2))
    left_out_.emplace_back("where the time went");
}

/// Losses, and what findings name: every value if they fit.
void Filling::AddNamedCurves() {
  std::vector<WantedCurve> wanted;
  std::set<std::string> known;
  const auto want = [&](TensorId tensor, Mode mode) {
    WantedCurve one{tensor};
    if (mode != ModeShown(trial_, tensor)) one.mode = mode;
    if (known.insert(one.Route()).second) wanted.push_back(one);
  };
  const Json document = TryParseOrderedJson(Ask("").value_or(""));
  for (const Json& loss : document["losses"]) {
    if (const auto mode = query::ParseMode(loss["mode"].get<std::string>()); mode.ok())
      want(loss["tensor"].get<TensorId>(), *mode);
  }
  for (const rules::Finding* finding : rules::InGroups(findings_.findings)) {
    const auto tensor = trial_.TensorNamed(finding->tensor);
    const auto mode = query::ParseMode(finding->mode);
    if (tensor && mode.ok()) want(*tensor, *mode);
  }
  // The first ones are the losses and the gravest. They get twice what the same number of others would.
  const std::size_t end = archive_.left() / 2;
  std::size_t thinned = 0, missing = 0;
  for (const WantedCurve& one : wanted) {
    const std::size_t share = archive_.left() - std::min(archive_.left(), end);
    bool exact = false, fits = false;
    for (const std::size_t points : {kAll, std::size_t{4096}, std::size_t{512}, std::size_t{64}}) {
      exact = true;
      fits = AddCurves({one}, points, false, points == kAll ? share / 4 : share, &exact) == 1;
      if (fits) break;
    }
    thinned += fits && !exact ? 1 : 0;
    missing += fits ? 0 : 1;
  }
  if (thinned > 0)
    left_out_.push_back(fmt::format("single values of {} losses and tensors that findings name", thinned));
  if (missing > 0)
    left_out_.push_back(fmt::format("{} curves of losses and tensors that findings name", missing));
}

std::vector<WantedCurve> Filling::AllCurves(const NamedStatistic& statistic) const {
  std::vector<WantedCurve> all;
  for (TensorId id = 0; id < trial_.tensor_count(); ++id) {
    WantedCurve one{id, statistic};
    if (!archive_.Has(one.Route())) all.push_back(one);
  }
  return all;
}

void Filling::AddAllCurves() {
  const std::vector<WantedCurve> all = AllCurves(kStatistics[0]);
  const std::size_t most = archive_.left() * 60 / 100;
  bool exact = true;
  std::size_t points = kMaxPoints;
  // Every value of each takes less than the extremes of half as many buckets.
  std::size_t fitting = AddCurves(all, points, true, archive_.left() * 80 / 100, &exact);
  while (fitting < all.size() && points > kFewPoints) {
    // As many fewer as did not fit, and a little fewer still.
    points = std::clamp(std::bit_floor(points * (fitting + 1) * 9 / 10 / all.size()), kFewPoints, points / 2);
    exact = true;
    fitting = AddCurves(all, points, true, most, &exact);
  }
  if (fitting < all.size()) {
    const std::vector<WantedCurve> part(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(fitting));
    fitting = AddCurves(part, points, true, most, &exact);
    left_out_.push_back(
        fmt::format("curves of {} of {} tensors", all.size() - fitting, trial_.tensor_count()));
  }
  if (!exact) {
    left_out_.push_back(fmt::format(
        "single values of long curves: smallest, mean and largest of at most {} buckets are there", points));
  }
  // What `auto` shows of anything but a loss is its norm, or its scalars.
  for (TensorId id = 0; id < trial_.tensor_count(); ++id) {
    if (trial_.tensor(id).role == query::Role::kLoss) continue;
    archive_.AddName(WantedCurve{id, *FindStatistic("l2")}.Route(), WantedCurve{id}.Route());
  }
}

void Filling::AddHeat(const NamedStatistic& statistic, std::size_t most) {
  const std::string route = fmt::format("heat?stat={}", statistic.name);
  HeatMap& map = run_.Heat(statistic, Mode::kTrain);
  while (!map.overview().Covers(trial_)) {
    if (const auto read = run_.ReadOverview(Mode::kTrain); !read.ok() || trial_.tensor_count() == 0) break;
  }
  auto answer = Ask(route);
  Json info = answer.ok() ? TryParseOrderedJson(*answer) : Json();
  if (!info.is_object()) {
    left_out_.push_back(fmt::format("the heat map of {}", statistic.name));
    return;
  }
  const std::vector<HeatMap::Level> levels = map.Levels();
  for (std::size_t finest = 0; finest < std::max<std::size_t>(levels.size(), 1); ++finest) {
    const std::size_t before = archive_.packs();
    const std::size_t end = archive_.used() + std::min(most, archive_.left());
    if (finest > 0) info["levels"].erase(0);
    bool fits = archive_.Add({{route, JsonText(info)}}, most);
    for (std::size_t level = finest; fits && level < levels.size(); ++level) {
      for (std::size_t y = 0; fits && y * HeatMap::kTile < map.rows(); ++y) {
        std::vector<RouteAnswer> tiles;
        for (std::size_t x = 0; x * HeatMap::kTile < levels[level].columns; ++x) {
          tiles.push_back(
              {fmt::format("heat/{}/{}/{}/{}", statistic.name, level - finest, x, y), map.Tile(level, x, y)});
        }
        fits = archive_.Add(tiles, end - std::min(end, archive_.used()));
      }
    }
    if (fits) {
      if (finest > 0) {
        left_out_.push_back(fmt::format("finer cells of the heat map of {} than {} steps", statistic.name,
                                        levels[finest].bucket_steps));
      }
      return;
    }
    archive_.CutTo(before);
  }
  left_out_.push_back(fmt::format("the heat map of {}", statistic.name));
}

/// Everything at one step, with its histograms.
bool Filling::AddStep(std::int64_t step, std::size_t most) {
  if (steps_.contains(step)) return true;
  auto at = Ask(fmt::format("at/{}", step));
  if (!at.ok()) return true;  // no such step
  std::vector<RouteAnswer> answers;
  answers.push_back({fmt::format("at/{}", step), *std::move(at)});
  std::size_t n = trial_.step_count();
  while (n > 0 && trial_.step_at(n - 1).global_step != step) --n;
  query::Trial::StepContents contents;
  if (n > 0 && trial_.ReadStepContents(n - 1, &contents).ok()) {
    std::set<TensorId> tensors;
    for (const auto& one : contents.histograms) tensors.insert(one.tensor);
    for (const auto& one : contents.values) tensors.insert(one.tensor);  // whose histogram may be computed
    for (const TensorId tensor : tensors) {
      if (answers.size() > kHistograms) break;
      const std::string route = fmt::format("histogram?tensor={}&step={}", tensor, step);
      if (auto bins = Ask(route); bins.ok()) answers.push_back({route, *std::move(bins)});
    }
  }
  if (!archive_.Add(answers, most)) return false;
  steps_.insert(step);
  return true;
}

/// The newest step, and those where findings began and were seen.
void Filling::AddNamedSteps() {
  std::vector<std::int64_t> wanted;
  if (trial_.step_count() > 0) wanted.push_back(trial_.step_at(trial_.step_count() - 1).global_step);
  for (const rules::Finding* finding : rules::InGroups(findings_.findings)) {
    for (const std::int64_t step : {GlobalStepsOf(trial_, *finding).since, finding->global_step}) {
      if (std::ranges::find(wanted, step) == wanted.end()) wanted.push_back(step);
    }
    if (wanted.size() > kNamedSteps) break;
  }
  const std::size_t end = archive_.left() * 3 / 4;
  std::size_t missing = 0;
  for (const std::int64_t step : wanted)
    missing += AddStep(step, archive_.left() - std::min(end, archive_.left())) ? 0 : 1;
  if (missing > 0) left_out_.push_back(fmt::format("{} steps at which findings began or were seen", missing));
}

/// Further steps, at equal distances, for a small part of the file.
void Filling::AddSpreadSteps() {
  const std::size_t count = trial_.step_count();
  const std::size_t most = std::min(archive_.left() / 4, kSpreadBytes);
  const std::size_t end = archive_.left() - most;
  const std::size_t before = archive_.used();
  // What one takes tells how many fit.
  for (std::size_t n = 0; n < count && archive_.used() == before; ++n) {
    if (!AddStep(trial_.step_at(n).global_step, most)) break;
  }
  const std::size_t each = std::max<std::size_t>(archive_.used() - before, 1000);
  const std::size_t wanted = std::min(count, most / each);
  for (std::size_t i = 0; i < wanted; ++i) {
    const std::int64_t step = trial_.step_at(wanted == 1 ? 0 : i * (count - 1) / (wanted - 1)).global_step;
    if (!AddStep(step, archive_.left() - std::min(end, archive_.left()))) break;
  }
  std::set<std::int64_t> all;
  for (std::size_t n = 0; n < count; ++n) all.insert(trial_.step_at(n).global_step);
  const std::size_t missing = all.size() - std::min(all.size(), steps_.size());
  if (missing > 0)
    left_out_.push_back(fmt::format("the table of all tensors at {} of {} steps", missing, all.size()));
}

void Filling::AddOtherStatistics() {
  std::string missing;
  for (const NamedStatistic& statistic : kStatistics) {
    if (statistic.statistic == Statistic::kAuto || statistic.statistic == Statistic::kL2) continue;
    bool exact = true;
    const std::vector<WantedCurve> all = AllCurves(statistic);
    if (AddCurves(all, 256, true, archive_.left() / 6, &exact) < all.size())
      missing += (missing.empty() ? "" : ", ") + std::string(statistic.name);
  }
  if (!missing.empty()) left_out_.push_back("curves of these statistics: " + missing);
}

/// Histograms over steps, first of what findings name. Where the newest steps have none, none are looked for.
void Filling::AddHistograms() {
  std::vector<TensorId> tensors;
  std::set<TensorId> known;
  const auto want = [&](TensorId tensor) {
    if (known.insert(tensor).second) tensors.push_back(tensor);
  };
  std::set<TensorId> some;
  query::Trial::StepContents contents;
  const std::size_t count = trial_.step_count();
  for (std::size_t n = count - std::min(count, kLookedForHistograms); n < count; ++n) {
    if (!trial_.ReadStepContents(n, &contents).ok()) continue;
    for (const auto& one : contents.histograms) some.insert(one.tensor);
    for (const auto& one : contents.values) some.insert(one.tensor);
  }
  for (const rules::Finding* finding : rules::InGroups(findings_.findings)) {
    if (const auto tensor = trial_.TensorNamed(finding->tensor); tensor && some.contains(*tensor))
      want(*tensor);
  }
  for (const TensorId tensor : some) want(tensor);
  const std::size_t end = archive_.left() * 4 / 5;
  std::size_t missing = 0;
  for (const TensorId tensor : tensors) {
    std::vector<RouteAnswer> answers;
    for (const char* scale : {"linear", "log"}) {
      const std::string route = fmt::format("histograms?tensor={}&scale={}", tensor, scale);
      if (auto answer = Ask(route); answer.ok()) answers.push_back({route, *std::move(answer)});
    }
    if (archive_.left() <= end || !archive_.Add(answers, archive_.left() - end)) ++missing;
  }
  if (missing > 0) left_out_.push_back(fmt::format("histograms over steps of {} tensors", missing));
}

/// Samples of the newest step of each mode, of those where findings began and were seen, then of as many
/// others as fit, at equal distances.
void Filling::AddSamples(std::size_t most) {
  const std::vector<std::size_t> all = SampledSteps(trial_, std::nullopt);
  sampled_all_ = all.size();
  if (!samples_ && !all.empty()) left_out_.emplace_back("all samples: --no-samples");
  if (!samples_ || all.empty()) return;
  std::vector<std::int64_t> steps, wanted;
  std::map<Mode, std::int64_t> newest;
  for (const std::size_t n : all) {
    steps.push_back(trial_.step_at(n).global_step);
    newest[trial_.step_at(n).mode] = steps.back();
  }
  for (const auto& [mode, step] : newest) wanted.push_back(step);
  for (const rules::Finding* finding : rules::InGroups(findings_.findings)) {
    for (const std::int64_t step : {GlobalStepsOf(trial_, *finding).since, finding->global_step}) {
      const auto at = std::ranges::upper_bound(steps, step);
      wanted.push_back(at == steps.begin() ? steps.front() : *(at - 1));
    }
  }
  for (std::size_t stride = std::bit_ceil(steps.size()); stride > 0; stride /= 2)
    for (std::size_t i = 0; i < steps.size(); i += stride) wanted.push_back(steps[i]);
  const std::size_t end = archive_.left() - std::min(most, archive_.left());
  for (const auto& [mode, step] : newest) AddConfusion(mode);
  for (const std::int64_t step : wanted) {
    if (sampled_.contains(step)) continue;
    const std::string route = fmt::format("samples?step={}", step);
    auto answer = Ask(route);
    if (!answer.ok()) continue;
    if (archive_.left() <= end || !archive_.Add({{route, *std::move(answer)}}, archive_.left() - end)) break;
    const auto at = static_cast<std::size_t>(std::ranges::lower_bound(steps, step) - steps.begin());
    sampled_.emplace(step, trial_.step_at(all[at]).mode);
  }
  if (sampled_.size() < all.size())
    left_out_.push_back(fmt::format("samples of {} of {} steps", all.size() - sampled_.size(), all.size()));
}

/// Confusion matrices of all steps: confusion?mode=MODE, and &loss=KEY behind it.
void Filling::AddConfusion(Mode mode) {
  const auto ask = [&](const std::string& loss) {
    Request request;
    request.query = {{"mode", std::string(query::ModeName(mode))}, {"loss", loss}};
    auto answer = ConfusionOf(listed_, run_, request);
    return answer.ok() ? std::move(answer->body) : std::string();
  };
  const std::string first = fmt::format("confusion?mode={}", query::ModeName(mode));
  const std::string shown = ask("");
  const Json about = TryParseOrderedJson(shown);
  if (!about.is_object()) return;
  std::vector<RouteAnswer> answers{{first, shown}};
  for (const Json& loss : about["losses"]) {
    if (loss["key"] != about["loss"])
      answers.push_back({first + "&loss=" + loss["key"].get<std::string>(), ask(loss["key"])});
  }
  if (!archive_.Add(answers, archive_.left() / 10)) {
    left_out_.push_back(fmt::format("the confusion matrix of {}", query::ModeName(mode)));
    return;
  }
  archive_.AddName(first + "&loss=" + about["loss"].get<std::string>(), first);
}

std::string Filling::Facts() const {
  Json facts{{"version", 1}, {"run", listed_.id}, {"left_out", left_out_}, {"steps", steps_}};
  facts["samples"] = {{"all", sampled_all_}, {"steps", Json::array()}, {"modes", Json::array()}};
  for (const auto& [step, mode] : sampled_) {
    facts["samples"]["steps"].push_back(step);
    facts["samples"]["modes"].push_back(query::ModeName(mode));
  }
  return archive_.Blocks(facts);
}

Result<std::string> Filling::Fill(std::size_t limit) {
  findings_ = rules::FindingsOfRun(listed_.path);
  LUFF_RETURN_IF_ERROR(AddNames());
  if (auto spans = Ask("spans"); spans.ok())  // without it steps have their global numbers
    archive_.Add({{"spans", *std::move(spans)}}, archive_.left() / 8);
  const std::size_t least = archive_.packs();
  AddProfile();
  AddNamedCurves();
  AddNamedSteps();
  AddHeat(*FindStatistic("l2"), archive_.left() * 35 / 100);
  if (auto norms = Ask("norms"); norms.ok())
    archive_.Add({{"norms", *std::move(norms)}}, archive_.left() / 8);
  AddAllCurves();
  AddHistograms();
  AddSamples(archive_.left() / 4);
  if (query::RanksOf(trial_) > 1) {
    auto ranks = Ask("ranks");
    if (!ranks.ok() || !archive_.Add({{"ranks", *std::move(ranks)}}, archive_.left() / 4))
      left_out_.emplace_back("ranks beside each other");
  }
  for (const NamedStatistic& statistic : kStatistics) {
    if (statistic.heat() && statistic.statistic != Statistic::kL2) AddHeat(statistic, archive_.left() / 6);
  }
  AddSpreadSteps();
  AddOtherStatistics();
  if (auto table = Ask("steps"); table.ok())
    archive_.Add({{"steps", *std::move(table)}}, archive_.left() / 2);
  if (!unread_.empty()) {
    left_out_.push_back(fmt::format("curves of {} tensor{}, which cannot be read: {}", unread_.size(),
                                    unread_.size() == 1 ? "" : "s", unread_.begin()->second));
  }
  std::string blocks = Facts();
  if (blocks.size() > limit) left_out_.emplace_back("some further curves and steps");
  while (blocks.size() > limit && archive_.packs() > least) {  // an index that is larger than was counted
    archive_.CutTo(archive_.packs() - 1);
    std::erase_if(steps_, [&](std::int64_t step) { return !archive_.Has(fmt::format("at/{}", step)); });
    std::erase_if(sampled_,
                  [&](const auto& one) { return !archive_.Has(fmt::format("samples?step={}", one.first)); });
    blocks = Facts();
  }
  if (blocks.size() > limit)
    return ResourceExhausted("the names alone do not fit; allow more with --max-bytes");
  return blocks;
}

}  // namespace

Result<std::string> ReportTemplate() {
  const Asset* asset = FindAsset(kReportAsset);
  if (asset == nullptr) {
    return FailedPrecondition(
        "this build of luff has no page, because it was made without Node; install luff from its wheel, or "
        "build it where Node is. luff show, luff explain and luff plot say the same in a terminal");
  }
  return Gunzipped(asset->gzipped, kMaxTemplate);
}

Result<std::string> MakeReport(const std::string& run, std::string_view page, const ReportOptions& options) {
  const std::size_t place = page.find(kReportPlace);
  if (place == std::string_view::npos) return Internal("the page has no place for a run");
  if (options.max_bytes < page.size())
    return ResourceExhausted(
        fmt::format("the page alone has {} bytes; allow more with --max-bytes", page.size()));
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(run, error).lexically_normal();
  if (error) return IoError(error.message() + ": " + run);
  std::string path = absolute.string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  LUFF_ASSIGN_OR_RETURN(auto trial, query::Trial::Open(path));
  LUFF_ASSIGN_OR_RETURN(const ListedRun listed, DescribeRun(path));
  OpenRun open(std::move(trial));
  open.traces().AllowBytes(profile::kMaxTraceBytes);
  const std::size_t limit = options.max_bytes - page.size();
  LUFF_ASSIGN_OR_RETURN(const std::string blocks, Filling(listed, open, options, limit).Fill(limit));
  std::string file;
  file.reserve(page.size() + blocks.size());
  file.append(page.substr(0, place)).append(blocks).append(page.substr(place + kReportPlace.size()));
  return file;
}

}  // namespace luff::server
