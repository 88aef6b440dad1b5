#include "catalog/divergence.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "luff/query/row_visit.h"

namespace luff::catalog {
namespace {

using query::Mode;
using query::Role;
using query::Trial;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kFewest = 8;               // values from which jitter is known
constexpr std::size_t kCellsAtOnce = 1'000'000;  // of each run in memory

std::uint64_t Stirred(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}

/// What is compared of a tensor at a step. `bits`: of everything that was recorded, 0 if nothing was.
struct Cell {
  double value = kNaN;
  std::uint64_t bits = 0;
};

const char* KindOf(Role role) {
  switch (role) {
    case Role::kLoss: return "losses";
    case Role::kGradient: return "gradients";
    case Role::kWeight:
    case Role::kBias: return "weights";
    default: return "others";
  }
}

/// Tensors of these roles may be scalars, which are read one by one.
bool MayBeScalar(Role role) {
  return role == Role::kLoss || role == Role::kScalar || role == Role::kOptimizerSetting ||
         role == Role::kCustom || role == Role::kOther;
}

/// One of the two runs, in windows of common steps.
class Side {
 public:
  Side(const Trial& trial, const std::vector<query::TensorId>& tensors,
       const std::vector<std::uint32_t>& rows, const std::vector<std::uint32_t>& steps, Mode mode)
      : trial_(trial),
        rows_(rows),
        steps_(steps) {
    for (std::uint32_t row = 0; row < tensors.size(); ++row) {
      if (!MayBeScalar(trial.tensor(tensors[row]).role)) continue;
      const auto found = trial.Scalars(tensors[row], mode);
      if (found.ok() && !found->empty()) scalars_.emplace_back(row, *found);
    }
    is_loss_.resize(tensors.size());
    for (std::uint32_t row = 0; row < tensors.size(); ++row)
      is_loss_[row] = trial.tensor(tensors[row]).role == Role::kLoss;
  }

  /// Fills `cells[row * width + i]` with what the run has at the common step `from + i`.
  [[nodiscard]] Status Fill(std::size_t from, std::size_t width, std::span<const std::int64_t> step,
                            std::vector<Cell>* cells) const {
    std::ranges::fill(*cells, Cell());
    const auto [low, high] = std::ranges::minmax(std::span(steps_).subspan(from, width));
    std::vector<std::int32_t> place(high - low + 1, -1);
    for (std::size_t i = 0; i < width; ++i) place[steps_[from + i] - low] = static_cast<std::int32_t>(i);
    LUFF_RETURN_IF_ERROR(query::VisitRows(trial_, low, high + 1, [&](const query::SummaryStretch& one) {
      if (one.worker != 0 || one.tensor >= rows_.size() || rows_[one.tensor] == CommonTensors::kNone) return;
      const std::uint32_t row = rows_[one.tensor];
      for (std::size_t k = 0; k < one.count.size(); ++k) {
        const std::size_t n = one.first + k;
        if (n < low || n > high || place[n - low] < 0) continue;
        (*cells)[row * width + static_cast<std::size_t>(place[n - low])] = Of(one, k, is_loss_[row]);
      }
    }));
    for (const auto& [row, values] : scalars_) {
      auto at = std::ranges::lower_bound(values, step[from], {}, &query::ScalarAt::mode_step);
      for (std::size_t i = 0; i < width && at != values.end(); ++i) {
        while (at != values.end() && at->mode_step < step[from + i]) ++at;
        if (at == values.end() || at->mode_step != step[from + i]) continue;
        (*cells)[row * width + i] = {at->value, Stirred(1, std::bit_cast<std::uint64_t>(at->value)) | 1};
      }
    }
    return Status::Ok();
  }

 private:
  static Cell Of(const query::SummaryStretch& one, std::size_t k, bool loss) {
    Cell cell;
    std::uint64_t bits = 1;
    for (const std::uint64_t word :
         {one.count[k], one.min_bits[k], one.max_bits[k], one.zero_count[k], one.nan_count[k],
          one.inf_count[k], std::bit_cast<std::uint64_t>(one.sum[k]),
          std::bit_cast<std::uint64_t>(one.sum_sq[k])})
      bits = Stirred(bits, word);
    cell.bits = bits | 1;
    const std::uint64_t finite = one.count[k] - one.nan_count[k] - one.inf_count[k];
    if (finite == one.count[k])
      cell.value = loss && finite > 0 ? one.sum[k] / static_cast<double>(finite) : std::sqrt(one.sum_sq[k]);
    return cell;
  }

