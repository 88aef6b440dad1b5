#include "rules/facts/features.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>

#include "base/format.h"
#include "luff/rules/rule.h"
#include "rules/facts/sample.h"

namespace luff::rules {
namespace {

constexpr double kMaxValue = 1e60;  // fourth powers stay finite

// Value i of a sample belongs to feature (i / stride) % features.
struct Layout {
  std::size_t features = 1, stride = 1;
};

Layout LayoutOf(const std::vector<std::int64_t>& shape) {
  Layout layout;
  if (shape.size() == 2 || shape.size() == 3) {
    layout.features = static_cast<std::size_t>(shape.back());
  } else if (shape.size() >= 4) {
    layout.features = static_cast<std::size_t>(shape[1]);
    for (std::size_t i = 2; i < shape.size(); ++i) layout.stride *= static_cast<std::size_t>(shape[i]);
  }
  if (layout.features > Features::kMaxFeatures || layout.features == 0 || layout.stride == 0) return {1, 1};
  return layout;
}

/// The number of features that a kind names; 0 if there is none.
std::size_t FeaturesOf(const std::string& kind) {
  const Result<std::int64_t> count = ParseInt(kind.substr(kind.rfind(',') + 1));
  return count.ok() && *count > 0 ? static_cast<std::size_t>(*count) : 0;
}

}  // namespace

void Features::Clear() {
  kind_.clear();
  rows_ = 0;
  for (auto* values : {&reference_, &count_, &s1_, &s2_, &s3_, &s4_}) values->clear();
}

void Features::Add(const SampleValues& sample) {
  const Rows rows = RowsOf(sample);
  if (rows.count == 0 || rows.width == 0) return;
  // The kind leaves out the length of a sequence and the size of an image, which may change.
  const Layout layout = LayoutOf(sample.shape);
  const std::string kind =
      fmt::format("{},{},{}", sample.is_float() ? "float" : "integer", sample.shape.size(), layout.features);
  if (kind != kind_) {
    Clear();
    kind_ = kind;
    for (auto* values : {&reference_, &count_, &s1_, &s2_, &s3_, &s4_}) values->assign(layout.features, 0);
  }
  rows_ += static_cast<std::int64_t>(rows.count);
  for (std::size_t i = 0; i < sample.values.size(); ++i) {
    const double value = sample.values[i];
    if (!(std::abs(value) < kMaxValue)) continue;
    const std::size_t f = (i / layout.stride) % layout.features;
    if (count_[f] == 0) reference_[f] = value;
    const double d = value - reference_[f];
    const double d2 = d * d;
    count_[f] += 1;
    s1_[f] += d;
    s2_[f] += d2;
    s3_[f] += d2 * d;
    s4_[f] += d2 * d2;
  }
}

double Features::mean(std::size_t i) const noexcept {
  return count_[i] > 0 ? reference_[i] + s1_[i] / count_[i] : 0;
}

double Features::variance(std::size_t i) const noexcept {
  if (count_[i] <= 0) return 0;
  const double m = s1_[i] / count_[i];
  return std::max(s2_[i] / count_[i] - m * m, 0.0);
}

double Features::rms(std::size_t i) const noexcept { return std::sqrt(variance(i) + mean(i) * mean(i)); }

double Features::kurtosis(std::size_t i) const noexcept {
  const double v = variance(i);
  if (!(v > 0)) return 0;
  const double n = count_[i];
  const double m = s1_[i] / n;
  const double fourth = s4_[i] / n - 4 * m * s3_[i] / n + 6 * m * m * s2_[i] / n - 3 * m * m * m * m;
  return std::max(fourth, 0.0) / (v * v);
}

bool Features::varies(std::size_t i) const noexcept {
  return count_[i] > 1 && std::sqrt(variance(i)) > 1e-6 * std::abs(mean(i)) && variance(i) > 1e-300;
}

void Features::VisitFields(Fields& io) {
  io("kind", kind_);
  io("rows", rows_);
  io("reference", reference_, kMaxFeatures);
  io("count", count_, kMaxFeatures);
  io("s1", s1_, kMaxFeatures);
  io("s2", s2_, kMaxFeatures);
  io("s3", s3_, kMaxFeatures);
  io("s4", s4_, kMaxFeatures);
  if (!io.loading()) return;
  const std::size_t features = FeaturesOf(kind_);
  for (const auto* values : {&reference_, &count_, &s1_, &s2_, &s3_, &s4_}) {
    const bool finite =
        std::all_of(values->begin(), values->end(), [](double value) { return std::isfinite(value); });
    io.Check(finite && values->size() == features, "moments of its features");
  }
}

}  // namespace luff::rules
