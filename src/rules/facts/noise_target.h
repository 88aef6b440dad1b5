#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_set>

#include "rules/facts/loss_call.h"
#include "rules/kit/fields.h"

namespace luff::rules {

/// Whether the targets of a regression are noise that the model's inputs do not hold: the noise that a
/// denoiser is to tell was drawn a second time. Constant memory.
class NoiseTarget {
 public:
  static constexpr double kElements = 16384;  // at least, before it says anything
  static constexpr double kLeastRows = 64;
  static constexpr std::int64_t kIdle = 24;     // captured batches in a row without progress
  static constexpr std::size_t kMaxInputs = 4;  // of the targets' shape

  /// Adds a captured batch; `inputs` have the targets' shape. `timed`: another input has one number for each
  /// row, as a denoiser gets the time.
  void Add(const std::vector<const SampleValues*>& inputs, const SampleValues& target,
           const SampleValues& output, bool timed);
  /// The targets are independent draws from N(0, 1): mean, variance, kurtosis and the correlation of
  /// neighbours are within five standard errors of those, and no row has come twice. No input goes together
  /// with them (four standard errors), element by element, nor do the sums of squares of its rows with those
  /// of the targets: these a row keeps that is turned, shifted or put in another order. The newest kIdle
  /// batches were answered no better than by 0.
  [[nodiscard]] bool Holds() const;
  /// The targets are such draws, and an input is nothing but them: in each of kDrownedRows rows or more, of
  /// 16 numbers at least, its correlation with the target is above kDrowned. The data are lost in the noise.
  /// Only of a denoiser of many times, which gets the time beside its input: a model that is to restore data
  /// which are drawn from N(0, 1) themselves (an autoencoder) gets no time, or its targets.
  [[nodiscard]] bool Drowns() const;
  static constexpr double kDrowned = 0.95, kDrownedRows = 256;
  /// The targets are such draws, new in each batch, and no input is the target itself.
  [[nodiscard]] bool Draws() const;
  /// The least correlation of a row with its target, of the input that has most of it.
  [[nodiscard]] double least() const;
  [[nodiscard]] double elements() const noexcept { return count_; }
  /// The largest correlation of an input with the targets, element by element.
  [[nodiscard]] double correlation() const;
  /// The smallest deviation of an input; the targets' is 1.
  [[nodiscard]] double spread() const;
  /// Mean squared error of the newest batch by that of the answer 0.
  [[nodiscard]] double left() const noexcept { return left_; }
  void VisitFields(Fields& io);

 private:
  /// Sums over pairs of numbers, of an input and of the targets.
  struct Pairs {
    double count = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
    void Add(double of_input, double of_target) noexcept;
    [[nodiscard]] double correlation() const noexcept;  // absolute; 0 where one of the two does not vary
    [[nodiscard]] double spread() const noexcept;       // deviation of the inputs
    void VisitFields(Fields& io) {
      io("count", count);
      io("x", x);
      io("y", y);
      io("xx", xx);
      io("yy", yy);
      io("xy", xy);
    }
  };
  struct Input {
    Pairs elements, rows;  // of rows: means of squares
    double least = 1;      // correlation of a row with its target
    void VisitFields(Fields& io) {
      io("least", least);
      io("elements", elements);
      io("rows", rows);
    }
  };
  static constexpr std::size_t kMaxRows = 8192;  // that are remembered
  [[nodiscard]] bool AreDraws() const;

  double count_ = 0, neighbours_ = 0;
  std::array<double, 4> powers_{};  // sums of t, t^2, t^3, t^4
  double lagged_ = 0;               // of t(i) t(i + 1)
  std::vector<Input> inputs_;
  std::unordered_set<std::uint64_t> rows_;
  bool again_ = false, unfit_ = false;
  bool timed_ = false;     // the newest batch had an input of one number for each row
  bool restored_ = false;  // an input was the target itself
  std::int64_t idle_ = 0;
  double left_ = 0;
};

}  // namespace luff::rules
