#include "capture/session_impl.h"

namespace luff::capture {

StopState SessionImpl::AtStepBoundary(std::int64_t train_step) noexcept {
  if (!accepting()) return StopState::kNone;
  try {
    if (has_thread_) return core_->gate.AtBoundary(train_step);
    return core_->gate.AtBoundary(train_step, [this] { core_->Pump(); });
  } catch (...) {
    Fail("AtStepBoundary");
    return StopState::kNone;
  }
}

std::string SessionImpl::stop_reason() const { return core_->gate.reason(); }

void SessionImpl::AcceptActions(std::span<const std::string> kinds) noexcept {
  try {
    core_->gate.Accept(kinds);
  } catch (...) {
    Fail("AcceptActions");
  }
}

std::optional<PendingAction> SessionImpl::TakeAction() noexcept {
  if (!accepting()) return std::nullopt;
  try {
    return core_->gate.TakeAction();
  } catch (...) {
    Fail("TakeAction");
    return std::nullopt;
  }
}

void SessionImpl::ActionDone(std::uint64_t control, bool done) noexcept {
  if (!accepting()) return;
  try {
    core_->gate.ActionDone(control, done);
  } catch (...) {
    Fail("ActionDone");
  }
}

}  // namespace luff::capture
