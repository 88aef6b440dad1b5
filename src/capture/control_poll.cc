#include "capture/control_poll.h"

#include <sys/stat.h>

#include <algorithm>

#include "luff/base/env.h"

namespace luff::capture {
void ControlPoll::Poll(std::int64_t steady_ns, std::vector<format::AckRow>* acks) {
  constexpr std::int64_t kCoarseNs = 50'000'000;
  constexpr std::int64_t kFullNs = 1'000'000'000;
  gate_->TakeAnswers(acks);
  SettleAbort(steady_ns, acks);
  struct stat info{};
  const bool found = ::stat(directory_.c_str(), &info) == 0;
  const std::int64_t modified = found ? info.st_mtim.tv_sec * 1'000'000'000LL + info.st_mtim.tv_nsec : -1;
  if (modified != modified_ns_) {
    modified_ns_ = modified;
    look_until_ns_ = steady_ns + kCoarseNs;
  }
  if (steady_ns > look_until_ns_ && steady_ns < next_full_ns_) return;
  next_full_ns_ = steady_ns + kFullNs;
  if (!found) return;
  Result<std::vector<store::ControlRecord>> records = read_(after_);
  if (!records.ok()) return;
  const std::int64_t unix_ns = Env::Real().NowUnixNs();
  for (const store::ControlRecord& record : *records) {
    after_ = std::max(after_, record.number);
    gate_->Take(record, unix_ns, acks);
  }
}

void ControlPoll::SettleAbort(std::int64_t steady_ns, std::vector<format::AckRow>* acks) {
  constexpr std::int64_t kAgainNs = 100'000'000;
  if (!decide_ || steady_ns < next_decide_ns_) return;
  const std::optional<store::ControlRecord> wanted = gate_->AbortWanted();
  if (!wanted) return;
  next_decide_ns_ = steady_ns + kAgainNs;
  const Result<store::ControlRecord> counts = decide_(*wanted);
  if (counts.ok()) gate_->Take(*counts, Env::Real().NowUnixNs(), acks);
}

}  // namespace luff::capture
