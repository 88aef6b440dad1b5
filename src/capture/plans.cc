#include "capture/plans.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/json.h"
#include "base/json_number.h"

namespace luff::capture {
namespace {

using Json = nlohmann::json;
constexpr JsonLimits kLimits{256 << 10, 12};
constexpr std::int64_t kMaxStep = std::int64_t{1} << 60;

/// Collections of the change alone.
Result<Config> ParseChange(const Json& body) {
  if (!body.is_object() || !body.contains("collections") || body["collections"].empty())
    return InvalidArgument("a change of what is recorded without collections");
  return ParseConfigUntrusted(JsonText(Json{{"defaults", false}, {"collections", body["collections"]}}));
}

/// Limits a schedule to the TRAIN steps `from` to `to` - 1; other modes have none.
void LimitTo(std::int64_t from, std::int64_t to, CollectionConfig* collection) {
  for (std::size_t m = 0; m < kModeCount; ++m) {
    SaveMode& save = collection->save[m];
    if (static_cast<format::Mode>(m + 1) != format::Mode::kTrain) {
      save = SaveMode();
      save.end_step = 0;
      continue;
    }
    save.start_step = std::max(save.start_step, from);
    save.end_step = std::min(save.end_step.value_or(to), to);
    std::erase_if(save.save_steps, [&](std::int64_t step) { return step < from || step >= to; });
  }
}

std::string FreeName(const Config& config, const std::string& wanted) {
  const auto taken = [&](const std::string& name) {
    return std::ranges::find(config.collections, name, &CollectionConfig::name) != config.collections.end();
  };
  std::string name = wanted;
  for (int number = 2; taken(name); ++number) name = wanted + "-" + std::to_string(number);
  return name;
}

}  // namespace

Plans::Plans(Plan first) : first_count_(first.config().collections.size()) {
  used_.push_back(std::make_unique<const Plan>(std::move(first)));
  now_.store(used_.back().get(), std::memory_order_release);
}

Result<const Plan*> Plans::Prepare(std::string_view body, std::int64_t train_step) {
  const Json json = TryParseJson(body, kLimits);
  LUFF_ASSIGN_OR_RETURN(Config change, ParseChange(json));
  std::int64_t steps = kMaxStep;
  try {
    steps = WholeNumber<std::int64_t>(json, "for_steps", kMaxStep);
  } catch (const std::invalid_argument& error) {
    return InvalidArgument(error.what());
  }
  if (steps < 1 || train_step < 0 || train_step >= kMaxStep)
    return InvalidArgument("a change of what is recorded for no step");
  Config config = now().config();
  for (CollectionConfig& collection : change.collections) {
    if (config.collections.size() == kMaxCollections)
      return ResourceExhausted("the run has " + std::to_string(kMaxCollections) + " collections already");
    LimitTo(train_step, train_step + std::min(steps, kMaxStep - train_step), &collection);
    collection.name = FreeName(config, collection.name);
    config.collections.push_back(std::move(collection));
  }
  LUFF_ASSIGN_OR_RETURN(Plan plan, Plan::Make(std::move(config)));
  auto made = std::make_unique<const Plan>(std::move(plan));
  MutexLock lock(mutex_);
  used_.reserve(used_.size() + 1);  // Use() runs in the training, and must not fail
  dropped_ = std::exchange(prepared_, std::move(made));
  return prepared_.get();
}

void Plans::Use() {
  MutexLock lock(mutex_);
  if (prepared_ == nullptr) return;
  used_.push_back(std::move(prepared_));
  now_.store(used_.back().get(), std::memory_order_release);
  changed_.store(true, std::memory_order_release);
}

std::optional<std::string> Plans::TakeDescription() {
  if (!changed_.load(std::memory_order_acquire)) return std::nullopt;
  MutexLock lock(mutex_);
  changed_.store(false, std::memory_order_relaxed);
  return DescribeCollections(now().config());
}

}  // namespace luff::capture
