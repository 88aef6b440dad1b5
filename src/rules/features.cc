#include "rules/features.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "luff/rules/rule.h"
#include "rules/sample.h"

namespace luff::rules {
namespace {

using Json = nlohmann::json;
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

// Sums of fourth powers are larger than the numbers that a saved state may hold: they are text.
std::string ToText(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    if (!text.empty()) text += ',';
    fmt::format_to(std::back_inserter(text), "{:.17g}", value);
  }
  return text;
}

std::vector<double> FromText(const Json& from, const char* key) {
  std::vector<double> values;
  for (const std::string& word : ParseList(from.at(key).get<std::string>())) {
    const Result<double> value = ParseDouble(word);
    if (!value.ok() || !std::isfinite(value.value())) throw std::out_of_range("a moment that is no number");
    values.push_back(value.value());
  }
  return values;
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
  // The length of a sequence and the size of an image may change.
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

void Features::Save(Json* to) const {
  *to = {{"kind", kind_},           {"rows", rows_},     {"reference", ToText(reference_)},
         {"count", ToText(count_)}, {"s1", ToText(s1_)}, {"s2", ToText(s2_)},
         {"s3", ToText(s3_)},       {"s4", ToText(s4_)}};
}

void Features::Load(const Json& from) {
  kind_ = from.at("kind");
  rows_ = from.at("rows");
  reference_ = FromText(from, "reference");
  count_ = FromText(from, "count");
  s1_ = FromText(from, "s1");
  s2_ = FromText(from, "s2");
  s3_ = FromText(from, "s3");
  s4_ = FromText(from, "s4");
  for (const auto* values : {&count_, &s1_, &s2_, &s3_, &s4_}) {
    if (values->size() != reference_.size() || values->size() > kMaxFeatures)
      throw std::out_of_range("moments that do not belong together");
  }
}

}  // namespace luff::rules
