#include "luff/actions/inbox.h"

#include <algorithm>

#include "base/format.h"
#include "luff/base/env.h"

namespace luff::actions {

std::vector<store::ControlRecord> Inbox::Admitted(std::vector<store::ControlRecord> records,
                                                  std::map<std::uint64_t, std::string>* refused) {
  std::map<std::uint64_t, std::string> settled;  // by number: the phase of its answer
  for (const store::ControlRecord& record : records) {
    if (record.kind == "reply") settled.emplace(record.proposal, record.phase);
  }
  const std::int64_t now = Env::Real().NowUnixNs();
  std::vector<store::ControlRecord> admitted;
  for (store::ControlRecord& record : records) {
    const bool request = record.kind == "request";
    if (!request && record.kind != "mark" && record.kind != "label") {
      admitted.push_back(std::move(record));
      continue;
    }
    const std::uint64_t number = record.number;
    if (const auto answer = settled.find(number); answer != settled.end()) {
      gate_->Remember(record);
      if (request || answer->second != "refused") admitted.push_back(std::move(record));
      continue;
    }
    const bool own = own_.erase(number) > 0;
    Result<store::ControlRecord> good = own ? Result(record) : gate_->Admit(record, now);
    // What was admitted once counts also after its signature has expired, and for the next supervisor.
    if (!request) {
      static_cast<void>(Reply(number, good.ok() ? Asked::State::kDone : Asked::State::kRefused, -1,
                              good.ok() ? "" : std::string(good.status().message())));
      if (!good.ok())
        refused_.push_back(
            fmt::format("{} {} counts for nothing: {}", record.kind, number, good.status().message()));
    } else if (!good.ok()) {
      (*refused)[number] = good.status().message();
      admitted.push_back(std::move(record));
    }
    if (good.ok()) admitted.push_back(*std::move(good));
  }
  return admitted;
}

void Inbox::TrustEarlier(const std::vector<store::ControlRecord>& records) {
  // A note on a run that has ended is its owner's, commands nothing, and counted when it was written. A mark
  // of then would silence the actions of the job that goes on.
  const auto ended = std::ranges::find_if(records.rbegin(), records.rend(),
                                          [](const auto& record) { return record.kind == "outcome"; });
  // Nor does what was written while a later job with keys ran, whose supervisor was killed.
  for (auto at = ended.base(); ended != records.rend() && at != records.end() && at->kind != "keys"; ++at) {
    if (at->kind == "label") Trust(at->number);
  }
  const auto first = std::ranges::find_if(records, [](const store::ControlRecord& record) {
    return record.kind == "keys" && record.body != R"({"keys":[]})";
  });
  if (first == records.end()) return;
  std::for_each(records.begin(), first, [this](const store::ControlRecord& record) {
    if (record.kind == "mark" || record.kind == "label") Trust(record.number);
  });
}

std::vector<Heard> Inbox::Look(std::int64_t now_ns) {
  constexpr std::int64_t kEveryNs = 250'000'000;
  if (now_ns < next_ns_) return {};
  next_ns_ = now_ns + kEveryNs;
  auto records = store::ReadCommands(run_, read_);
  if (!records.ok() || records->empty()) return {};  // nothing there, or not now
  if (read_ == 0 && gate_ != nullptr) TrustEarlier(*records);
  read_ = records->back().number;
  std::map<std::uint64_t, std::string> refused;
  const auto admitted =
      gate_ != nullptr ? Admitted(*std::move(records), &refused) : store::WithoutRefused(*std::move(records));
  const bool takes_back = gate_ == nullptr && std::ranges::any_of(admitted, [](const auto& record) {
                            return record.kind == "reply" && record.phase == "refused";
                          });
  TakeMarks(admitted, &marks_);
  if (takes_back) {  // of a mark that an earlier look took, whose supervisor has answered now
    if (const auto all = store::ReadCommands(run_, 0); all.ok()) marks_ = MarksIn(*all);
  }
  std::vector<Heard> heard;
  for (Asked& asked : RequestsIn(admitted)) {
    if (asked.answered()) continue;
    const auto why = refused.find(asked.number);
    heard.push_back({std::move(asked), why == refused.end() ? "" : why->second});
  }
  return heard;
}

Status Inbox::Reply(std::uint64_t request, Asked::State state, std::int64_t train_step,
                    const std::string& why) const {
  store::ControlRecord record;
  record.kind = "reply";
  record.phase = StateName(state);
  record.proposal = request;
  record.train_step = train_step;
  record.reason = why;
  record.author = "luff run";
  return store::WriteControl(run_, record).status();
}

const Mark* Inbox::MarkOfFinding(const std::string& finding) const {
  const auto mark = marks_.find(finding);
  return mark == marks_.end() ? nullptr : &mark->second;
}

}  // namespace luff::actions
