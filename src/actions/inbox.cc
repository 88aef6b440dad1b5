#include "luff/actions/inbox.h"

#include <algorithm>

namespace luff::actions {

std::vector<Asked> Inbox::Look(std::int64_t now_ns) {
  constexpr std::int64_t kEveryNs = 250'000'000;
  if (now_ns < next_ns_) return {};
  next_ns_ = now_ns + kEveryNs;
  const auto records = store::ReadCommands(run_, read_);
  if (!records.ok() || records->empty()) return {};  // nothing there, or not now
  read_ = records->back().number;
  TakeMarks(*records, &marks_);
  std::vector<Asked> asked = RequestsIn(*records);
  std::erase_if(asked, [](const Asked& one) { return one.answered(); });
  return asked;
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
