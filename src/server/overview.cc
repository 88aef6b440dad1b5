#include "server/overview.h"

#include <algorithm>
#include <bit>
#include <bitset>
#include <cmath>
#include <limits>

#include "base/format.h"
#include "base/populate.h"

namespace luff::server {
namespace {

constexpr float kEmpty = std::numeric_limits<float>::infinity();
constexpr std::uint32_t kOther = 0xFFFFFFFFU;  // a step of another mode

constexpr std::size_t PlaceOf(Statistic statistic) {
  for (const NamedStatistic& one : kStatistics) {
    if (one.statistic == statistic && one.heat()) return static_cast<std::size_t>(one.place);
  }
  return kOverviewStatistics;
}
constexpr std::size_t kL2 = PlaceOf(Statistic::kL2), kMean = PlaceOf(Statistic::kMean),
                      kStd = PlaceOf(Statistic::kStd), kAbsMean = PlaceOf(Statistic::kAbsMean),
                      kAbsMax = PlaceOf(Statistic::kAbsMax), kZeros = PlaceOf(Statistic::kZeroShare),
                      kBadShare = PlaceOf(Statistic::kNonFinite), kRatio = PlaceOf(Statistic::kUpdateRatio);

std::uint8_t* FlagsOf(float* words, std::size_t stride) noexcept {
  return reinterpret_cast<std::uint8_t*>(words + stride * 2 * kOverviewStatistics);
}
const std::uint8_t* FlagsOf(const float* words, std::size_t stride) noexcept {
  return reinterpret_cast<const std::uint8_t*>(words + stride * 2 * kOverviewStatistics);
}

/// What rows of one tensor in one column say, as float64. Squares: roots are drawn at the end, since they
/// keep the order.
struct Extremes {
  std::array<double, kOverviewStatistics> lo, hi;
  std::uint8_t flags = Overview::kRecorded;

  Extremes() {
    lo.fill(HUGE_VAL);
    hi.fill(-HUGE_VAL);
  }
  /// NaN stands for none.
  void Add(const std::array<double, kOverviewStatistics>& values) noexcept {
    for (std::size_t i = 0; i < values.size(); ++i) {
      lo[i] = values[i] < lo[i] ? values[i] : lo[i];
      hi[i] = values[i] > hi[i] ? values[i] : hi[i];
    }
  }
  void PutInto(float* words, std::size_t stride, std::size_t tensor) noexcept {
    for (const std::size_t square : {kL2, kStd}) {
      lo[square] = std::sqrt(lo[square]);
      hi[square] = std::sqrt(hi[square]);  // NaN if there is none
    }
    for (std::size_t place = 0; place < kOverviewStatistics; ++place)
      Widen(static_cast<float>(lo[place]), static_cast<float>(hi[place]), place, words, stride, tensor);
    FlagsOf(words, stride)[tensor] |= flags;
  }
  /// NaN stands for none.
  static void Widen(float low, float high, std::size_t place, float* words, std::size_t stride,
                    std::size_t tensor) noexcept {
    float& least = words[2 * place * stride + tensor];
    float& most = words[(2 * place + 1) * stride + tensor];
    least = low < least ? low : least;
    most = high > most ? high : most;
  }
};

/// What a summary says, of wherever it lies.
struct Numbers {
  std::uint64_t count, nan_count, inf_count, zero_count, min_bits, max_bits;
  double sum, sum_sq, abs_sum;
  std::uint16_t merged_steps;
  std::uint8_t dtype;
};
Numbers NumbersAt(const query::SummaryStretch& s, std::size_t i) noexcept {
  return {s.count[i], s.nan_count[i], s.inf_count[i], s.zero_count[i],   s.min_bits[i], s.max_bits[i],
          s.sum[i],   s.sum_sq[i],    s.abs_sum[i],   s.merged_steps[i], s.dtype[i]};
}
Numbers NumbersOf(const format::SummaryRow& s) noexcept {
  return {s.count, s.nan_count, s.inf_count, s.zero_count, s.min_bits, s.max_bits,
          s.sum,   s.sum_sq,    s.abs_sum,   s.steps,      s.dtype};
}

/// The values of rows, one after another: neighbours mostly have as many elements, of one type.
class RowValues {
 public:
  std::array<double, kOverviewStatistics> Of(const Numbers& s, std::uint8_t* flags) noexcept {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    std::array<double, kOverviewStatistics> values;
    values.fill(kNone);
    const std::uint64_t count = s.count;
    if (count != count_) {
      count_ = count;
      share_ = count == 0 ? 0.0 : 1.0 / static_cast<double>(count);
    }
    const std::uint64_t bad = s.nan_count + s.inf_count;
    const std::uint64_t zeros = s.zero_count;
    values[kZeros] = zeros == 0 ? 0.0 : static_cast<double>(zeros) * share_;
    values[kBadShare] = bad == 0 ? 0.0 : static_cast<double>(bad) * share_;
    if (s.merged_steps > 1) *flags |= Overview::kMerged;
    if (bad != 0) *flags |= Overview::kNotFinite;
    if (count <= bad) return values;  // damage may claim more
    const double part = bad == 0 ? share_ : 1.0 / static_cast<double>(count - bad);
    const double mean = s.sum * part;
    values[kL2] = s.sum_sq;
    values[kMean] = mean;
    values[kStd] = std::max(s.sum_sq * part - mean * mean, 0.0);
    values[kAbsMean] = s.abs_sum * part;
    if (s.dtype != dtype_) {
      dtype_ = s.dtype;
      const auto dtype = static_cast<DType>(dtype_);
      kind_ = IsSignedInteger(dtype)     ? Kind::kSigned
              : IsUnsignedInteger(dtype) ? Kind::kUnsigned
                                         : Kind::kFloat;
    }
    values[kAbsMax] = std::max(std::fabs(Bound(s.min_bits)), std::fabs(Bound(s.max_bits)));
    return values;
  }

