#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Moments of the features of an input, over rows of samples. A feature is a column of (N, F), a channel of
/// (N, C, H, W), the last axis of (N, T, F); all values are one feature where that gives more than
/// kMaxFeatures. Non-finite values are left out.
class Features {
 public:
  static constexpr std::size_t kMaxFeatures = 1024;

  /// Takes in a sample. One of another shape (but for its rows) begins anew.
  void Add(const SampleValues& sample);
  void Clear();

  [[nodiscard]] std::size_t size() const noexcept { return count_.size(); }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  /// "float,10": what must be equal for two to be compared.
  [[nodiscard]] const std::string& kind() const noexcept { return kind_; }
  [[nodiscard]] double count(std::size_t i) const noexcept { return count_[i]; }
  [[nodiscard]] double mean(std::size_t i) const noexcept;
  [[nodiscard]] double variance(std::size_t i) const noexcept;
  [[nodiscard]] double rms(std::size_t i) const noexcept;
  /// Fourth moment over the squared second: 3 of a normal distribution, 1 / p of a rare flag.
  [[nodiscard]] double kurtosis(std::size_t i) const noexcept;
  /// Differs from row to row, beyond rounding.
  [[nodiscard]] bool varies(std::size_t i) const noexcept;

  void VisitFields(Fields& io);

 private:
  std::string kind_;
  std::int64_t rows_ = 0;
  std::vector<double> reference_, count_, s1_, s2_, s3_, s4_;  // powers of the distance from `reference_`
};

}  // namespace luff::rules
