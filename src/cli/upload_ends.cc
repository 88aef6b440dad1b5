#include "cli/upload_ends.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "base/bounded_read.h"
#include "base/format.h"
#include "base/json.h"
#include "base/text_escape.h"
#include "luff/base/env.h"
#include "luff/rules/rule.h"

namespace luff::cli {
namespace {

// Those of `luff sync` after which there is nothing to begin again (python/luff/_verbs/sync.py).
constexpr std::array<int, 5> kFinalCodes = {0, 2, kUploadTakenOver, 5, 6};
// In first pauses. Together about thirteen minutes: longer than most shortages of memory.
constexpr std::array<std::int64_t, 8> kUploadPauses = {1, 2, 5, 15, 60, 120, 300, 300};
constexpr std::int64_t kSecondNs = 1'000'000'000, kSettledNs = 600 * kSecondNs;
constexpr double kMostFirstPauseS = 60;
constexpr std::uint64_t kMaxEndsBytes = 64 << 10;
constexpr std::string_view kEndsFormat = "luff-sync-ends";

std::string EndsPathOf(const std::string& run) { return run + "/sync/ends.json"; }

}  // namespace

bool MayBeginAgain(const ExitState& state) noexcept {
  return state.signal != 0 || std::ranges::find(kFinalCodes, state.code) == kFinalCodes.end();
}

std::optional<std::int64_t> UploadTries::After(std::int64_t lived_ns) noexcept {
  if (lived_ns >= kSettledNs) in_row_ = 0;
  if (in_row_ >= kUploadPauses.size()) return std::nullopt;
  return kUploadPauses[in_row_++] * first_pause_ns_;
}

std::int64_t FirstUploadPauseNs() {
  const char* text = std::getenv("LUFF_UPLOAD_PAUSE_S");
  const Result<double> seconds = rules::ParseDouble(text != nullptr ? text : "");
  const bool usable = seconds.ok() && seconds.value() >= 0 && seconds.value() <= kMostFirstPauseS;
  return usable ? static_cast<std::int64_t>(seconds.value() * 1e9) : kSecondNs;
}

std::string EndText(const ExitState& state) {
  return state.signal != 0 ? fmt::format("signal {}", state.signal) : fmt::format("exit code {}", state.code);
}

Status WriteUploadEnds(const std::string& run, const UploadEnds& ends) {
  LUFF_RETURN_IF_ERROR(Env::Real().MakeDirectories(run + "/sync"));
  const nlohmann::json json = {{"format", kEndsFormat},    {"version", 1},          {"url", ends.url},
                               {"ends", ends.ends},        {"last", ends.last},     {"unix_ns", ends.unix_ns},
                               {"again", ends.again},      {"config", ends.config}, {"job", ends.job},
                               {"training", ends.training}};
  return WriteWholeFile(Env::Real(), EndsPathOf(run), AsciiJsonText(json) + "\n");
}

std::optional<UploadEnds> ReadUploadEnds(const std::string& run) {
  const auto text = ReadRegular(EndsPathOf(run), kMaxEndsBytes, 1);
  if (!text.ok()) return {};
  const nlohmann::json json = TryParseJson(*text, {.bytes = kMaxEndsBytes, .depth = 8});
  if (!json.is_object() || TextMember(json, "format") != kEndsFormat) return {};
  const std::int64_t ends = WholeMember(json, "ends", 0);
  if (WholeMember(json, "version", -1) != 1 || ends <= 0) return {};
  return UploadEnds{TextMember(json, "url"),   static_cast<std::uint64_t>(ends),
                    TextMember(json, "last"),  WholeMember(json, "unix_ns", 0),
                    FlagMember(json, "again"), TextMember(json, "config"),
                    TextMember(json, "job"),   WholeMember(json, "training", 1)};
}

std::string UploadByHand(const std::string& run, const UploadEnds& ends) {
  return fmt::format(
      "luff sync {} {}{}{}{}", Escaped(run), Escaped(ends.url),
      ends.config.empty() ? "" : " --config " + Escaped(ends.config),
      ends.job.empty() ? "" : " --job '" + Escaped(ends.job) + "'",
      ends.job.empty() || ends.training == 1 ? "" : fmt::format(" --training {}", ends.training));
}

void ForgetUploadEnds(const std::string& run) noexcept { unlink(EndsPathOf(run).c_str()); }

}  // namespace luff::cli
