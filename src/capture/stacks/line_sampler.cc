#include "capture/stacks/line_sampler.h"

#include <unistd.h>

#include <algorithm>

#include "base/text_escape.h"
#include "capture/json_text.h"
#include "capture/phase_clock.h"
#include "luff/base/env.h"
#include "luff/capture/stacks.h"
#include "luff/format/names.h"

namespace luff::capture {
namespace {

using format::Phase;

constexpr std::int64_t kLongNs = 20'000'000;
constexpr std::int64_t kEveryNs = 100'000'000;
constexpr std::int64_t kTimesCost = 2000;
constexpr std::int64_t kTellNs = 10'000'000'000;
constexpr std::size_t kMostPlaces = 256;
constexpr std::size_t kDeep = 48;

bool IsUnexplained(Phase phase) noexcept {
  return phase == Phase::kOther || phase == Phase::kDataWait || phase == Phase::kDataStart;
}

}  // namespace

void LineSampler::Look(std::int64_t now_ns, std::int32_t thread) {
  if (now_ns < next_ns_) return;
  const LuffPythonLayout* python = PythonHere();
  const auto before = NowOf(thread);
  if (python == nullptr || python->version == 0 || !before) return;
  if (!IsUnexplained(before->phase) || now_ns - before->since_ns < kLongNs) return;
  const std::int64_t begin = Env::Real().NowMonotonicNs();
  ProcessMemory memory(getpid());
  const PythonThread stack = ReadStackUntrusted(&memory, *python, thread, before->pthread_id, kDeep);
  const std::int64_t cost = Env::Real().NowMonotonicNs() - begin;
  next_ns_ = now_ns + std::max(kEveryNs, kTimesCost * cost);
  const auto after = NowOf(thread);
  const bool stayed = after && after->phase == before->phase && after->since_ns == before->since_ns;
  if (stayed && !stack.frames.empty()) Count(before->phase, stack.frames);
}

void LineSampler::Count(Phase phase, const std::vector<PythonFrame>& frames) {
  const auto own = std::ranges::find_if(frames, [](const PythonFrame& one) { return IsOwnFile(one.file); });
  const PythonFrame& at = own == frames.end() ? frames.back() : *own;
  const std::string inside = own == frames.begin() ? "" : frames.front().function;
  ++samples_;
  Place place{static_cast<std::uint8_t>(phase), at.file, at.line, at.function, inside};
  if (const auto known = counts_.find(place); known != counts_.end()) {
    ++known->second;
  } else if (counts_.size() < kMostPlaces) {
    counts_.emplace(std::move(place), 1);
  } else {
    ++elsewhere_;
  }
}

void LineSampler::Tell(std::int64_t now_ns, bool final,
                       std::vector<std::pair<std::string, std::string>>* documents) {
  if (samples_ == told_ || (!final && now_ns < next_tell_ns_)) return;
  tell_every_ns_ = std::clamp(2 * tell_every_ns_, kTellNs, 30 * kTellNs);
  next_tell_ns_ = now_ns + tell_every_ns_;
  told_ = samples_;
  std::string json = "{\"samples\":" + std::to_string(samples_) +
                     ",\"elsewhere\":" + std::to_string(elsewhere_) + ",\"lines\":[";
  bool first = true;
  for (const auto& [place, count] : counts_) {
    const auto& [phase, file, line, function, inside] = place;
    if (!first) json += ",";
    first = false;
    json += "{\"phase\":\"" + std::string(format::PhaseName(phase)) +
            "\",\"file\":" + JsonQuoted(ValidUtf8(file)) + ",\"line\":" + std::to_string(line) +
            ",\"function\":" + JsonQuoted(ValidUtf8(function)) +
            ",\"inside\":" + JsonQuoted(ValidUtf8(inside)) + ",\"count\":" + std::to_string(count) + "}";
  }
  documents->emplace_back("lines", json + "]}");
}

}  // namespace luff::capture