  const Trial& trial_;
  const std::vector<std::uint32_t>& rows_;
  const std::vector<std::uint32_t>& steps_;
  std::vector<std::pair<std::uint32_t, std::vector<query::ScalarAt>>> scalars_;
  std::vector<bool> is_loss_;
};

/// The course of one tensor in both runs, as far as noise needs it.
struct Course {
  std::vector<double> a, b;
  std::vector<std::int64_t> step;
  bool over = false;  // it has been found

  /// Looks for the first difference beyond noise from the place `from`, then forgets what is no longer
  /// needed.
  std::optional<DifferenceAt> Look() {
    const std::size_t old = kept_;
    const auto found = FirstBeyondNoise(a, b, old > kLasting - 1 ? old - (kLasting - 1) : 0);
    if (found) {
      over = true;
      DifferenceAt one;
      one.step = step[found->place];
      one.a = a[found->place];
      one.b = b[found->place];
      one.noise = found->noise;
      return one;
    }
    constexpr std::size_t kKeep = kWindow + kLasting;
    if (a.size() > kKeep) {
      const auto drop = static_cast<std::ptrdiff_t>(a.size() - kKeep);
      a.erase(a.begin(), a.begin() + drop);
      b.erase(b.begin(), b.begin() + drop);
      step.erase(step.begin(), step.begin() + drop);
    }
    kept_ = a.size();
    return std::nullopt;
  }

