#pragma once
#include <optional>
#include <utility>

#include "luff/base/status.h"

namespace luff {

/// A value, or the Status that says why there is none. Never both, never an OK status without a value.
///
/// Thread-compatible. Calling `value()` on an error is undefined; test `ok()` first.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) status_ = Internal("Result made from an OK status without a value");
  }

  [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
  [[nodiscard]] const Status& status() const& noexcept { return status_; }
  [[nodiscard]] Status status() && noexcept { return std::move(status_); }
  [[nodiscard]] T& value() & { return *value_; }
  [[nodiscard]] const T& value() const& { return *value_; }
  /// Returns by value from a temporary, so that no reference outlives it.
  [[nodiscard]] T value() && { return std::move(*value_); }
  [[nodiscard]] T& operator*() & { return *value_; }
  [[nodiscard]] T operator*() && { return std::move(*value_); }
  [[nodiscard]] const T& operator*() const& { return *value_; }
  [[nodiscard]] T* operator->() { return &*value_; }
  [[nodiscard]] const T* operator->() const { return &*value_; }
  [[nodiscard]] T value_or(T fallback) const& { return value_ ? *value_ : std::move(fallback); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace luff

#define LUFF_CONCAT_INNER_(a, b) a##b
#define LUFF_CONCAT_(a, b) LUFF_CONCAT_INNER_(a, b)
/// `LUFF_ASSIGN_OR_RETURN(auto x, F());` assigns the value or returns the status.
#define LUFF_ASSIGN_OR_RETURN(lhs, expr) \
  LUFF_ASSIGN_OR_RETURN_(LUFF_CONCAT_(luff_result_, __LINE__), lhs, expr)
#define LUFF_ASSIGN_OR_RETURN_(tmp, lhs, expr)   \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()