 private:
  enum class Kind : std::uint8_t { kFloat, kSigned, kUnsigned };
  [[nodiscard]] double Bound(std::uint64_t bits) const noexcept {
    if (kind_ == Kind::kFloat) return std::bit_cast<double>(bits);
    return kind_ == Kind::kSigned ? static_cast<double>(std::bit_cast<std::int64_t>(bits))
                                  : static_cast<double>(bits);
  }

  std::uint64_t count_ = 0;
  double share_ = 0;
  std::uint8_t dtype_ = 0;  // of no type
  Kind kind_ = Kind::kFloat;
};

void MakeEmpty(float* words, std::size_t stride) {
  for (std::size_t plane = 0; plane < 2 * kOverviewStatistics; ++plane)
    std::fill_n(words + plane * stride, stride, plane % 2 == 0 ? kEmpty : -kEmpty);
  std::fill_n(FlagsOf(words, stride), stride, std::uint8_t{0});
}

void Join(float* to, const float* from, std::size_t count, bool greatest) noexcept {
  if (greatest) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i] < to[i] ? from[i] : to[i];
  }
}

/// Memory for a column, not filled in.
std::unique_ptr<float[]> ColumnMemory(std::size_t words) {
  auto memory = std::make_unique_for_overwrite<float[]>(words);
  Populate(memory.get(), words * sizeof(float));
  return memory;
}

/// Values of rows of one step, of tensors that lie beside each other, statistic by statistic: they meet the
/// cells of their column several at a time.
class Lanes {
 public:
  [[nodiscard]] bool Takes(std::size_t tensor) const noexcept {
    return count_ < kLanes && tensor == first_ + count_;
  }
  void Begin(std::size_t tensor) noexcept {
    first_ = tensor;
    count_ = 0;
  }
  void Add(RowValues* of, const Numbers& row) noexcept {
    flags_[count_] = Overview::kRecorded;
    const auto values = of->Of(row, &flags_[count_]);
    for (std::size_t place = 0; place < kOverviewStatistics; ++place) values_[place][count_] = values[place];
    ++count_;
  }
  void PutInto(float* words, std::size_t stride) noexcept {
    for (const std::size_t square : {kL2, kStd}) {
      for (std::size_t i = 0; i < count_; ++i) values_[square][i] = std::sqrt(values_[square][i]);
    }
    for (std::size_t place = 0; place < kOverviewStatistics; ++place) {
      std::array<float, kLanes> narrow;
      for (std::size_t i = 0; i < count_; ++i) narrow[i] = static_cast<float>(values_[place][i]);
      Join(words + 2 * place * stride + first_, narrow.data(), count_, false);
      Join(words + (2 * place + 1) * stride + first_, narrow.data(), count_, true);
    }
    for (std::size_t i = 0; i < count_; ++i) FlagsOf(words, stride)[first_ + i] |= flags_[i];
  }

