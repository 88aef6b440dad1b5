#include "server/overview_file.h"

#include <algorithm>
#include <cstring>

#include "luff/tensor/hash.h"

namespace luff::server {
namespace {

constexpr char kMagic[8] = {'L', 'U', 'F', 'F', 'O', 'V', 'W', '\n'};
constexpr std::uint32_t kVersion = 1;

struct Head {
  char magic[8];
  std::uint32_t version, statistics;
  std::uint64_t run, names, steps;
  std::uint32_t mode, bits, tensors, stride, columns, reserved;
  std::uint64_t from, to;
  std::int64_t newest_step;
  std::uint64_t superseded;
  std::uint64_t checksum;  // of the head with 0 here, and of the table after it
};
static_assert(sizeof(Head) == 104);

struct Entry {
  std::uint64_t offset;  // 0: no rows
  std::uint64_t checksum;
  std::uint64_t stepped;
};
static_assert(sizeof(Entry) == 24);

constexpr std::uint64_t Paged(std::uint64_t bytes) {
  return (bytes + kOverviewPage - 1) / kOverviewPage * kOverviewPage;
}
std::uint64_t ColumnBytes(std::size_t stride) { return Overview::WordsOf(stride) * sizeof(float); }

std::uint64_t SumOf(const Head& head, std::span<const Entry> table) {
  Head plain = head;
  plain.checksum = 0;
  const std::uint64_t sums[] = {HashBytes(&plain, sizeof(plain)),
                                HashBytes(table.data(), table.size_bytes())};
  return HashBytes(sums, sizeof(sums));
}

}  // namespace

OverviewBinding BindingOf(const std::string& id, const query::Trial& trial, const Overview::State& state) {
  OverviewBinding binding;
  std::string text = id;
  const std::int64_t created = trial.created_unix_ns();
  text.append(reinterpret_cast<const char*>(&created), sizeof(created));
  binding.run = HashBytes(text.data(), text.size());
  text.clear();
  for (query::TensorId tensor = 0; tensor < state.tensors; ++tensor)
    text.append(trial.tensor(tensor).name).push_back('\0');
  binding.names = HashBytes(text.data(), text.size());
  std::vector<std::int64_t> steps;
  for (std::size_t n = state.from; n < state.to; ++n) {
    const query::StepInfo info = trial.step_at(n);
    steps.push_back(info.global_step);
    steps.push_back(static_cast<std::int64_t>(info.mode) << 1 | (info.superseded ? 1 : 0));
  }
  binding.steps = HashBytes(steps.data(), steps.size() * sizeof(std::int64_t));
  return binding;
}

std::string OverviewHead(const Overview& overview, const OverviewBinding& binding) {
  const Overview::State state = overview.state();
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.statistics = kOverviewStatistics;
  head.run = binding.run;
  head.names = binding.names;
  head.steps = binding.steps;
  head.mode = static_cast<std::uint32_t>(overview.mode());
  head.bits = state.bits;
  head.tensors = state.tensors;
  head.stride = state.stride;
  head.columns = state.columns;
  head.from = state.from;
  head.to = state.to;
  head.newest_step = state.newest_step;
  head.superseded = state.superseded;
  std::vector<Entry> table(state.columns);
  const std::uint64_t bytes = ColumnBytes(state.stride);
  std::uint64_t offset = Paged(sizeof(Head) + table.size() * sizeof(Entry));
  const std::uint64_t first = offset;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Overview::Kept column = overview.kept(i);
    table[i].stepped = column.stepped ? 1 : 0;
    if (column.words == nullptr) continue;
    table[i].offset = offset;
    table[i].checksum = HashBytes(column.words, bytes);
    offset += Paged(bytes);
  }
  head.checksum = SumOf(head, table);
  std::string text(reinterpret_cast<const char*>(&head), sizeof(head));
  text.append(reinterpret_cast<const char*>(table.data()), table.size() * sizeof(Entry));
  text.resize(first, '\0');
  return text;
}

std::uint64_t OverviewFileBytes(const Overview& overview) {
  const Overview::State state = overview.state();
  std::uint64_t bytes = Paged(sizeof(Head) + state.columns * sizeof(Entry));
  for (std::size_t i = 0; i < state.columns; ++i)
    bytes += overview.kept(i).words == nullptr ? 0 : Paged(ColumnBytes(state.stride));
  return bytes;
}

Result<OverviewFile> ParseOverviewUntrusted(std::span<const std::byte> file, bool sums) {
  Head head;
  if (file.size() < sizeof(head)) return Corruption("the overview ends in its head");
  std::memcpy(&head, file.data(), sizeof(head));
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0) return Corruption("this is no overview");
  if (head.version != kVersion || head.statistics != kOverviewStatistics)
    return UnsupportedVersion("the overview has another version");
  const bool sound = head.bits < 63 && head.tensors > 0 && head.tensors <= head.stride &&
                     head.stride % Overview::kRowUnit == 0 && head.stride <= 2 * Overview::kMaxTensors &&
                     head.columns > 0 && head.columns <= Overview::kMaxColumns && head.from <= head.to &&
                     head.superseded <= head.to &&
                     head.mode >= static_cast<std::uint32_t>(query::Mode::kTrain) &&
                     head.mode <= static_cast<std::uint32_t>(query::Mode::kPredict);
  if (!sound || file.size() < sizeof(head) + head.columns * sizeof(Entry))
    return Corruption("the overview contradicts itself");
  std::vector<Entry> table(head.columns);
  std::memcpy(table.data(), file.data() + sizeof(head), table.size() * sizeof(Entry));
  if (sums && SumOf(head, table) != head.checksum) return Corruption("the overview's head is damaged");
  OverviewFile parsed;
  parsed.binding = {head.run, head.names, head.steps};
  parsed.mode = static_cast<query::Mode>(head.mode);
  parsed.state = {head.bits, head.tensors, head.stride,      head.columns,
                  head.from, head.to,      head.newest_step, head.superseded};
  const std::uint64_t bytes = ColumnBytes(head.stride);
  for (const Entry& entry : table) {
    if (entry.offset == 0) {
      parsed.columns.push_back({nullptr, entry.stepped != 0});
      continue;
    }
    if (entry.offset % kOverviewPage != 0 || entry.offset > file.size() || file.size() - entry.offset < bytes)
      return Corruption("a column of the overview lies outside of it");
    const std::byte* words = file.data() + entry.offset;
    if (sums && HashBytes(words, bytes) != entry.checksum)
      return Corruption("a column of the overview is damaged");
    parsed.columns.push_back({reinterpret_cast<const float*>(words), entry.stepped != 0});
  }
  return parsed;
}

}  // namespace luff::server
