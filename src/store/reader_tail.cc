#include "store/reader_tail.h"

#include <algorithm>

namespace luff::store {

using format::FrameKind;
using format::FrameOutcome;
using format::FrameView;
namespace {

/// Whether a frame that the window does not hold whole is a footer: its begin has a checksum of its own.
bool IsFooterUntrusted(std::span<const std::byte> window, std::uint64_t skip, std::uint64_t offset,
                       std::uint64_t sequence) {
  FrameView frame;
  return skip < window.size() &&
         format::ParseFrameHeadUntrusted(window.subspan(static_cast<std::size_t>(skip)), offset, sequence,
                                         &frame) == FrameOutcome::kFrame &&
         frame.kind == FrameKind::kFooter;
}

}  // namespace

TensorDef OwnedTensorDef(const format::TensorDefView& view) {
  TensorDef def;
  def.id = view.id;
  def.role = view.role;
  def.name = view.name;
  def.module_path = view.module_path;
  def.module_type = view.module_type;
  def.collections.assign(view.collections.begin(), view.collections.end());
  return def;
}

LayoutDef OwnedLayoutDef(const format::LayoutDefView& view) {
  LayoutDef def;
  def.id = view.id;
  def.layout = view.layout;
  def.global_shape.assign(view.global_shape.begin(), view.global_shape.end());
  def.global_offset.assign(view.global_offset.begin(), view.global_offset.end());
  return def;
}

void TailColumns::AddRows(const FrameView& frame, std::uint32_t step,
                          const std::shared_ptr<const void>& owner) {
  switch (frame.kind) {
    case FrameKind::kSummaryRows:
      if (const auto rows = format::ParseSummaryRowsUntrusted(frame.body); rows.ok())
        summaries_.Add(step, *rows, owner);
      return;
    case FrameKind::kScalarRows:
      if (const auto rows = format::ParseScalarRowsUntrusted(frame.body); rows.ok())
        scalars_.Add(step, *rows, owner);
      return;
    case FrameKind::kIndexRows:
      if (const auto rows = format::ParseIndexRowsUntrusted(frame.body); rows.ok())
        index_.Add(step, *rows, owner);
      return;
    case FrameKind::kFormRows:
      if (const auto rows = format::ParseFormRowsUntrusted(frame.body); rows.ok())
        forms_.Add(step, *rows, owner);
      return;
    default: AddFrame(frame);
  }
}

void TailColumns::AddFrame(const FrameView& frame) {
  // Heartbeats are not listed: frames_ must equal the list that the footer will have.
  if (frame.kind == FrameKind::kHeartbeat) {
    if (const auto beat = format::ParseHeartbeatUntrusted(frame.body); beat.ok())
      heartbeat_ = std::max(heartbeat_, *beat);
    return;
  }
  frames_.push_back({static_cast<std::uint16_t>(frame.kind), 0,
                     static_cast<std::uint32_t>(frame.next_offset - frame.offset), frame.ordinal,
                     frame.offset});
  kinds_ |= 1U << (static_cast<unsigned>(frame.kind) & 31U);
}

void TailColumns::AddDefs(const FrameView& frame) {
  if (frame.kind == FrameKind::kTensorDefs) {
    const auto defs = format::ParseTensorDefsUntrusted(frame.body);
    if (!defs.ok()) return;
    for (const auto& def : *defs) tensor_defs_.push_back(OwnedTensorDef(def));
  } else {
    const auto defs = format::ParseLayoutDefsUntrusted(frame.body);
    if (!defs.ok()) return;
    for (const auto& def : *defs) layout_defs_.push_back(OwnedLayoutDef(def));
  }
}

void TailColumns::AddStep(std::uint64_t ordinal, const format::StepMark& mark) {
  ordinal_.push_back(ordinal);
  global_step_.push_back(mark.global_step);
  mode_step_.push_back(mark.mode_step);
  update_.push_back(mark.update);
  wall_.push_back(mark.wall_unix_ns);
  duration_.push_back(mark.duration_ns);
  step_forms_.push_back(mark.forms);
  epoch_.push_back(mark.epoch);
  mode_.push_back(mark.mode);
  view_ = {ordinal_, global_step_, mode_step_, update_, wall_, duration_, step_forms_, epoch_, mode_};
}

std::uint64_t TailColumns::TakeInUntrusted(std::span<const std::byte> window, std::uint64_t offset,
                                           std::uint64_t sequence, TailEnd* end,
                                           const std::shared_ptr<const void>& owner) {
  std::uint64_t done = offset;
  std::vector<FrameView> open;  // frames of a step that has no mark yet
  FrameView frame;
  for (std::uint64_t at = offset;; at = frame.next_offset) {
    const FrameOutcome outcome = format::ParseFrameInWindowUntrusted(window, offset, at, sequence, &frame);
    if (outcome == FrameOutcome::kIncomplete && IsFooterUntrusted(window, at - offset, at, sequence)) {
      *end = TailEnd::kFooter;  // read by its directory: megabytes that no window has to hold
      break;
    }
    if (outcome != FrameOutcome::kFrame) {
      *end = outcome == FrameOutcome::kIncomplete ? TailEnd::kWindow : TailEnd::kNoFrame;
      break;
    }
    if (frame.kind == FrameKind::kFooter) {
      *end = TailEnd::kFooter;
      break;
    }
    if (frame.kind == FrameKind::kTensorDefs || frame.kind == FrameKind::kLayoutDefs) {
      if (frame.offset >= defs_until_) {  // definitions count even when their step never gets its mark
        AddDefs(frame);
        defs_until_ = frame.next_offset;
      }
      if (frame.ordinal == format::kLooseOrdinal && open.empty()) done = frame.next_offset;
      if (frame.ordinal != format::kLooseOrdinal) open.push_back(frame);
    } else if (frame.kind == FrameKind::kStep) {
      const auto mark = format::ParseStepMarkUntrusted(frame.body);
      const bool ascending =
          frame.ordinal != format::kLooseOrdinal && (ordinal_.empty() || frame.ordinal > ordinal_.back());
      if (mark.ok() && ascending) {
        const auto step = static_cast<std::uint32_t>(ordinal_.size());
        for (const FrameView& part : open) {
          const bool defs = part.kind == FrameKind::kTensorDefs || part.kind == FrameKind::kLayoutDefs;
          const bool stays = part.body.size() >= window.size() / 2;
          if (part.ordinal == frame.ordinal && !defs) AddRows(part, step, stays ? owner : nullptr);
        }
        summaries_.Close(&slots_);
        scalars_.Close(&slots_);
        index_.Close(&slots_);
        forms_.Close(&slots_);
        AddStep(frame.ordinal, *mark);
      }
      open.clear();
      done = frame.next_offset;
    } else if (frame.ordinal == format::kLooseOrdinal) {
      if (open.empty()) {
        AddFrame(frame);
        done = frame.next_offset;
      } else {
        open.push_back(frame);  // never written in this order; skipped at the next mark
      }
    } else {
      open.push_back(frame);
    }
  }
  return done;
}

std::unique_ptr<const LastRows> TailColumns::TakeLastRows() {
  if (ordinal_.empty()) return nullptr;
  const auto last = static_cast<std::uint32_t>(ordinal_.size() - 1);
  return std::make_unique<const LastRows>(last, std::move(summaries_), std::move(scalars_),
                                          std::move(forms_));
}

format::SummaryBlock TailColumns::Summaries(std::size_t slot) const {
  Columns& t = columns_[slot];
  summaries_.EachOf(slot, &t.summaries_made, [&](std::uint32_t step, const format::SummaryRow& row) {
    t.count.push_back(row.count);
    t.sum.push_back(row.sum);
    t.sum_sq.push_back(row.sum_sq);
    t.abs_sum.push_back(row.abs_sum);
    t.min_bits.push_back(row.min_bits);
    t.max_bits.push_back(row.max_bits);
    t.zero_count.push_back(row.zero_count);
    t.nan_count.push_back(row.nan_count);
    t.inf_count.push_back(row.inf_count);
    t.summary_step.push_back(step);
    t.merged.push_back(row.steps);
    t.dtype.push_back(row.dtype);
    t.flags.push_back(row.flags);
  });
  format::SummaryBlock block;
  block.count = t.count;
  block.sum = t.sum;
  block.sum_sq = t.sum_sq;
  block.abs_sum = t.abs_sum;
  block.min_bits = t.min_bits;
  block.max_bits = t.max_bits;
  block.zero_count = t.zero_count;
  block.nan_count = t.nan_count;
  block.inf_count = t.inf_count;
  block.step = t.summary_step;
  block.steps = t.merged;
  block.dtype = t.dtype;
  block.flags = t.flags;
  return block;
}
format::ScalarBlock TailColumns::Scalars(std::size_t slot) const {
  Columns& t = columns_[slot];
  scalars_.EachOf(slot, &t.scalars_made, [&](std::uint32_t step, const format::ScalarRow& row) {
    t.scalar.push_back(row.value);
    t.scalar_step.push_back(step);
    t.scalar_flags.push_back(row.flags);
  });
  return {t.scalar, t.scalar_step, t.scalar_flags};
}
format::IndexBlock TailColumns::Index(std::size_t slot) const {
  Columns& t = columns_[slot];
  index_.EachOf(slot, &t.index_made, [&](std::uint32_t step, const format::IndexRow& row) {
    t.index.push_back(row);
    t.index_step.push_back(step);
  });
  return {t.index, t.index_step};
}
format::FormBlock TailColumns::Forms(std::size_t slot) const {
  Columns& t = columns_[slot];
  forms_.EachOf(slot, &t.forms_made, [&](std::uint32_t step, const format::FormRow& row) {
    t.forms.push_back(row);
    t.form_step.push_back(step);
  });
  return {t.forms, t.form_step};
}

}  // namespace luff::store
