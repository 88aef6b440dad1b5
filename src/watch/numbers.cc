#include "watch/numbers.h"

#include <algorithm>
#include <limits>

#include "base/format.h"

namespace luff::watch {

void Numbers::Judged(std::size_t steps, double lag_s) {
  const std::scoped_lock lock(mutex_);
  steps_ += steps;
  lag_sum_ += lag_s * static_cast<double>(steps);
  const auto at = std::ranges::lower_bound(kBounds, lag_s) - kBounds.begin();
  lags_[static_cast<std::size_t>(at)] += steps;
}

void Numbers::Found(const std::string& rule, const std::string& severity) {
  const std::scoped_lock lock(mutex_);
  ++found_[{rule, severity}];
}

void Numbers::Checkpointed(bool ok) {
  const std::scoped_lock lock(mutex_);
  ++(ok ? saved_ : not_saved_);
}

void Numbers::AskedBucket(const Traffic& more) {
  const std::scoped_lock lock(mutex_);
  asked_.gets += more.gets;
  asked_.puts += more.puts;
  asked_.sent += more.sent;
  asked_.received += more.received;
}

void Numbers::SetRuns(const RunStates& states, double lag_s, std::size_t slow, bool ready) {
  const std::scoped_lock lock(mutex_);
  states_ = states;
  lag_s_ = lag_s;
  slow_ = slow;
  ready_ = ready;
}

bool Numbers::ready() const {
  const std::scoped_lock lock(mutex_);
  return ready_;
}

double Numbers::LagQuantile(double q) const {
  const std::scoped_lock lock(mutex_);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    below += lags_[i];
    if (static_cast<double>(below) >= q * static_cast<double>(steps_)) return kBounds[i];
  }
  return std::numeric_limits<double>::infinity();
}

std::string Numbers::Prometheus() const {
  const std::scoped_lock lock(mutex_);
  std::string text;
  const auto head = [&](const char* name, const char* type, const char* help) {
    text += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  };
  head("luff_watch_ready", "gauge",
       "1 while steps are judged within 5 s, 0 when they have not been for 30 s");
  text += fmt::format("luff_watch_ready {}\n", ready_ ? 1 : 0);
  head("luff_watch_runs", "gauge", "Runs by state");
  for (const auto& [state, count] :
       {std::pair("live", states_.live), std::pair("ended", states_.ended),
        std::pair("elsewhere", states_.elsewhere), std::pair("waiting", states_.waiting),
        std::pair("failed", states_.failed)})
    text += fmt::format("luff_watch_runs{{state=\"{}\"}} {}\n", state, count);
  head("luff_watch_slow_runs", "gauge", "Live runs that are judged by the slow lane");
  text += fmt::format("luff_watch_slow_runs {}\n", slow_);
  head("luff_watch_behind_seconds", "gauge", "Age of the oldest step that is not judged");
  text += fmt::format("luff_watch_behind_seconds {:.3f}\n", lag_s_);
  head("luff_watch_lag_seconds", "histogram", "From the publication of a step to its judgement");
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    below += lags_[i];
    text += fmt::format("luff_watch_lag_seconds_bucket{{le=\"{}\"}} {}\n", kBounds[i], below);
  }
  text += fmt::format(
      "luff_watch_lag_seconds_bucket{{le=\"+Inf\"}} {0}\nluff_watch_lag_seconds_sum {1:.3f}\n"
      "luff_watch_lag_seconds_count {0}\n",
      steps_, lag_sum_);
  head("luff_watch_steps_total", "counter", "Steps that were judged");
  text += fmt::format("luff_watch_steps_total {}\n", steps_);
  head("luff_watch_findings_total", "counter", "Findings that were said");
  for (const auto& [key, count] : found_)
    text += fmt::format("luff_watch_findings_total{{rule=\"{}\",severity=\"{}\"}} {}\n", key.first,
                        key.second, count);
  head("luff_watch_checkpoints_total", "counter", "Checkpoints on leaving and at a run's end");
  text += fmt::format(
      "luff_watch_checkpoints_total{{result=\"ok\"}} {}\n"
      "luff_watch_checkpoints_total{{result=\"failed\"}} {}\n",
      saved_, not_saved_);
  if (asked_.gets + asked_.puts == 0) return text;  // no bucket
  head("luff_watch_bucket_requests_total", "counter", "Requests to the bucket; put: also lists");
  text += fmt::format(
      "luff_watch_bucket_requests_total{{kind=\"get\"}} {}\n"
      "luff_watch_bucket_requests_total{{kind=\"put\"}} {}\n",
      asked_.gets, asked_.puts);
  head("luff_watch_bucket_bytes_total", "counter", "Bytes of objects, from and to the bucket");
  text += fmt::format(
      "luff_watch_bucket_bytes_total{{direction=\"received\"}} {}\n"
      "luff_watch_bucket_bytes_total{{direction=\"sent\"}} {}\n",
      asked_.received, asked_.sent);
  return text;
}

}  // namespace luff::watch
