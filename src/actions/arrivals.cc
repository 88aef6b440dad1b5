#include "luff/actions/arrivals.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/env.h"
#include "luff/store/arrived.h"

namespace luff::actions {

std::vector<Arrivals::Refused> Arrivals::Look(std::int64_t now_ns) {
  constexpr std::int64_t kEveryNs = 250'000'000;
  constexpr std::size_t kAtOnce = 8;
  if (now_ns < next_ns_) return {};
  next_ns_ = now_ns + kEveryNs;
  const auto arrived = store::ReadArrived(run_, kAtOnce);
  if (!arrived.ok()) return {};  // nothing there, or not now
  std::vector<Refused> refused;
  for (const store::Arrived& one : *arrived) {
    auto record = one.problem.empty() ? gate_->Open(one.bytes, Env::Real().NowUnixNs())
                                      : Result<store::ControlRecord>(FailedPrecondition(one.problem));
    if (record.ok()) {
      nlohmann::ordered_json body = TryParseOrderedJson(record->body);
      body["object"] = one.number;  // for who signs the next one; what counts is what was signed
      record->body = JsonText(body);
      const auto written = store::WriteControl(run_, *record);
      if (!written.ok()) break;  // the disk is full: it waits, until its signature expires
    } else {
      refused.push_back({one.number, std::string(record.status().message())});
    }
    const Status removed = store::RemoveArrived(run_, one.number);
    static_cast<void>(removed);  // seen again, it is a replay
  }
  return refused;
}

}  // namespace luff::actions