 private:
  std::size_t kept_ = 0;
};

void NameOthers(const Trial& trial, const std::vector<std::uint32_t>& rows, std::vector<std::string>* names,
                std::uint64_t* count) {
  for (query::TensorId id = 0; id < rows.size(); ++id) {
    if (rows[id] != CommonTensors::kNone) continue;
    if (++*count <= Divergence::kMaxNamed) names->push_back(trial.tensor(id).name);
  }
}

}  // namespace

CommonTensors::CommonTensors(const Trial& of_a, const Trial& of_b) {
  row_a.assign(of_a.tensor_count(), kNone);
  row_b.assign(of_b.tensor_count(), kNone);
  for (query::TensorId id = 0; id < of_a.tensor_count(); ++id) {
    const auto other = of_b.TensorNamed(of_a.tensor(id).name);
    if (!other) continue;
    row_a[id] = row_b[*other] = static_cast<std::uint32_t>(a.size());
    a.push_back(id);
    b.push_back(*other);
  }
}

CommonSteps::CommonSteps(const Trial& of_a, const Trial& of_b) {
  const auto table = [](const Trial& trial, Mode of) {
    std::map<std::int64_t, std::uint32_t> places;
    for (std::size_t n = 0; n < trial.step_count(); ++n) {
      const query::StepInfo info = trial.step_at(n);
      if (info.mode == of && !info.superseded) places[info.mode_step] = static_cast<std::uint32_t>(n);
    }
    return places;
  };
  for (const Mode one : {Mode::kTrain, Mode::kEval, Mode::kPredict}) {
    const auto in_a = table(of_a, one);
    const auto in_b = table(of_b, one);
    for (const auto& [number, n] : in_a) {
      const auto at = in_b.find(number);
      if (at == in_b.end()) continue;
      step.push_back(number);
      a.push_back(n);
      b.push_back(at->second);
    }
    if (step.empty()) continue;
    mode = one;
    any = true;
    return;
  }
}

double JitterOf(std::span<const double> values) {
  std::vector<double> jitter;
  for (std::size_t i = 1; i + 1 < values.size(); ++i) {
    const double one = std::fabs(values[i] - (values[i - 1] + values[i + 1]) / 2);
    if (std::isfinite(one)) jitter.push_back(one);
  }
  if (jitter.size() < 2) return kNaN;
  const auto middle = jitter.begin() + static_cast<std::ptrdiff_t>(jitter.size() / 2);
  std::ranges::nth_element(jitter, middle);
  constexpr double kNormal = 0.6744897501960817;  // the third quartile of the normal distribution
  return *middle / kNormal * std::sqrt(2.0 / 3.0);
}

std::optional<Parting> FirstBeyondNoise(std::span<const double> a, std::span<const double> b,
                                        std::size_t from) {
  const auto jitter_at = [&](std::size_t i) {
    const std::size_t end = std::min(a.size(), std::max(i, kWindow));
    const std::size_t begin = end > kWindow ? end - kWindow : 0;
    if (end - begin < kFewest) return kNaN;
    return std::hypot(JitterOf(a.subspan(begin, end - begin)), JitterOf(b.subspan(begin, end - begin)));
  };
  const auto sizable = [&](std::size_t i) {
    return std::fabs(a[i] - b[i]) > kSmallest * std::max(std::fabs(a[i]), std::fabs(b[i]));
  };
  for (std::size_t i = from; i < a.size(); ++i) {
    const bool fine_a = std::isfinite(a[i]);
    if (fine_a != std::isfinite(b[i])) return Parting{i, 0};
    if (!fine_a || !sizable(i) || i + kLasting > a.size()) continue;
    const double noise = jitter_at(i);
    if (std::isnan(noise)) continue;
    bool lasting = true;
    for (std::size_t k = i; lasting && k < i + kLasting; ++k) {
      lasting = std::isfinite(a[k]) && std::isfinite(b[k]) && sizable(k) && (a[k] > b[k]) == (a[i] > b[i]) &&
                std::fabs(a[k] - b[k]) > kDeviations * noise;
    }
    if (lasting) return Parting{i, noise};
  }
  return std::nullopt;
}

Result<Divergence> FindDivergence(const Trial& a, const Trial& b, std::uint64_t budget) {
  Divergence told;
  const CommonTensors tensors(a, b);
  const CommonSteps steps(a, b);
  told.tensors = tensors.a.size();
  NameOthers(a, tensors.row_a, &told.only_a, &told.only_a_count);
  NameOthers(b, tensors.row_b, &told.only_b, &told.only_b_count);
  if (!steps.any || tensors.a.empty()) return told;
  told.mode = std::string(query::ModeName(steps.mode));
  told.first = steps.step.front();
  const std::size_t rows = tensors.a.size();
  const Side side_a(a, tensors.a, tensors.row_a, steps.a, steps.mode);
  const Side side_b(b, tensors.b, tensors.row_b, steps.b, steps.mode);
  const std::size_t window = std::clamp<std::size_t>(kCellsAtOnce / rows, 2 * kWindow, 4096);
  const std::size_t end =
      std::min<std::size_t>(steps.step.size(), std::max<std::uint64_t>(budget / rows, 2 * kWindow));
  std::vector<Course> courses(rows);
  std::set<std::string> open;  // kinds that have not parted yet
  std::map<std::string, DifferenceAt> beyond;
  for (std::size_t row = 0; row < rows; ++row) open.insert(KindOf(a.tensor(tensors.a[row]).role));
  std::vector<Cell> cells_a, cells_b;
  std::size_t done = 0;
  while (done < end && (!open.empty() || !told.any)) {
    const std::size_t width = std::min(window, end - done);
    cells_a.resize(rows * width);
    cells_b.resize(rows * width);
    LUFF_RETURN_IF_ERROR(side_a.Fill(done, width, steps.step, &cells_a));
    LUFF_RETURN_IF_ERROR(side_b.Fill(done, width, steps.step, &cells_b));
    for (std::size_t row = 0; row < rows; ++row) {
      Course& course = courses[row];
      const std::string kind = KindOf(a.tensor(tensors.a[row]).role);
      for (std::size_t i = 0; i < width; ++i) {
        const Cell& in_a = cells_a[row * width + i];
        const Cell& in_b = cells_b[row * width + i];
        if (in_a.bits == 0 || in_b.bits == 0) continue;
        ++told.pairs;
        const std::int64_t step = steps.step[done + i];
        if (in_a.bits != in_b.bits) {
          if (!told.any || step < told.any->step) {
            told.any = DifferenceAt{a.tensor(tensors.a[row]).name, kind, step, in_a.value, in_b.value, 0, 0};
          } else if (told.any->step == step) {
            ++told.any->as_early;
          }
        }
        if (course.over) continue;
        course.a.push_back(in_a.value);
        course.b.push_back(in_b.value);
        course.step.push_back(step);
      }
      if (course.over || !open.contains(kind)) continue;
      auto found = course.Look();
      if (!found) continue;
      found->tensor = a.tensor(tensors.a[row]).name;
      found->kind = kind;
      const auto [at, first] = beyond.try_emplace(kind, *found);
      if (first) continue;
      if (found->step < at->second.step) {
        at->second = *found;
      } else if (found->step == at->second.step) {
        ++at->second.as_early;
      }
    }
    for (const auto& [kind, one] : beyond) open.erase(kind);
    done += width;
  }
  told.steps = done;
  told.last = steps.step[done - 1];
  told.whole = done == steps.step.size();
  for (const auto& [kind, one] : beyond) told.beyond.push_back(one);
  std::ranges::stable_sort(told.beyond, {}, &DifferenceAt::step);
  return told;
}

}  // namespace luff::catalog
