#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "luff/store/reader.h"

/// Rows of a segment without a footer. A step is taken in as it was published; tensors are told apart by
/// slots, and steps whose rows are of the same tensors in the same order share what says so.
namespace luff::store {

/// Numbers the tensors of a segment in the order in which they appear.
class TailSlots {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }
  [[nodiscard]] std::uint32_t tensor(std::size_t slot) const noexcept { return tensors_[slot]; }
  [[nodiscard]] std::optional<std::size_t> Find(std::uint32_t tensor) const {
    const auto at = slots_.find(tensor);
    return at == slots_.end() ? std::nullopt : std::optional<std::size_t>(at->second);
  }
  [[nodiscard]] std::uint32_t Of(std::uint32_t tensor) {
    const auto [at, fresh] = slots_.try_emplace(tensor, static_cast<std::uint32_t>(tensors_.size()));
    if (fresh) tensors_.push_back(tensor);
    return at->second;
  }

 private:
  std::vector<std::uint32_t> tensors_;
  std::unordered_map<std::uint32_t, std::uint32_t> slots_;
};

/// The slots of a step's rows.
struct RowOrder {
  std::vector<std::uint32_t> slot;      // of each row
  std::vector<std::uint32_t> by_slot;   // rows, ascending by slot, those of one slot as they came
  std::vector<std::uint32_t> counting;  // the last row of each slot, ascending by row

  explicit RowOrder(std::vector<std::uint32_t> slots) : slot(std::move(slots)), by_slot(slot.size()) {
    std::iota(by_slot.begin(), by_slot.end(), 0U);
    std::ranges::stable_sort(by_slot, {}, [this](std::uint32_t row) { return slot[row]; });
    for (std::size_t i = 0; i < by_slot.size(); ++i) {
      if (i + 1 == by_slot.size() || slot[by_slot[i]] != slot[by_slot[i + 1]]) counting.push_back(by_slot[i]);
    }
    std::ranges::sort(counting);
  }
  [[nodiscard]] std::span<const std::uint32_t> RowsOf(std::size_t wanted) const {
    const auto [from, to] =
        std::ranges::equal_range(by_slot, wanted, {}, [this](std::uint32_t row) { return slot[row]; });
    return {from, to};
  }
};

/// Rows of one kind.
template <typename Row>
class TailRows {
 public:
  /// Rows of a step that is being taken in; a step may have several frames of them. Steps ascend. `owner`
  /// holds the memory in which the rows lie and may stay; if it is null they are copied.
  void Add(std::uint32_t step, std::span<const Row> rows, const std::shared_ptr<const void>& owner) {
    if (rows.empty()) return;
    if (steps_.empty() || steps_.back().step != step) steps_.emplace_back(step);
    steps_.back().Add(rows, owner);
  }
  /// All rows of the step were added.
  void Close(TailSlots* slots) {
    if (steps_.empty() || steps_.back().order != nullptr) return;
    Entry& entry = steps_.back();
    for (const auto& known : recent_) {
      if (!Follows(entry.rows, *known, *slots)) continue;
      entry.order = known;
      return;
    }
    std::vector<std::uint32_t> of_row;
    of_row.reserve(entry.rows.size());
    for (const Row& row : entry.rows) of_row.push_back(slots->Of(row.tensor));
    entry.order = std::make_shared<const RowOrder>(std::move(of_row));
    recent_.insert(recent_.begin(), entry.order);
    if (recent_.size() > kRecent) recent_.pop_back();
  }
  [[nodiscard]] SegmentReader::RowsOfStep<Row> At(std::uint32_t step) const noexcept {
    const auto at = std::ranges::lower_bound(steps_, step, {}, &Entry::step);
    if (at == steps_.end() || at->step != step) return {};
    return {at->rows, at->order->slot, at->order->counting};
  }
  /// Leaves out all rows but those of one step, which the caller keeps.
  void KeepOnly(std::uint32_t step) {
    std::erase_if(steps_, [step](const Entry& entry) { return entry.step != step; });
    steps_.shrink_to_fit();
    recent_.clear();
  }
  /// Calls `use(step, row)` for the rows of a slot in all entries from number `*made` on, and moves it on.
  void EachOf(std::size_t slot, std::size_t* made, auto use) const {
    const RowOrder* order = nullptr;
    std::span<const std::uint32_t> rows;
    for (; *made < steps_.size(); ++*made) {
      const Entry& entry = steps_[*made];
      if (entry.order.get() != order) {
        order = entry.order.get();
        rows = order->RowsOf(slot);
      }
      for (const std::uint32_t row : rows) use(entry.step, entry.rows[row]);
    }
  }

 private:
  static constexpr std::size_t kRecent = 4;  // what is saved every so many steps makes steps differ
  struct Entry {
    std::uint32_t step;
    std::span<const Row> rows;  // in `copies`, or in the memory of `owner`
    std::vector<Row> copies;
    std::shared_ptr<const void> owner;
    std::shared_ptr<const RowOrder> order;

    explicit Entry(std::uint32_t number) : step(number) {}
    Entry(Entry&&) noexcept = default;  // what `copies` holds stays where it is
    Entry& operator=(Entry&&) noexcept = default;
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    ~Entry() = default;

    void Add(std::span<const Row> more, const std::shared_ptr<const void>& of_more) {
      if (rows.empty() && of_more != nullptr) {
        rows = more;
        owner = of_more;
        return;
      }
      if (owner != nullptr) copies.assign(rows.begin(), rows.end());
      owner = nullptr;
      copies.insert(copies.end(), more.begin(), more.end());
      rows = copies;
    }
  };
  static bool Follows(std::span<const Row> rows, const RowOrder& order, const TailSlots& slots) {
    if (rows.size() != order.slot.size()) return false;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].tensor != slots.tensor(order.slot[i])) return false;
    }
    return true;
  }

  std::vector<Entry> steps_;
  std::vector<std::shared_ptr<const RowOrder>> recent_;
};

/// Rows of the last step of a segment that is sealed by now.
class LastRows {
 public:
  LastRows(std::uint32_t step, TailRows<format::SummaryRow> summaries, TailRows<format::ScalarRow> scalars,
           TailRows<format::FormRow> forms)
      : step_(step),
        summaries_(std::move(summaries)),
        scalars_(std::move(scalars)),
        forms_(std::move(forms)) {
    summaries_.KeepOnly(step);
    scalars_.KeepOnly(step);
    forms_.KeepOnly(step);
  }
  [[nodiscard]] std::optional<SegmentReader::PublishedRows> At(std::uint32_t step) const noexcept {
    if (step != step_) return std::nullopt;
    return SegmentReader::PublishedRows{summaries_.At(step), scalars_.At(step), forms_.At(step)};
  }

 private:
  const std::uint32_t step_;
  TailRows<format::SummaryRow> summaries_;
  TailRows<format::ScalarRow> scalars_;
  TailRows<format::FormRow> forms_;
};

}  // namespace luff::store
