#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Moments of the features of an input, over rows of samples. A feature is a column of (N, F), an index of
/// the last axis of (N, T, F), or a channel of (N, C, H, W). If that gives more than kMaxFeatures, all values
/// are one feature. Values that are not finite, or not below 1e60 in magnitude, are skipped.
class Features {
 public:
  static constexpr std::size_t kMaxFeatures = 1024;

  /// Adds a sample. A sample of another kind() first clears the moments.
  void Add(const SampleValues& sample);
  void Clear();

  [[nodiscard]] std::size_t size() const noexcept { return count_.size(); }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  /// Type, number of axes and number of features, e.g. "float,2,10". Inputs are comparable if this is equal.
  [[nodiscard]] const std::string& kind() const noexcept { return kind_; }
  [[nodiscard]] double count(std::size_t i) const noexcept { return count_[i]; }
  [[nodiscard]] double mean(std::size_t i) const noexcept;
  [[nodiscard]] double variance(std::size_t i) const noexcept;
  [[nodiscard]] double rms(std::size_t i) const noexcept;
  /// Fourth moment over the squared second: 3 for a normal distribution, 1 / p for a rare flag.
  [[nodiscard]] double kurtosis(std::size_t i) const noexcept;
  /// Its values differ by more than rounding.
  [[nodiscard]] bool varies(std::size_t i) const noexcept;

  void VisitFields(Fields& io);

 private:
  std::string kind_;
  std::int64_t rows_ = 0;
  std::vector<double> reference_, count_, s1_, s2_, s3_, s4_;  // s: sums of powers of value - reference_
};

}  // namespace luff::rules
