#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <tuple>

#include "luff/base/bytes.h"
#include "luff/format/footer.h"

namespace luff::format {
namespace {

struct StepEntry {
  std::uint64_t ordinal;
  StepMark mark;
};

/// Rows of one kind in the order of arrival, with the index of their step.
template <typename Row>
struct Table {
  std::vector<Row> rows;
  std::vector<std::uint32_t> steps;
  std::size_t closed = 0;  // rows of published steps

  void Add(std::span<const Row> more, std::uint32_t step) {
    const bool all = std::all_of(more.begin(), more.end(),
                                 [](const Row& row) { return row.tensor <= FooterBuilder::kMaxTensorId; });
    if (all) {
      rows.insert(rows.end(), more.begin(), more.end());
    } else {
      std::copy_if(more.begin(), more.end(), std::back_inserter(rows),
                   [](const Row& row) { return row.tensor <= FooterBuilder::kMaxTensorId; });
    }
    steps.resize(rows.size(), step);
  }
  void Drop() {
    rows.resize(closed);
    steps.resize(closed);
  }
  void Clear() {
    rows.clear();
    steps.clear();
    closed = 0;
  }
};

/// Positions of rows grouped by tensor, in order of arrival within a tensor, by one counting sort.
template <typename Row>
class Grouping {
 public:
  Grouping(const Table<Row>& table, std::uint32_t tensor_limit) : begin_(tensor_limit + 1) {
    for (std::size_t i = 0; i < table.closed; ++i) ++begin_[table.rows[i].tensor + 1];
    for (std::size_t t = 1; t < begin_.size(); ++t) begin_[t] += begin_[t - 1];
    order_.resize(table.closed);
    std::vector<std::uint32_t> next(begin_.begin(), begin_.end() - 1);
    for (std::size_t i = 0; i < table.closed; ++i)
      order_[next[table.rows[i].tensor]++] = static_cast<std::uint32_t>(i);
  }
  [[nodiscard]] std::span<std::uint32_t> of(std::uint32_t tensor) noexcept {
    return {order_.data() + begin_[tensor], begin_[tensor + 1] - begin_[tensor]};
  }

 private:
  std::vector<std::uint32_t> begin_;
  std::vector<std::uint32_t> order_;
};

constexpr std::size_t kSummaryBlockRowBytes = 80;

/// Writes the rows `order` of the table as the columns of a summary block, without its padding. Makes one
/// pass over the rows, which lie far apart, and prefetches the next ones.
void GatherSummaries(const Table<SummaryRow>& table, std::span<const std::uint32_t> order,
                     std::vector<std::byte>* block) {
  constexpr std::size_t kAhead = 8;
  const std::size_t n = order.size();
  block->resize(n * kSummaryBlockRowBytes);
  std::byte* columns[9];
  for (std::size_t c = 0; c < std::size(columns); ++c) columns[c] = block->data() + n * 8 * c;
  std::byte* steps = block->data() + n * 72;
  std::byte* merged = block->data() + n * 76;
  std::byte* dtypes = block->data() + n * 78;
  std::byte* flags = block->data() + n * 79;
  const auto put = [](std::byte* column, std::size_t i, const auto& value) {
    std::memcpy(column + i * sizeof(value), &value, sizeof(value));
  };
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const auto* next = reinterpret_cast<const std::byte*>(&table.rows[order[i + kAhead]]);
      __builtin_prefetch(next);
      __builtin_prefetch(next + sizeof(SummaryRow) - 1);
    }
    const SummaryRow& r = table.rows[order[i]];
    put(columns[0], i, r.count);
    put(columns[1], i, r.sum);
    put(columns[2], i, r.sum_sq);
    put(columns[3], i, r.abs_sum);
    put(columns[4], i, r.min_bits);
    put(columns[5], i, r.max_bits);
    put(columns[6], i, r.zero_count);
    put(columns[7], i, r.nan_count);
    put(columns[8], i, r.inf_count);
    put(steps, i, table.steps[order[i]]);
    put(merged, i, r.steps);
    put(dtypes, i, r.dtype);
    put(flags, i, r.flags);
  }
}

}  // namespace

