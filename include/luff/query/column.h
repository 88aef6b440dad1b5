#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace luff::query {

/// Allocates memory for columns. Reuses a block that a column gave back if one fits, because fresh memory
/// costs a page fault for every 4 KiB, which is more than filling it. The process keeps at most 8 MiB for
/// reuse. **Thread-safe.** Throws std::bad_alloc, as operator new.
[[nodiscard]] std::shared_ptr<void> TakeColumnMemory(std::size_t bytes);

/// Numbers in memory that copies of the column share. Fill it with Extend() while there is only one copy;
/// afterwards it is **immutable**.
template <typename T>
class Column {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using iterator = const T*;
  using const_iterator = const T*;

  Column() = default;
  /// Wraps `size` elements at `data`, which `owner` keeps alive.
  Column(std::shared_ptr<const void> owner, const T* data, std::size_t size)
      : shared_(std::move(owner)),
        data_(data),
        size_(size) {}

  /// Appends room for `rows` more elements, not yet filled in.
  [[nodiscard]] T* Extend(std::size_t rows) {
    Reserve(size_ + rows);
    T* tail = static_cast<T*>(memory_.get()) + size_;
    size_ += rows;
    return tail;
  }
  void Reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    std::shared_ptr<void> memory = TakeColumnMemory(capacity * sizeof(T));
    std::copy_n(data_, size_, static_cast<T*>(memory.get()));
    memory_ = std::move(memory);
    shared_.reset();
    data_ = static_cast<const T*>(memory_.get());
    capacity_ = capacity;
  }

  /// Returns `count` elements starting at `first`, in the same memory.
  [[nodiscard]] Column Part(std::size_t first, std::size_t count) const {
    return {memory_ != nullptr ? std::shared_ptr<const void>(memory_) : shared_, data_ + first, count};
  }

  [[nodiscard]] const T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] const T* begin() const noexcept { return data_; }
  [[nodiscard]] const T* end() const noexcept { return data_ + size_; }
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return data_[i]; }
  [[nodiscard]] const T& front() const noexcept { return data_[0]; }
  [[nodiscard]] const T& back() const noexcept { return data_[size_ - 1]; }

 private:
  std::shared_ptr<void> memory_;        // the column's own memory
  std::shared_ptr<const void> shared_;  // or that of another owner
  const T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace luff::query
