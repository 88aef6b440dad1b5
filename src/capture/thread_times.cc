#include "capture/thread_times.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/bounded_read.h"

namespace luff::capture {
namespace {
constexpr std::int64_t kIntervalNs = 40'000'000;  // shorter than the interval of its polls
}

namespace {

/// The 12th number of a thread's `stat`; its second one, a name in parentheses, may hold anything.
std::int64_t MajorFaultsOf(const std::string& stat) {
  constexpr int kFieldsBefore = 10;  // from the end of the name on
  std::size_t at = stat.rfind(')');
  for (int i = 0; i < kFieldsBefore && at != std::string::npos; ++i) at = stat.find(' ', at + 1);
  std::int64_t faults = -1;
  if (at == std::string::npos) return -1;
  const auto [end, error] = std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), faults);
  return error == std::errc() && faults >= 0 ? faults : -1;
}

}  // namespace

std::optional<ThreadTimes::Counters> ThreadTimes::ReadKernel(std::int32_t thread) {
  const std::string folder = "/proc/self/task/" + std::to_string(thread);
  // Opened anew each time: a descriptor that stays open could be closed, and then be another file, by the
  // training.
  const std::string text = ReadKernelFile(folder + "/schedstat", 96);
  Counters counters;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, counters.cpu_ns);
  if (error != std::errc() || after == end) return std::nullopt;
  const auto waited = std::from_chars(after + 1, end, counters.run_queue_ns);
  if (waited.ec != std::errc() || counters.cpu_ns < 0 || counters.run_queue_ns < 0) return std::nullopt;
  counters.major_faults = MajorFaultsOf(ReadKernelFile(folder + "/stat", 1024));
  return counters;
}

ThreadTimes::Counters ThreadTimes::At(std::int64_t ns) const noexcept {
  const Reading* after = readings_.data() + readings_.size() - known_;
  const Reading* const last = readings_.data() + readings_.size() - 1;
  while (after != last && after->at_ns < ns) ++after;
  if (after == readings_.data() + readings_.size() - known_) return after->counters;
  const Reading& before = after[-1];
  const double share =
      std::clamp(static_cast<double>(ns - before.at_ns) /
                     static_cast<double>(std::max<std::int64_t>(after->at_ns - before.at_ns, 1)),
                 0.0, 1.0);
  const auto between = [share](std::int64_t from, std::int64_t to) {
    return from + static_cast<std::int64_t>(share * static_cast<double>(to - from));
  };
  return {between(before.counters.cpu_ns, after->counters.cpu_ns),
          between(before.counters.run_queue_ns, after->counters.run_queue_ns),
          before.counters.major_faults < 0 || after->counters.major_faults < 0
              ? -1
              : between(before.counters.major_faults, after->counters.major_faults)};
}

void ThreadTimes::FillIn(const PhasesEnd& end, std::int64_t now_ns, store::StepPhases* phases) {
  if (end.thread != thread_) {
    thread_ = end.thread;
    known_ = 0;
    end_ns_ = 0;
  }
  if (known_ == 0 || (end.at_ns > readings_.back().at_ns && now_ns - readings_.back().at_ns >= kIntervalNs)) {
    if (const auto counters = read_(thread_)) {
      std::move(readings_.begin() + 1, readings_.end(), readings_.begin());
      readings_.back() = {now_ns, *counters};
      known_ = std::min(known_ + 1, readings_.size());
    }
  }
  if (known_ == 0) return;
  format::PhasesHead& head = phases->head;
  const Counters at_end = At(end.at_ns);
  // The first step began before the first reading; one that ended before it has no times.
  if (end_ns_ != 0 && end.at_ns - head.wall_ns == end_ns_) {
    head.cpu_ns = std::max<std::int64_t>(at_end.cpu_ns - at_end_.cpu_ns, 0);
    head.run_queue_ns = std::max<std::int64_t>(at_end.run_queue_ns - at_end_.run_queue_ns, 0);
    if (at_end.major_faults >= 0 && at_end_.major_faults >= 0)
      head.major_faults = static_cast<std::uint32_t>(
          std::clamp<std::int64_t>(at_end.major_faults - at_end_.major_faults, 0, format::kNoId - 1));
  }
  end_ns_ = end.at_ns;
  at_end_ = at_end;
}

}  // namespace luff::capture