 private:
  static constexpr std::size_t kLanes = 64;
  std::size_t first_ = 0, count_ = 0;
  std::array<std::array<double, kLanes>, kOverviewStatistics> values_;
  std::array<std::uint8_t, kLanes> flags_;
};

}  // namespace

/// Cells of some neighbouring tensors in neighbouring columns. Rows come tensor by tensor, and columns lie
/// tensor beside tensor: without blocks each row would touch sixteen places that are far apart.
struct Overview::Block {
  static constexpr std::size_t kTensors = kRowUnit, kColumns = 256, kNone = SIZE_MAX;
  static constexpr std::size_t kWords = WordsOf(kTensors);
  RowValues values;
  std::size_t number = kNone;  // its tensors are those from number * kTensors on
  std::uint32_t first = 0;     // column
  std::bitset<kColumns> filled;
  std::vector<std::uint32_t> touched;  // columns
  std::unique_ptr<float[]> words;      // a megabyte, which single steps do without

  [[nodiscard]] float* WordsAt(std::uint32_t column) {
    if (words == nullptr) words = std::make_unique_for_overwrite<float[]>(kWords * kColumns);
    const std::size_t i = column - first;
    float* at = words.get() + i * kWords;
    if (!filled[i]) {
      MakeEmpty(at, kTensors);
      filled.set(i);
      touched.push_back(column);
    }
    return at;
  }
};

void Overview::Put(Block* block) {
  const std::size_t tensor = block->number * Block::kTensors;
  for (const std::uint32_t column : block->touched) {
    const float* from = block->words.get() + (column - block->first) * Block::kWords;
    float* to = Words(column);
    for (std::size_t plane = 0; plane < 2 * kOverviewStatistics; ++plane)
      Join(to + plane * stride_ + tensor, from + plane * Block::kTensors, Block::kTensors, plane % 2 != 0);
    for (std::size_t lane = 0; lane < Block::kTensors; ++lane)
      FlagsOf(to, stride_)[tensor + lane] |= FlagsOf(from, Block::kTensors)[lane];
  }
  block->touched.clear();
  block->filled.reset();
}

Overview::Cells Overview::At(std::size_t column, std::size_t place) const noexcept {
  const float* words = columns_[column].words;
  if (words == nullptr) return {};
  return {{words + 2 * place * stride_, tensors_},
          {words + (2 * place + 1) * stride_, tensors_},
          {FlagsOf(words, stride_), tensors_}};
}

std::size_t Overview::anonymous_bytes() const noexcept {
  const auto owned = std::ranges::count_if(columns_, [](const Column& one) { return one.owned != nullptr; });
  return static_cast<std::size_t>(owned) * WordsOf(stride_) * sizeof(float);
}

Overview::State Overview::state() const noexcept {
  return {static_cast<std::uint32_t>(bits_),
          static_cast<std::uint32_t>(tensors_),
          static_cast<std::uint32_t>(stride_),
          static_cast<std::uint32_t>(used_),
          from_,
          to_,
          newest_step_,
          superseded_};
}

void Overview::Adopt(const State& state, std::span<const Kept> columns, std::shared_ptr<const void> memory) {
  columns_.clear();
  for (const Kept& one : columns) columns_.push_back({one.words, nullptr, one.stepped});
  memory_ = std::move(memory);
  bits_ = static_cast<int>(state.bits);
  tensors_ = state.tensors;
  stride_ = state.stride;
  used_ = state.columns;
  from_ = state.from;
  to_ = state.to;
  newest_step_ = state.newest_step;
  superseded_ = state.superseded;
  if (version_ == 0) version_ = 1;  // else the same cells lie elsewhere
}

void Overview::Clear() {
  columns_.clear();
  memory_.reset();
  tensors_ = stride_ = used_ = unread_ = from_ = to_ = superseded_ = 0;
  bits_ = 0;
  newest_step_ = -1;
  ++version_;
}

