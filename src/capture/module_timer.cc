#include "luff/capture/module_timer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "luff/base/env.h"

namespace luff::capture {
namespace {

constexpr std::size_t kMostCalls = 32'768;
constexpr std::uint64_t kLeaves = std::uint64_t{1} << 31;

std::int64_t Now() noexcept { return Env::Real().NowMonotonicNs(); }

std::int64_t Own(const format::ModuleTimeRow& row) noexcept {
  return row.forward_self_ns + std::max<std::int64_t>(row.backward_self_ns, 0);
}

/// Adds a time that may not be known.
void Add(std::int64_t more, std::int64_t* to) noexcept {
  if (more >= 0) *to = std::max<std::int64_t>(*to, 0) + more;
}

/// Makes the last rows one, so that kMaxModuleRows are left.
void Shorten(std::vector<format::ModuleTimeRow>* rows) {
  if (rows->size() <= format::kMaxModuleRows) return;
  format::ModuleTimeRow rest{format::kNoId, 0, -1, 0, -1, -1};
  for (std::size_t i = format::kMaxModuleRows - 1; i < rows->size(); ++i) {
    const format::ModuleTimeRow& row = (*rows)[i];
    rest.calls += row.calls;
    rest.forward_self_ns += row.forward_self_ns;
    Add(row.backward_self_ns, &rest.backward_self_ns);
  }
  rows->resize(format::kMaxModuleRows - 1);
  rows->push_back(rest);
}

}  // namespace

ModuleTimer::ModuleTimer(std::int64_t (*now)() noexcept) noexcept : now_(now != nullptr ? now : Now) {}

void ModuleTimer::Begin() noexcept {
  ++step_;
  calls_.clear();
  flags_ = 0;
  call_ = back_ = kNone;
  since_ns_ = back_since_ns_ = -1;
  passing_ = false;
}

bool ModuleTimer::IsWithin(std::uint32_t call, std::uint32_t other) const noexcept {
  while (call != kNone && call > other) call = calls_[call].around;
  return call == other;
}

void ModuleTimer::Count() noexcept {
  const std::int64_t now = now_();
  if (since_ns_ >= 0 && call_ != kNone) calls_[call_].forward_ns += now - since_ns_;
  since_ns_ = now;
}

void ModuleTimer::Pause() noexcept {
  Count();
  since_ns_ = -1;
}

void ModuleTimer::Resume() noexcept { since_ns_ = now_(); }

std::uint32_t ModuleTimer::Enter(std::uint32_t module) noexcept {
  Pause();
  if (calls_.size() == kMostCalls) {
    flags_ |= format::kModulesTooMany;
    return kNone;
  }
  try {
    calls_.push_back({module, call_, false, 0, 0});
  } catch (...) {
    flags_ |= format::kModulesTooMany;
    return kNone;
  }
  call_ = static_cast<std::uint32_t>(calls_.size() - 1);
  return call_;
}

void ModuleTimer::Leave(std::uint32_t call) noexcept {
  Pause();
  if (call < calls_.size() && IsWithin(call_, call)) call_ = calls_[call].around;
}

std::uint64_t ModuleTimer::StampOf(std::uint32_t call, bool leaves) const noexcept {
  return static_cast<std::uint64_t>(step_) << 32 | (leaves ? kLeaves : 0) | call;
}

void ModuleTimer::CountBackward() noexcept {
  const std::int64_t now = now_();
  if (back_since_ns_ >= 0 && back_ != kNone) calls_[back_].backward_ns += now - back_since_ns_;
  back_since_ns_ = now;
}

// Where one call's output is the next one's input, a node has stamps of both; a module's last node is also
// that of the module around it. So the beginning of a call inside of which the pass is already changes
// nothing, nor does the end of a call in which it is no more.
void ModuleTimer::At(std::uint64_t stamp) noexcept {
  const auto call = static_cast<std::uint32_t>(stamp & (kLeaves - 1));
  if (!passing_ || stamp >> 32 != step_ || call >= calls_.size()) return;
  CountBackward();
  const bool within = IsWithin(back_, call);
  if ((stamp & kLeaves) != 0) {
    if (within) back_ = calls_[call].around;
    return;
  }
  calls_[call].seen = true;
  if (!within) back_ = call;
}

void ModuleTimer::BackwardBegins() noexcept {
  passing_ = true;
  back_ = kNone;
  back_since_ns_ = -1;
}

void ModuleTimer::BackwardEnds() noexcept {
  if (!passing_) return;
  passing_ = false;
  CountBackward();
  back_ = kNone;
  back_since_ns_ = -1;
}

store::StepModules ModuleTimer::Times() const {
  store::StepModules times;
  const bool backward = (flags_ & format::kModulesRecomputed) == 0;
  struct Whole {
    std::int64_t forward_ns, backward_ns;
    bool seen;
  };
  std::vector<Whole> whole;
  whole.reserve(calls_.size());
  for (const Call& call : calls_) {
    whole.push_back({call.forward_ns, call.backward_ns, call.seen && backward});
  }
  for (std::size_t i = calls_.size(); i-- > 0;) {  // what is called comes after its caller
    if (calls_[i].around == kNone) continue;
    Whole& around = whole[calls_[i].around];
    around.forward_ns += whole[i].forward_ns;
    around.backward_ns += whole[i].backward_ns;
    around.seen = around.seen || whole[i].seen;
  }
  std::vector<std::uint32_t> order(calls_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](std::uint32_t i) { return std::pair(calls_[i].module, i); });
  for (const std::uint32_t i : order) {
    const Call& call = calls_[i];
    if (times.rows.empty() || times.rows.back().module != call.module)
      times.rows.push_back({call.module, 0, 0, 0, -1, -1});
    format::ModuleTimeRow& row = times.rows.back();
    ++row.calls;
    row.forward_self_ns += call.forward_ns;
    if (whole[i].seen) Add(call.backward_ns, &row.backward_self_ns);
    std::uint32_t around = call.around;
    while (around != kNone && calls_[around].module != call.module) around = calls_[around].around;
    if (around != kNone) continue;  // a module that calls itself: its time is in the outer call's
    row.forward_ns += whole[i].forward_ns;
    if (whole[i].seen) Add(whole[i].backward_ns, &row.backward_ns);
  }
  times.head = {1, 0, static_cast<std::uint32_t>(times.rows.size()), flags_};
  std::ranges::sort(times.rows, std::greater<>(), Own);
  Shorten(&times.rows);
  return times;
}

}  // namespace luff::capture
