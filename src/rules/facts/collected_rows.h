#pragma once
#include <cstdint>
#include <unordered_set>

#include "luff/rules/rule.h"
#include "rules/facts/loss_call.h"
#include "rules/facts/sample.h"
#include "rules/kit/fields.h"
#include "rules/kit/step_index.h"

namespace luff::rules {

/// **Thread-compatible.** Tells whether a training makes its own data: passes without gradients, of which
/// nothing is compared with a label, over rows that the training then learns, as a policy collects them.
/// Their distribution follows the model. A teacher's pass over the batch that is learnt next is a single one,
/// and rows that were learnt before they were asked about are data whose accuracy a script measures by hand.
class CollectedRows {
 public:
  /// Call at each step.
  void OnStep(const StepView& view) {
    const query::Mode mode = view.rows.info.mode;
    if (collects_ || view.rows.info.superseded) return;
    if (mode == query::Mode::kTrain) {
      between_ = true;
      if (trained_.size() < kMaxRows)
        ForRows(view, [this](std::uint64_t hash) {
          if (trained_.size() < kMaxRows) trained_.insert(hash);
        });
      if (passes_ < kPasses || labelled_ || rows_.empty() || rows_.size() >= kMaxRows) return;
      ForRows(view, [this](std::uint64_t hash) {
        ++seen_;
        met_ += rows_.contains(hash) ? 1 : 0;
      });
      collects_ = seen_ >= kRows && 2 * met_ >= seen_;
    } else if (mode == query::Mode::kEval) {
      if (between_) {
        rows_.clear();
        passes_ = seen_ = met_ = 0;
        between_ = labelled_ = false;
      }
      ++passes_;
      labelled_ = labelled_ || !view.index.losses().empty() || !LossReader::Read(view).empty();
      if (labelled_) return;
      ForRows(view, [this](std::uint64_t hash) {
        if (rows_.size() < kMaxRows && !trained_.contains(hash)) rows_.insert(hash);
      });
    }
  }
  /// Once true, for good.
  [[nodiscard]] bool collects() const noexcept { return collects_; }

  void VisitFields(Fields& io) {
    io("rows", rows_, kMaxRows);
    io("trained", trained_, kMaxRows);
    io("passes", passes_);
    io("seen", seen_);
    io("met", met_);
    io("between", between_);
    io("labelled", labelled_);
    io("collects", collects_);
  }

 private:
  static constexpr std::size_t kMaxRows = 8192;
  static constexpr std::int64_t kPasses = 4, kRows = 256;

  template <typename Function>
  static void ForRows(const StepView& view, Function function) {
    for (const ModelInput& input : ModelInputsOf(view)) {
      const auto sample = LoadSample(view, *input.entry);
      if (sample == nullptr) continue;
      for (const std::uint64_t hash : RowHashes(*sample)) function(hash);
    }
  }

  std::unordered_set<std::uint64_t> rows_;     // of the last passes without gradients
  std::unordered_set<std::uint64_t> trained_;  // that the training has had
  std::int64_t passes_ = 0, seen_ = 0, met_ = 0;
  bool between_ = true;  // training steps came since these passes
  bool labelled_ = false, collects_ = false;
};

}  // namespace luff::rules
