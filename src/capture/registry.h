#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capture/plan.h"
#include "luff/base/mutex.h"
#include "luff/capture/session.h"
#include "luff/store/writer.h"

namespace luff::capture {

/// Elements that never move, appended under a lock and read without one.
template <typename T, std::size_t kPerChunk = 1024, std::size_t kChunks = 1024>
class StableArray {
 public:
  StableArray() = default;
  ~StableArray() {
    for (auto& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
  }
  StableArray(const StableArray&) = delete;
  StableArray& operator=(const StableArray&) = delete;
  static constexpr std::size_t kMax = kPerChunk * kChunks;

  [[nodiscard]] std::size_t size() const noexcept { return size_.load(std::memory_order_acquire); }
  /// Null for an index that was never assigned.
  [[nodiscard]] T* Find(std::size_t index) const noexcept {
    if (index >= size()) return nullptr;
    return chunks_[index / kPerChunk].load(std::memory_order_acquire) + index % kPerChunk;
  }
  /// Adds a default-constructed element, which `fill` completes before it is published. The caller holds a
  /// lock and has checked size() < kMax.
  template <typename Fill>
  std::size_t Append(Fill&& fill) {
    const std::size_t index = size_.load(std::memory_order_relaxed);
    auto& chunk = chunks_[index / kPerChunk];
    if (chunk.load(std::memory_order_relaxed) == nullptr)
      chunk.store(new T[kPerChunk], std::memory_order_release);
    fill(chunk.load(std::memory_order_relaxed)[index % kPerChunk]);
    size_.store(index + 1, std::memory_order_release);
    return index;
  }

 private:
  std::array<std::atomic<T*>, kChunks> chunks_{};
  std::atomic<std::size_t> size_{0};
};

/// One tensor. Immutable after its definition, except for the earlier value.
struct TensorState {
  std::atomic<std::uint64_t> collections{0};
  format::Role role = format::Role::kOther;
  // Earlier value for the form `difference`; guarded by Registry::difference_mutex.
  std::unique_ptr<std::byte[]> previous;
  std::uint64_t previous_bytes = 0;
  LayoutId previous_layout = format::kNoId;
};

struct LayoutState {
  Layout layout;
  std::uint64_t bytes = 0;
  std::atomic<LayoutId> bfloat16{format::kNoId};  // the same shape in bfloat16, defined when first needed
};

/// Names, layouts and their ids. **Thread-safe.** Holds new definitions until the next step takes them.
class Registry {
 public:
  explicit Registry(const Plan& plan) : plan_(&plan), listed_(plan.config().collections.size()) {}

  [[nodiscard]] TensorId DefineTensor(std::string_view name, format::Role role, std::string_view module_path,
                                      std::string_view module_type);
  [[nodiscard]] LayoutId DefineLayout(const Layout& layout, std::vector<std::int64_t> global_shape,
                                      std::vector<std::int64_t> global_offset);
  /// Finds the collections of all tensors, from number `first` on, in a plan that may come into force, and
  /// uses it from now on for new ones. Slow (regexes): never on the training's thread.
  void Adopt(const Plan& plan, std::size_t first);
  /// Moves definitions that no step has taken yet to the batch.
  void TakeDefinitions(store::StepBatch* batch);
  [[nodiscard]] TensorState* tensor(TensorId id) const noexcept { return tensors_.Find(id); }
  [[nodiscard]] LayoutState* layout(LayoutId id) const noexcept { return layouts_.Find(id); }
  [[nodiscard]] std::size_t tensor_count() const noexcept { return tensors_.size(); }
  /// The name of a tensor; "" for an unknown id.
  [[nodiscard]] std::string NameOf(TensorId id);

  Mutex difference_mutex;
  std::uint64_t difference_bytes LUFF_GUARDED_BY(difference_mutex) = 0;

 private:
  Mutex mutex_;
  const Plan* plan_ LUFF_GUARDED_BY(mutex_);
  const std::size_t listed_;  // collections that definitions name
  std::unordered_map<std::string, TensorId> by_name_ LUFF_GUARDED_BY(mutex_);
  std::unordered_map<std::string, LayoutId> by_layout_ LUFF_GUARDED_BY(mutex_);
  std::vector<const std::string*> names_ LUFF_GUARDED_BY(mutex_);
  std::set<std::string> types_ LUFF_GUARDED_BY(mutex_);  // of modules
  std::vector<const std::string*> type_of_ LUFF_GUARDED_BY(mutex_);
  std::vector<store::TensorDef> new_tensors_ LUFF_GUARDED_BY(mutex_);
  std::vector<store::LayoutDef> new_layouts_ LUFF_GUARDED_BY(mutex_);
  StableArray<TensorState> tensors_;
  StableArray<LayoutState> layouts_;
};

}  // namespace luff::capture
