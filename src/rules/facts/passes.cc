#include "rules/facts/passes.h"

#include <algorithm>
#include <vector>

#include "rules/facts/sample.h"

namespace luff::rules {
namespace {
constexpr std::int64_t kMarkSteps = 16;   // samples are dense in the first steps of a run
constexpr std::int64_t kLaterSteps = 64;  // they come each fourth step later
constexpr std::int64_t kLeastSamples = 8;
constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15;
constexpr std::uint64_t kPassBits = (1ULL << 52) - 1;
}  // namespace

void Passes::OnTrainStep(const StepView& view) {
  const std::vector<ModelInput>& inputs = ModelInputsOf(view);
  if (inputs.empty()) return;
  std::vector<std::uint64_t> hashes;
  for (const ModelInput& input : inputs) {
    // A row is what all inputs of the model hold: users and items alone come again all the time.
    if (input.model != inputs.front().model || input.entry->worker != inputs.front().entry->worker) continue;
    const auto sample = LoadSample(view, *input.entry);
    if (sample == nullptr) continue;
    const std::vector<std::uint64_t> more = RowHashes(*sample);
    if (hashes.empty()) hashes = more;
    if (&input == &inputs.front() || more.size() != hashes.size()) continue;
    for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] = (hashes[i] * kMix + more[i]) & kPassBits;
  }
  if (hashes.empty()) return;
  const std::int64_t step = view.rows.info.mode_step;
  const double weight =
      last_step_ < 0 ? 1.0 : static_cast<double>(std::clamp<std::int64_t>(step - last_step_, 1, 1024));
  last_step_ = step;
  const bool marks = step - first_step_ < (first_step_ > 0 ? kLaterSteps : kMarkSteps);
  samples_ += marks ? 1 : 0;
  for (const std::uint64_t hash : hashes) {
    if (marks_.contains(hash)) {
      hits_ += weight;
      if (marks && marks_.size() < kMarks) ++early_;
    } else if (marks && marks_.size() < kMarks) {
      marks_.insert(hash);
      if (early_ > 0) ++early_new_;
    }
  }
}

double Passes::count() const noexcept {
  return marks_.empty() ? 0 : 1 + hits_ / static_cast<double>(marks_.size());
}

bool Passes::drawn_at_random() const noexcept {
  // In passes over a data set, no row is new once rows come again, except that a few rows may be in the data
  // twice.
  const double again = static_cast<double>(early_);
  const double fresh = static_cast<double>(early_new_);
  if (first_step_ > 0 && samples_ < kLeastSamples && hits_ > 0) return true;  // it is not known
  return fresh > 32 && again > 0.05 * fresh;
}

void Passes::VisitFields(Fields& io) {
  io("marks", marks_, kMarks + 4096);
  io("first_step", first_step_);
  io("last_step", last_step_);
  io("hits", hits_);
  io("samples", samples_);
  io("early", early_);
  io("early_new", early_new_);
}

}  // namespace luff::rules
