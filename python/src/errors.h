#pragma once
#include <exception>
#include <string>
#include <utility>

#include "luff/base/result.h"
#include "luff/base/status.h"

namespace luff::python {

/// A Status on its way to Python. Thrown in binding code only; `InitErrors` registers the translator that
/// raises the class of `luff.errors` that belongs to its code.
class StatusException : public std::exception {
 public:
  explicit StatusException(Status status) : status_(std::move(status)), text_(status_.message()) {}
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  Status status_;
  std::string text_;
};

/// Raises the Python exception of `status` unless it is OK.
inline void ThrowIfError(Status status) {
  if (!status.ok()) throw StatusException(std::move(status));
}

/// Returns the value of `result`, or raises the Python exception of its status. Does not need the GIL.
template <typename T>
[[nodiscard]] T Unwrap(Result<T> result) {
  if (!result.ok()) throw StatusException(std::move(result).status());
  return std::move(result).value();
}

}  // namespace luff::python
