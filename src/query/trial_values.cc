#include <algorithm>
#include <bit>
#include <cstdlib>

#include "luff/base/work_bound.h"
#include "query/run_trial.h"

namespace luff::query {

/// Returns the index rows of the value, in the order of its parts. If a tensor was written twice in one step,
/// the last one counts.
Status RunTrial::PartsOf(const Rows& rows, std::vector<format::IndexRow>* parts) const {
  parts->clear();
  if (!rows.slot) return Status::Ok();
  LUFF_ASSIGN_OR_RETURN(const auto block, rows.segment->Index(*rows.slot));
  const auto [from, to] = std::equal_range(block.step.begin(), block.step.end(), rows.index);
  if (from == to) return Status::Ok();
  const auto first = static_cast<std::size_t>(from - block.step.begin());
  const auto last = static_cast<std::size_t>(to - block.step.begin()) - 1;
  const std::uint32_t wanted = std::max<std::uint32_t>(1, block.rows[last].parts);
  if (wanted == 1) {
    parts->push_back(block.rows[last]);
    return Status::Ok();
  }
  if (wanted > last - first + 1) return Corruption("parts of a value are missing: " + rows.segment->path());
  parts->assign(wanted, format::IndexRow{});
  std::vector<std::uint8_t> seen(wanted, 0);
  for (std::size_t i = first; i <= last; ++i) {
    const format::IndexRow& row = block.rows[i];
    if (row.parts != wanted || row.part >= wanted || row.layout != block.rows[last].layout) continue;
    (*parts)[row.part] = row;
    seen[row.part] = 1;
  }
  if (std::find(seen.begin(), seen.end(), 0) != seen.end()) {
    return Corruption("parts of a value are missing: " + rows.segment->path());
  }
  return Status::Ok();
}

Result<const store::LayoutDef*> RunTrial::LayoutOf(const Rows& rows, const format::IndexRow& row) const {
  const store::LayoutDef* layout = rows.worker->reader->FindLayout(rows.epoch, row.layout);
  if (layout == nullptr) {
    return Corruption("value of layout " + std::to_string(row.layout) +
                      ", which is not defined: " + rows.segment->path());
  }
  if (static_cast<std::uint8_t>(layout->layout.dtype) != row.dtype) {
    return Corruption("value whose dtype differs from that of its layout: " + rows.segment->path());
  }
  return layout;
}

/// Calls `use(rows, parts)` with the rows under which a worker's value is stored: its own, or, if it kept
/// only a hash because others hold the same value, those of the first worker that stored a value with this
/// hash.
template <typename Use>
Result<bool> RunTrial::FirstValue(TensorId id, std::uint32_t n, std::optional<std::uint32_t> worker,
                                  Use use) const {
  std::vector<format::IndexRow> parts;
  std::optional<format::FormRow> hash;
  LUFF_ASSIGN_OR_RETURN(const bool found, FirstWith(id, n, worker, [&](const Rows& rows) -> Result<bool> {
                          LUFF_RETURN_IF_ERROR(PartsOf(rows, &parts));
                          if (!parts.empty()) return use(rows, parts);
                          if (worker) {
                            LUFF_ASSIGN_OR_RETURN(hash, FormOf(rows, format::Form::kHash));
                          }
                          return false;
                        }));
  if (found || !hash) return found;
  const auto wanted = std::bit_cast<std::uint64_t>(hash->values[0]);
  return FirstWith(id, n, std::nullopt, [&](const Rows& rows) -> Result<bool> {
    LUFF_RETURN_IF_ERROR(PartsOf(rows, &parts));
    if (parts.size() != 1 || parts[0].content_hash != wanted) return false;
    return use(rows, parts);
  });
}

Result<Value> RunTrial::ReadValue(TensorId id, std::int64_t step, Mode mode,
                                  std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  Value value;
  const auto take = [&](const Rows& rows, std::span<const format::IndexRow> parts) -> Result<bool> {
    LUFF_ASSIGN_OR_RETURN(const store::LayoutDef* layout, LayoutOf(rows, parts[0]));
    LUFF_ASSIGN_OR_RETURN(auto payload, rows.worker->reader->ReadPayload(parts, layout->layout.byte_count()));
    value.dtype = layout->layout.dtype;
    value.shape.assign(layout->layout.shape().begin(), layout->layout.shape().end());
    value.bytes = payload.bytes;
    value.owner = std::move(payload.owner);
    return true;
  };
  LUFF_ASSIGN_OR_RETURN(const bool found, FirstValue(id, n, worker, take));
  if (!found) return NotSaved(id, What::kValue, step, mode);
  return value;
}

Result<Trial::ValueShape> RunTrial::Shape(TensorId id, std::int64_t step, Mode mode,
                                          std::optional<std::uint32_t> worker) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const std::uint32_t n, StepOrError(step, mode));
  ValueShape shape;
  const auto take = [&](const Rows& rows, std::span<const format::IndexRow> parts) -> Result<bool> {
    LUFF_ASSIGN_OR_RETURN(const store::LayoutDef* layout, LayoutOf(rows, parts[0]));
    shape.dtype = layout->layout.dtype;
    shape.shape.assign(layout->layout.shape().begin(), layout->layout.shape().end());
    shape.global_shape = layout->global_shape;
    shape.global_offset = layout->global_offset;
    shape.worker = worker.value_or(rows.worker->reader->worker());
    return true;
  };
  LUFF_ASSIGN_OR_RETURN(const bool found, FirstValue(id, n, worker, take));
  if (!found) return NotSaved(id, What::kShape, step, mode);
  return shape;
}

