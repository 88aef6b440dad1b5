#pragma once
#include <cstdint>
#include <deque>
#include <string>

#include "rules/kit/fields.h"
#include "rules/kit/select.h"

namespace luff::rules {

/// The change of all weights of one worker over one capture interval, taken as one vector.
struct WeightMove {
  double moved_sq = 0, before_sq = 0, largest = 0;  // largest: the largest (|change| / |weight|)^2
  std::int64_t layers = 0;                          // weights that are no biases, and moved
  std::uint32_t worker = 0;
  std::string tensor;  // the one that moved most relative to its size
  bool any = false;

  void Add(const WeightChange& change);
  /// |change| / |weights|; 0 if nothing was measured.
  [[nodiscard]] double Ratio() const;
};

/// Tells a rate that is far too high by what the first updates do to the loss, for WeightUpdateRatio.
///
/// One of the first kJolts updates moved all weights together by more than `jolt` times their size, those of
/// two layers at least; what began at zero is left out. A model of one layer comes to the same weights from
/// anywhere, and is silent, and so is what only began to move away from zero;
/// afterwards two losses in a row were more than `leap` times that of the model as it was drawn. They tower
/// over all losses of the updates from kSettled to kEnd (it came back), or no loss until kEnd is as low as
/// the first (it did not). Losses that only vary between batches do neither: the first would have to be the
/// lowest of 32, or two of them in a row higher than 16 later ones. A loss below zero, or several losses, are
/// not judged.
class FirstLeap {
 public:
  static constexpr std::int64_t kJolts = 8, kSettled = 16, kEnd = 32;

  struct Limits {
    double leap = 3;
    double jolt = 0.25;
  };

  explicit FirstLeap(const Limits& limits) : limits_(limits) {}

  /// `move`: of weights that did not begin at zero. `loss`: the newest, NaN if there is none or several.
  /// Returns the finding, once, without rates.
  [[nodiscard]] bool OnStep(const StepView& view, const WeightMove& move, double loss, Finding* finding);

  /// The loss of the model as it was drawn; 0 before there is one.
  [[nodiscard]] double drawn_loss() const noexcept { return losses_.empty() ? 0 : losses_.front(); }

  void VisitFields(Fields& io);

 private:
  void Follow(const query::StepInfo& info, const WeightMove& move, double loss);
  [[nodiscard]] bool Leapt() const;

  const Limits limits_;
  std::deque<double> losses_;     // the last one before each update
  std::int64_t measured_ = 0;     // the update before which weights were measured last
  double jolt_ = 0;               // the largest move of all weights by one update
  std::int64_t jolted_ = -1;      // the first update that moved them too far
  std::int64_t jolted_step_ = 0;  // its step
  std::uint32_t worker_ = 0;
  std::string tensor_;  // what it moved most
  bool over_ = false;
};

}  // namespace luff::rules