struct FooterBuilder::State {
  std::vector<StepEntry> steps;
  Table<SummaryRow> summaries;
  Table<ScalarRow> scalars;
  Table<IndexRow> index;
  Table<FormRow> forms;
  std::vector<FrameEntry> frames;
  std::uint32_t kinds = 0;
  FrameBuffer defs, layouts;  // bodies, each inside a frame that is never ended
  std::uint32_t def_count = 0, layout_count = 0;

  State() { ClearDefs(); }
  void ClearDefs() {
    defs.Reset(0, 0);
    defs.Begin(FrameKind::kTensorDefs, 0);
    layouts.Reset(0, 0);
    layouts.Begin(FrameKind::kLayoutDefs, 0);
    def_count = layout_count = 0;
  }
  [[nodiscard]] std::uint32_t step() const { return static_cast<std::uint32_t>(steps.size()); }
  [[nodiscard]] std::uint32_t tensor_limit() const {
    std::uint32_t limit = 0;
    const auto widen = [&](const auto& table) {
      for (std::size_t i = 0; i < table.closed; ++i) limit = std::max(limit, table.rows[i].tensor + 1);
    };
    widen(summaries);
    widen(scalars);
    widen(index);
    widen(forms);
    return limit;
  }
};

FooterBuilder::FooterBuilder() : state_(std::make_unique<State>()) {}
FooterBuilder::~FooterBuilder() = default;
FooterBuilder::FooterBuilder(FooterBuilder&&) noexcept = default;
FooterBuilder& FooterBuilder::operator=(FooterBuilder&&) noexcept = default;

void FooterBuilder::AddTensorDef(const TensorDefView& def) {
  PutTensorDef(def, &state_->defs);
  ++state_->def_count;
}
void FooterBuilder::PutDefinitions(FrameBuffer* to) const {
  const auto put = [&](FrameKind kind, const FrameBuffer& body) {
    if (body.body_bytes() == 0 || body.body_bytes() > kMaxFrameBody) return;
    to->Begin(kind, kLooseOrdinal);
    to->Put(body.bytes().data() + sizeof(FrameHeader), body.body_bytes());
    to->End();
  };
  put(FrameKind::kTensorDefs, state_->defs);
  put(FrameKind::kLayoutDefs, state_->layouts);
}

void FooterBuilder::AddLayoutDef(const LayoutDefView& def) {
  PutLayoutDef(def, &state_->layouts);
  ++state_->layout_count;
}
void FooterBuilder::AddSummaries(std::span<const SummaryRow> rows) {
  state_->summaries.Add(rows, state_->step());
}
void FooterBuilder::AddScalars(std::span<const ScalarRow> rows) { state_->scalars.Add(rows, state_->step()); }
void FooterBuilder::AddIndex(std::span<const IndexRow> rows) { state_->index.Add(rows, state_->step()); }
void FooterBuilder::AddForms(std::span<const FormRow> rows) { state_->forms.Add(rows, state_->step()); }

void FooterBuilder::AddStep(std::uint64_t ordinal, const StepMark& mark) {
  state_->steps.push_back({ordinal, mark});
  state_->summaries.closed = state_->summaries.rows.size();
  state_->scalars.closed = state_->scalars.rows.size();
  state_->index.closed = state_->index.rows.size();
  state_->forms.closed = state_->forms.rows.size();
}

void FooterBuilder::DropOpenStep() {
  state_->summaries.Drop();
  state_->scalars.Drop();
  state_->index.Drop();
  state_->forms.Drop();
}

void FooterBuilder::AddFrame(FrameKind kind, std::uint64_t ordinal, std::uint64_t offset,
                             std::uint64_t frame_bytes) {
  state_->frames.push_back(
      {static_cast<std::uint16_t>(kind), 0, static_cast<std::uint32_t>(frame_bytes), ordinal, offset});
  state_->kinds |= 1U << (static_cast<unsigned>(kind) & 31U);
}