Result<Trial::Stack> RunTrial::ReadStack(TensorId id, Mode mode, std::optional<std::uint32_t> worker,
                                         std::uint64_t max_bytes) const {
  LUFF_RETURN_IF_ERROR(CheckId(id));
  LUFF_ASSIGN_OR_RETURN(const auto candidates, Candidates(worker));
  struct Piece {
    std::uint32_t n;
    const WorkerState* worker;
    std::size_t part_begin, part_count;
  };
  std::vector<Piece> pieces;
  std::vector<format::IndexRow> rows_of_pieces;
  std::vector<format::IndexRow> parts;
  std::vector<std::uint8_t> taken(steps_.size(), 0);
  const store::LayoutDef* layout = nullptr;
  for (const WorkerState* candidate : candidates) {
    for (const auto& segment : candidate->reader->segments()) {
      const std::uint32_t epoch = segment->header().epoch;
      const auto local = candidate->local_id.find(ScopedId(epoch, id));
      if (local == candidate->local_id.end()) continue;
      const auto slot = segment->FindSlot(local->second);
      if (!slot) continue;
      LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
      LUFF_ASSIGN_OR_RETURN(const auto block, segment->Index(*slot, store::Again::kNo));
      for (std::size_t i = 0; i < block.rows.size();) {
        const std::uint32_t index = block.step[i];
        std::size_t end = i + 1;
        while (end < block.rows.size() && block.step[end] == index) ++end;
        const std::uint32_t n = candidate->StepOf(segment->steps().ordinal[index]);
        const bool wanted = n != kNoStep && taken[n] == 0 && !steps_.superseded(n) &&
                            (mode == Mode::kGlobal || steps_.mode(n) == mode) &&
                            !candidate->IsDeleted(block.rows[i]);
        if (wanted) {
          Rows rows{candidate, segment.get(), index, slot, local->second, epoch, n};
          if (end - i == 1) {
            parts.assign(1, block.rows[i]);
          } else {
            LUFF_RETURN_IF_ERROR(PartsOf(rows, &parts));
          }
          LUFF_ASSIGN_OR_RETURN(const store::LayoutDef* found, LayoutOf(rows, parts[0]));
          if (layout != nullptr && found != layout && !(found->layout == layout->layout)) {
            return FailedPrecondition(
                "values of \"" + tensors_[id].name +
                "\" differ in dtype or shape, so they cannot be stacked; read them one by one");
          }
          layout = found;
          pieces.push_back({n, candidate, rows_of_pieces.size(), parts.size()});
          rows_of_pieces.insert(rows_of_pieces.end(), parts.begin(), parts.end());
          taken[n] = 1;
        }
        i = end;
      }
    }
  }
  Stack stack;
  if (layout == nullptr) return stack;
  const auto less = [&](const Piece& a, const Piece& b) {
    return steps_.key(a.n, mode) < steps_.key(b.n, mode);
  };
  if (!std::is_sorted(pieces.begin(), pieces.end(), less))
    std::stable_sort(pieces.begin(), pieces.end(), less);
  const std::uint64_t each = layout->layout.byte_count();
  if (each != 0 && pieces.size() > max_bytes / each) {
    return ResourceExhausted("values of " + std::to_string(pieces.size()) + " steps of " +
                             std::to_string(each) + " bytes, at most " + std::to_string(max_bytes) +
                             " bytes are stacked at once");
  }
  for (const Piece& piece : pieces) {
    LUFF_RETURN_IF_ERROR(piece.worker->reader->CheckThere(
        std::span<const format::IndexRow>(rows_of_pieces).subspan(piece.part_begin, piece.part_count), each));
  }
  stack.byte_count = each * pieces.size();
  auto* memory = static_cast<std::byte*>(
      std::malloc(static_cast<std::size_t>(std::max<std::uint64_t>(1, stack.byte_count))));
  if (memory == nullptr)
    return ResourceExhausted("no memory for " + std::to_string(stack.byte_count) + " bytes of values");
  stack.bytes = {memory, [](std::byte* p) { std::free(p); }};
  stack.dtype = layout->layout.dtype;
  stack.shape.assign(layout->layout.shape().begin(), layout->layout.shape().end());
  stack.steps.reserve(pieces.size());
  std::byte* to = memory;
  for (const Piece& piece : pieces) {
    LUFF_RETURN_IF_ERROR(WorkBound::GoOn());
    stack.steps.push_back(steps_.key(piece.n, mode));
    LUFF_RETURN_IF_ERROR(piece.worker->reader->ReadPayloadInto(
        std::span<const format::IndexRow>(rows_of_pieces).subspan(piece.part_begin, piece.part_count),
        {to, static_cast<std::size_t>(each)}));
    to += each;
  }
  return stack;
}

}  // namespace luff::query