std::unique_ptr<float[]> Overview::NewWords() const {
  auto words = ColumnMemory(WordsOf(stride_));
  MakeEmpty(words.get(), stride_);
  return words;
}

float* Overview::Words(std::size_t column) {
  Column& at = columns_[column];
  if (at.owned == nullptr) {
    auto own = at.words == nullptr ? NewWords() : ColumnMemory(WordsOf(stride_));
    if (at.words != nullptr) std::copy_n(at.words, WordsOf(stride_), own.get());
    at.owned = std::move(own);
    at.words = at.owned.get();
  }
  return at.owned.get();
}

void Overview::Widen(std::size_t tensors) {
  const std::size_t before = stride_;
  stride_ = (std::max(tensors, before + before / 4) + kRowUnit - 1) / kRowUnit * kRowUnit;
  for (Column& column : columns_) {
    if (column.words == nullptr) continue;
    auto wider = NewWords();
    for (std::size_t plane = 0; plane < 2 * kOverviewStatistics; ++plane)
      std::copy_n(column.words + plane * before, before, wider.get() + plane * stride_);
    std::copy_n(FlagsOf(column.words, before), before, FlagsOf(wider.get(), stride_));
    column.owned = std::move(wider);
    column.words = column.owned.get();
  }
  memory_.reset();
}

void Overview::Fit(const query::Trial& trial) {
  if (trial.tensor_count() > stride_) Widen(trial.tensor_count());
  tensors_ = trial.tensor_count();
  const std::size_t room = std::clamp(kMaxCells / stride_, kMinColumns, kMaxColumns);
  while (used_ > room) Fold();
  for (std::size_t n = to_; n < trial.step_count(); ++n) {
    const std::int64_t step = std::max<std::int64_t>(trial.step_at(n).global_step, 0);
    while (static_cast<std::uint64_t>(step >> bits_) >= room) Fold();
    used_ = std::max(used_, static_cast<std::size_t>(step >> bits_) + 1);
    newest_step_ = std::max(newest_step_, step);
  }
  columns_.resize(used_);
}

void Overview::Fold() {
  for (std::size_t i = 0; 2 * i < columns_.size(); ++i) {
    Column first = std::move(columns_[2 * i]);
    if (2 * i + 1 < columns_.size()) {
      Column& second = columns_[2 * i + 1];
      const bool stepped = first.stepped || second.stepped;
      if (first.words == nullptr) {
        first = std::move(second);
      } else if (second.words != nullptr) {
        auto both = ColumnMemory(WordsOf(stride_));
        std::copy_n(first.words, WordsOf(stride_), both.get());
        for (std::size_t plane = 0; plane < 2 * kOverviewStatistics; ++plane)
          Join(both.get() + plane * stride_, second.words + plane * stride_, stride_, plane % 2 != 0);
        for (std::size_t row = 0; row < stride_; ++row)
          FlagsOf(both.get(), stride_)[row] |= FlagsOf(second.words, stride_)[row];
        first.owned = std::move(both);
        first.words = first.owned.get();
      }
      first.stepped = stepped;
    }
    columns_[i] = std::move(first);
  }
  columns_.resize((columns_.size() + 1) / 2);
  used_ = (used_ + 1) / 2;
  ++bits_;
}

Status Overview::Visit(const query::Trial& trial, std::size_t begin, std::size_t end) {
  column_of_.clear();
  for (std::size_t n = begin; n < end; ++n) {
    const query::StepInfo info = trial.step_at(n);
    superseded_ += info.superseded ? 1 : 0;
    const bool counts = !info.superseded && info.mode == mode_ && info.global_step >= 0;
    column_of_.push_back(counts ? static_cast<std::uint32_t>(info.global_step >> bits_) : kOther);
    if (counts) columns_[column_of_.back()].stepped = true;
  }
  ++version_;
  const auto block = std::make_unique<Block>();
  const Status read = query::VisitRows(
      trial, begin, end, [&](const query::SummaryStretch& s) { Take(begin, s, block.get()); },
      [&](query::TensorId tensor, std::size_t n, const format::FormRow& row) {
        TakeDifference(begin, tensor, n, row);
      },
      [&](const query::PublishedSummaries& step) { TakeStep(begin, step); });
  Put(block.get());
  return read;
}

