#include "device/borders.h"

#include <algorithm>
#include <utility>

namespace luff::device {
namespace {

constexpr std::size_t kMostSteps = 64;
constexpr std::size_t kMostBorders = 128;  // of one step

}  // namespace

bool StepBorders::Measure(const Driver& driver) noexcept {
  stretches.clear();
  total_ns = 0;
  const auto between_events = [&](std::size_t from, std::size_t to, std::int64_t* ns) {
    float milliseconds = 0;
    if (driver.EventElapsedTime(&milliseconds, events[from], events[to]) != kSuccess) return false;
    *ns = milliseconds > 0 ? static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6) : 0;
    return true;
  };
  if (!between) return between_events(0, used - 1, &total_ns);
  for (std::size_t i = 1; i < used; ++i) {
    std::int64_t ns = 0;
    if (!between_events(i - 1, i, &ns)) return false;
    stretches.push_back({i == 1 ? kNoPhase : phases[i - 2], ns});  // room was made when it was recorded
    total_ns += ns;
  }
  return true;
}

std::shared_ptr<StepBorders> BorderRing::Free() {
  for (const std::shared_ptr<StepBorders>& step : ring_) {
    if (step != now_ && step->is_free()) return step;
  }
  if (ring_.size() == kMostSteps) return nullptr;
  ring_.push_back(std::make_shared<StepBorders>());
  ring_.back()->context = context_;
  return ring_.back();
}

Code BorderRing::Record(StepBorders* step, const char** doing) {
  if (step->used == step->events.size()) {
    step->events.reserve(step->used + 1);
    step->stretches.reserve(step->used + 1);
    *doing = "making an event";
    Event made = nullptr;
    if (const Code error = driver_->EventCreate(&made, kEventWithTiming); error != kSuccess) return error;
    step->events.push_back(made);
  }
  *doing = "marking a border of a step";
  const Code error = driver_->EventRecord(step->events[step->used], step->stream);
  if (error == kSuccess) ++step->used;
  return error;
}

Code BorderRing::BeginStep(Stream stream, bool partly, const char** doing) {
  std::shared_ptr<StepBorders> step = Free();
  now_ = nullptr;
  if (step == nullptr) return kSuccess;
  step->stream = stream;
  step->used = 0;
  step->phases.clear();
  step->partly = partly;
  step->between = true;
  step->was_idle = false;
  const Code error = Record(step.get(), doing);
  if (error == kSuccess) now_ = std::move(step);
  return error;
}

Code BorderRing::Begin(Stream stream, std::uint8_t phase, const char** doing) {
  if (now_ == nullptr) return BeginStep(stream, true, doing);
  if (now_->partly || !now_->between) return kSuccess;
  if (stream != now_->stream || now_->used == kMostBorders) {
    now_->between = false;
    return kSuccess;
  }
  if (const Event before = std::exchange(before_, nullptr); before != nullptr) {
    *doing = "asking whether a device is idle";
    const Code error = driver_->EventQuery(before);
    now_->was_idle = error == kSuccess;
    if (error != kSuccess && error != kNotReady && !IsOfCapture(error)) return error;
  }
  now_->phases.reserve(now_->used);
  const Code error = Record(now_.get(), doing);
  if (error == kSuccess) now_->phases.push_back(phase);
  return error;
}

Code BorderRing::End(Stream stream, std::shared_ptr<StepBorders>* ended, const char** doing) {
  std::shared_ptr<StepBorders> step = std::exchange(now_, nullptr);
  before_ = nullptr;
  // Between events of two streams other work of the device may lie.
  if (step != nullptr && !step->partly && step->stream == stream) {
    // Behind the last phase, so before what the next step's batch has the device do.
    if (step->between && !step->phases.empty() && step->phases.back() == kNoPhase)
      before_ = step->events[step->used - 1];
    if (const Code error = Record(step.get(), doing); error != kSuccess) return error;
    step->arrival.store(Arrival::kWaits, std::memory_order_relaxed);
    *ended = std::move(step);
  }
  return BeginStep(stream, false, doing);
}

void BorderRing::Miss(bool of_step) noexcept {
  before_ = nullptr;
  if (of_step) now_ = nullptr;
  if (now_ != nullptr) now_->between = false;
}

void BorderRing::GiveBack() noexcept {
  now_ = nullptr;
  before_ = nullptr;
  std::erase_if(ring_, [this](const std::shared_ptr<StepBorders>& step) {
    if (step->arrival.load(std::memory_order_acquire) == Arrival::kWaits) return false;
    for (const Event event : step->events) static_cast<void>(driver_->EventDestroy(event));
    step->events.clear();
    return true;
  });
}

}  // namespace luff::device