std::size_t FooterBuilder::step_count() const noexcept { return state_->steps.size(); }
bool FooterBuilder::empty() const noexcept { return state_->steps.empty() && state_->frames.empty(); }

Status FooterBuilder::Build(std::uint64_t next_ordinal, std::int64_t train_steps, FrameBuffer* to) const {
  const State& s = *state_;
  const std::uint64_t estimate = s.steps.size() * kFrameAlign * 8 + s.summaries.closed * 80 +
                                 s.scalars.closed * 16 + s.index.closed * 72 + s.forms.closed * 64 +
                                 s.frames.size() * 24 + s.defs.body_bytes() + s.layouts.body_bytes() +
                                 (std::uint64_t{1} << 20);
  if (estimate > kMaxFrameBody) {
    return ResourceExhausted("footer of " + std::to_string(estimate) + " bytes, a frame holds 64 MiB");
  }
  const std::uint64_t footer_offset = to->next_offset();
  to->Begin(FrameKind::kFooter, kLooseOrdinal, kFlagHeadChecksumOnly);
  FooterHead head{};
  head.head_bytes = sizeof(head);
  head.kinds = s.kinds;
  head.first_ordinal = s.steps.empty() ? next_ordinal : s.steps.front().ordinal;
  head.next_ordinal = next_ordinal;
  head.last_train_steps = train_steps;
  head.step_count = s.step();
  head.def_count = s.def_count;
  head.layout_count = s.layout_count;
  head.frame_count = static_cast<std::uint32_t>(s.frames.size());
  to->PutZeros(sizeof(head));

  const auto body = [&] {
    return to->bytes().subspan(static_cast<std::size_t>(footer_offset - to->base_offset()) +
                               sizeof(FrameHeader));
  };
  const auto pad = [&] { to->PutZeros(AlignUp(to->body_bytes(), 8) - to->body_bytes()); };
  const auto close = [&](std::uint64_t offset, std::uint64_t* checksum) {
    pad();
    *checksum = HashBytes(body().subspan(static_cast<std::size_t>(offset)));
  };
  const auto close_section = [&](FooterSection* section) {
    close(section->offset, &section->checksum);
    section->bytes = to->body_bytes() - section->offset;
  };
  const auto column = [&](const auto& rows, auto get) {
    for (const auto& row : rows) to->PutValue(get(row));
  };

  head.steps.offset = to->body_bytes();
  column(s.steps, [](const StepEntry& e) { return e.ordinal; });
  column(s.steps, [](const StepEntry& e) { return e.mark.global_step; });
  column(s.steps, [](const StepEntry& e) { return e.mark.mode_step; });
  column(s.steps, [](const StepEntry& e) { return e.mark.update; });
  column(s.steps, [](const StepEntry& e) { return e.mark.wall_unix_ns; });
  column(s.steps, [](const StepEntry& e) { return e.mark.duration_ns; });
  column(s.steps, [](const StepEntry& e) { return e.mark.forms; });
  column(s.steps, [](const StepEntry& e) { return e.mark.epoch; });
  column(s.steps, [](const StepEntry& e) { return e.mark.mode; });
  close_section(&head.steps);

  const std::uint32_t limit = s.tensor_limit();
  Grouping<SummaryRow> summaries(s.summaries, limit);
  Grouping<ScalarRow> scalars(s.scalars, limit);
  Grouping<IndexRow> index(s.index, limit);
  Grouping<FormRow> forms(s.forms, limit);
  std::vector<TensorEntry> entries;
  std::vector<std::byte> gathered;
  for (std::uint32_t tensor = 0; tensor < limit; ++tensor) {
    const auto rows = summaries.of(tensor);
    const auto scalar_rows = scalars.of(tensor);
    const auto index_rows = index.of(tensor);
    const auto form_rows = forms.of(tensor);
    if (rows.empty() && scalar_rows.empty() && index_rows.empty() && form_rows.empty()) continue;
    TensorEntry entry{};
    entry.tensor = tensor;

    entry.summary_rows = static_cast<std::uint32_t>(rows.size());
    entry.summary_offset = to->body_bytes();
    GatherSummaries(s.summaries, rows, &gathered);
    to->Put(gathered.data(), gathered.size());
    close(entry.summary_offset, &entry.summary_checksum);

    entry.scalar_rows = static_cast<std::uint32_t>(scalar_rows.size());
    entry.scalar_offset = to->body_bytes();
    for (const std::uint32_t i : scalar_rows) to->PutValue(s.scalars.rows[i].value);
    for (const std::uint32_t i : scalar_rows) to->PutValue(s.scalars.steps[i]);
    for (const std::uint32_t i : scalar_rows) to->PutValue(s.scalars.rows[i].flags);
    close(entry.scalar_offset, &entry.scalar_checksum);

    // Positions grow with the steps; only the parts of one step may have arrived in another order.
    std::sort(index_rows.begin(), index_rows.end(), [&](std::uint32_t a, std::uint32_t b) {
      if (s.index.steps[a] != s.index.steps[b]) return a < b;
      return std::tuple(s.index.rows[a].part, a) < std::tuple(s.index.rows[b].part, b);
    });
    entry.index_rows = static_cast<std::uint32_t>(index_rows.size());
    entry.index_offset = to->body_bytes();
    for (const std::uint32_t i : index_rows) to->PutValue(s.index.rows[i]);
    for (const std::uint32_t i : index_rows) to->PutValue(s.index.steps[i]);
    close(entry.index_offset, &entry.index_checksum);

    std::sort(form_rows.begin(), form_rows.end(), [&](std::uint32_t a, std::uint32_t b) {
      if (s.forms.steps[a] != s.forms.steps[b]) return a < b;
      return std::tuple(s.forms.rows[a].form, a) < std::tuple(s.forms.rows[b].form, b);
    });
    entry.form_rows = static_cast<std::uint32_t>(form_rows.size());
    entry.form_offset = to->body_bytes();
    for (const std::uint32_t i : form_rows) {
      to->PutValue(s.forms.rows[i]);
      entry.forms |= s.forms.rows[i].form;
    }
    for (const std::uint32_t i : form_rows) to->PutValue(s.forms.steps[i]);
    close(entry.form_offset, &entry.form_checksum);
    entries.push_back(entry);
  }

  head.tensor_count = static_cast<std::uint32_t>(entries.size());
  head.tensors.offset = to->body_bytes();
  to->PutRows(std::span<const TensorEntry>(entries));
  close_section(&head.tensors);

  head.defs.offset = to->body_bytes();
  to->Put(s.defs.bytes().data() + sizeof(FrameHeader), s.defs.body_bytes());
  close_section(&head.defs);
  head.layouts.offset = to->body_bytes();
  to->Put(s.layouts.bytes().data() + sizeof(FrameHeader), s.layouts.body_bytes());
  close_section(&head.layouts);
  head.frames.offset = to->body_bytes();
  to->PutRows(std::span<const FrameEntry>(s.frames));
  close_section(&head.frames);

  head.checksum = HashBytes(std::as_bytes(std::span(&head, 1)).first(offsetof(FooterHead, checksum)));
  to->Overwrite(footer_offset + sizeof(FrameHeader), &head, sizeof(head));
  to->End(sizeof(head));

  FileTail tail{};
  tail.magic = kTailMagic;
  tail.footer_offset = footer_offset;
  tail.footer_bytes = to->next_offset() - footer_offset;
  tail.sequence = to->sequence();
  tail.checksum = HashBytes(std::as_bytes(std::span(&tail, 1)).first(offsetof(FileTail, checksum)));
  to->PutValue(tail);
  return Status::Ok();
}

void FooterBuilder::Clear() {
  state_->steps.clear();
  state_->summaries.Clear();
  state_->scalars.Clear();
  state_->index.Clear();
  state_->forms.Clear();
  state_->frames.clear();
  state_->kinds = 0;
}

void FooterBuilder::ClearDefs() { state_->ClearDefs(); }

}  // namespace luff::format