void Overview::Take(std::size_t begin, const query::SummaryStretch& s, Block* block) {
  const auto columns = std::span(column_of_).subspan(s.first - begin, s.count.size());
  const auto [least, most] =
      std::ranges::minmax(columns, {}, [](std::uint32_t column) { return column == kOther ? 0 : column; });
  const bool wide = most - least >= Block::kColumns;  // of few tensors: there is nothing to gather
  for (std::size_t i = 0; i < columns.size();) {
    const std::uint32_t column = columns[i];
    if (column == kOther) {
      ++i;
      continue;
    }
    Extremes found;
    for (; i < columns.size() && columns[i] == column; ++i)
      found.Add(block->values.Of(NumbersAt(s, i), &found.flags));
    if (wide) {
      found.PutInto(Words(column), stride_, s.tensor);
      continue;
    }
    if (s.tensor / Block::kTensors != block->number || column - block->first >= Block::kColumns) {
      Put(block);
      block->number = s.tensor / Block::kTensors;
      block->first = column;
    }
    found.PutInto(block->WordsAt(column), Block::kTensors, s.tensor % Block::kTensors);
  }
}

void Overview::TakeStep(std::size_t begin, const query::PublishedSummaries& step) {
  const std::uint32_t column = column_of_[step.n - begin];
  if (column == kOther) return;
  float* words = Words(column);
  RowValues values;
  Lanes lanes;
  for (const std::uint32_t row : step.counting) {
    const query::TensorId tensor = step.tensors[step.slot[row]];
    if (tensor == query::kNoTensor) continue;
    if (!lanes.Takes(tensor)) {
      lanes.PutInto(words, stride_);
      lanes.Begin(tensor);
    }
    lanes.Add(&values, NumbersOf(step.rows[row]));
  }
  lanes.PutInto(words, stride_);
}

void Overview::TakeDifference(std::size_t begin, query::TensorId tensor, std::size_t n,
                              const format::FormRow& row) {
  const std::uint32_t column = column_of_[n - begin];
  const double ratio = std::sqrt(row.values[1] / row.values[5]);  // of sums of squares
  if (column == kOther || !std::isfinite(ratio)) return;
  float* words = Words(column);
  float& lo = words[2 * kRatio * stride_ + tensor];
  float& hi = words[(2 * kRatio + 1) * stride_ + tensor];
  lo = std::min(lo, static_cast<float>(ratio));
  hi = std::max(hi, static_cast<float>(ratio));
}

bool Overview::TakenBack(const query::Trial& trial) const {
  bool anew = false;
  for (std::size_t n = to_; n < trial.step_count() && !anew; ++n)
    anew = trial.step_at(n).global_step <= newest_step_;
  if (!anew || to_ == 0) return false;
  std::size_t superseded = 0;
  for (std::size_t n = from_; n < to_; ++n) superseded += trial.step_at(n).superseded ? 1 : 0;
  return superseded != superseded_;
}

Result<bool> Overview::Read(const query::Trial& trial, std::size_t steps) {
  const std::size_t all = trial.step_count();
  if (trial.tensor_count() == 0 || all == 0) return true;
  if (trial.tensor_count() > kMaxTensors) {
    return ResourceExhausted(
        fmt::format("a heat map shows {} tensors, and the run has {}", kMaxTensors, trial.tensor_count()));
  }
  if (TakenBack(trial)) Clear();
  const bool begun = to_ != 0;
  Fit(trial);
  if (!begun) {
    from_ = all > steps ? all - steps : 0;
    LUFF_RETURN_IF_ERROR(Visit(trial, from_, all));
    to_ = all;
  } else if (to_ < all) {
    LUFF_RETURN_IF_ERROR(Visit(trial, to_, all));
    to_ = all;
  } else if (from_ > 0) {
    const std::size_t begin = from_ > steps ? from_ - steps : 0;
    LUFF_RETURN_IF_ERROR(Visit(trial, begin, from_));
    from_ = begin;
  }
  const std::int64_t oldest = from_ == 0 ? -1 : trial.step_at(from_ - 1).global_step;
  unread_ = oldest < 0 ? 0 : static_cast<std::size_t>(oldest >> bits_) + 1;
  return Covers(trial);
}

}  // namespace luff::server
