#include "query/smdebug_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

#include "luff/base/env.h"
#include "query/smdebug_files.h"

namespace luff::query {
namespace {

constexpr std::size_t kMaxProblems = 100;
constexpr std::size_t kMaxRecords = std::numeric_limits<std::uint32_t>::max() - 1;
/// A folder that changed so shortly before it was listed may change again within the same tick.
constexpr std::int64_t kTickNs = 100'000'000;

}  // namespace

bool SmdebugDirectory::Looks(const std::string& path) {
  const auto is_folder = [](const std::string& name) {
    struct stat info{};
    return stat(name.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  };
  return is_folder(path + "/collections/000000000") ||
         (is_folder(path + "/index") && is_folder(path + "/events"));
}

void SmdebugDirectory::AddProblem(std::string text) const {
  if (problems_.size() < kMaxProblems) {
    if (std::find(problems_.begin(), problems_.end(), text) == problems_.end())
      problems_.push_back(std::move(text));
  } else if (problems_.size() == kMaxProblems) {
    problems_.emplace_back("and more, which are not told one by one");
  }
}

std::uint32_t SmdebugDirectory::WorkerOf(std::string_view in_file_name, bool announced) {
  const auto [known, fresh] =
      worker_at_.try_emplace(std::string(in_file_name), static_cast<std::uint32_t>(workers_.size()));
  if (!fresh) {
    workers_[known->second].announced |= announced;
    return known->second;
  }
  Worker worker;
  worker.in_file_name = in_file_name;
  worker.name = format::SmdebugWorkerName(in_file_name);
  worker.announced = announced;
  std::uint32_t wanted = 0;
  constexpr std::string_view kPrefix = "worker_";
  const std::string_view digits = in_file_name.substr(std::min(kPrefix.size(), in_file_name.size()));
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), wanted);
  const bool numbered = in_file_name.starts_with(kPrefix) && error == std::errc() &&
                        rest == digits.data() + digits.size() && wanted < 1U << 20;
  worker.number = FreeNumber(numbered ? wanted : 0);
  workers_.push_back(std::move(worker));
  return known->second;
}

/// Returns the first number from `wanted` on that no worker has.
std::uint32_t SmdebugDirectory::FreeNumber(std::uint32_t wanted) {
  // numbers_ maps the first to the last number of each range that is taken; ranges never touch.
  auto after = numbers_.upper_bound(wanted);
  if (after != numbers_.begin() && std::prev(after)->second >= wanted) wanted = std::prev(after)->second + 1;
  std::uint32_t first = wanted;
  std::uint32_t last = wanted;
  if (after != numbers_.end() && after->first == wanted + 1) {
    last = after->second;
    after = numbers_.erase(after);
  }
  if (after != numbers_.begin() && std::prev(after)->second + 1 == wanted) first = std::prev(after)->first;
  numbers_[first] = last;
  return wanted;
}

bool SmdebugDirectory::ScanCollections() {
  std::vector<std::pair<std::string, bool>> names;
  const std::string folder = path_ + "/collections/000000000";
  if (!ListFolder(folder, &names)) return false;
  bool news = false;
  constexpr std::string_view kEnd = "_collections.json";
  for (const auto& [name, is_folder] : names) {
    if (is_folder || !name.ends_with(kEnd) || name.size() == kEnd.size()) continue;
    const std::int64_t mtime = MtimeNs(folder + "/" + name);
    auto& known = collections_mtime_[name];
    if (known == mtime && mtime != 0) continue;
    known = mtime;
    std::string text;
    std::int64_t written = 0;
    (void)WorkerOf(std::string_view(name).substr(0, name.size() - kEnd.size()), true);
    news = true;
    if (const Status read = ReadSmallFile(path_, "collections/000000000/" + name, &text, &written);
        !read.ok()) {
      AddProblem("collections file: " + std::string(read.message()));
      continue;
    }
    if (created_unix_ns_ == 0 || written < created_unix_ns_) created_unix_ns_ = written;
    collections_[name] = std::move(text);
    ++collections_version_;
  }
  return news;
}

void SmdebugDirectory::ScanFolder(const std::string& path, Folder* folder, std::vector<Found>* found) {
  const std::int64_t mtime = MtimeNs(path);
  if (mtime < 0 || mtime == folder->listed_mtime_ns) return;
  const std::int64_t now = Env::Real().NowUnixNs();
  std::vector<std::pair<std::string, bool>> names;
  if (!ListFolder(path, &names)) {
    AddProblem("index folder cannot be listed (" + std::string(std::strerror(errno)) + "): " + path);
    return;
  }
  folder->listed_mtime_ns = mtime < now - kTickNs ? mtime : -1;
  std::vector<std::pair<std::int64_t, std::uint32_t>> fresh;
  for (const auto& [name, is_folder] : names) {
    if (is_folder || !(name.ends_with(".json") || name.ends_with(".csv"))) continue;
    const auto parsed = format::ParseSmdebugIndexName(name);
    if (!parsed) {
      if (folder->strange.insert(name).second) {
        AddProblem("found an index file of the name \"" + name +
                   "\", expected STEP_WORKER.json; it is not read: " + path + "/" + name);
      }
      continue;
    }
    const std::pair key(parsed->step, WorkerOf(parsed->worker, false));
    if (std::binary_search(folder->known.begin(), folder->known.end(), key)) continue;
    found->push_back({key.first, key.second, path + "/" + name});
    fresh.push_back(key);
  }
  folder->known.insert(folder->known.end(), fresh.begin(), fresh.end());
  std::sort(folder->known.begin(), folder->known.end());
}

std::uint32_t SmdebugDirectory::IdOf(std::string_view name) {
  const auto at = ids_.find(name);
  if (at != ids_.end()) return at->second;
  const auto id = static_cast<std::uint32_t>(names_.size());
  names_.push_back(std::make_unique<const std::string>(name));
  ids_.emplace(*names_.back(), id);
  postings_.emplace_back();
  return id;
}

std::optional<std::uint32_t> SmdebugDirectory::FindTensor(std::string_view name) const {
  const auto at = ids_.find(name);
  if (at == ids_.end()) return std::nullopt;
  return at->second;
}

const std::string& SmdebugDirectory::original_name(std::uint32_t id) const noexcept {
  static const std::string kNone;
  const auto at = original_names_.find(id);
  return at == original_names_.end() ? kNone : at->second;
}

void SmdebugDirectory::AddRecord(std::uint32_t entry, Record record) {
  record.entry = entry;
  postings_[record.tensor].push_back(static_cast<std::uint32_t>(records_.size()));
  records_.push_back(record);
}

bool SmdebugDirectory::TakeIndex(const Found& found) {
  std::int64_t written = 0;
  if (const Status read = ReadSmallFile(path_, found.path.substr(path_.size() + 1), &text_, &written);
      !read.ok()) {
    AddProblem("index file: " + std::string(read.message()));
    return false;
  }
  Status parsed = format::ParseSmdebugIndexUntrusted(text_, &index_);
  if (!parsed.ok()) {
    // smdebug appends to its temporary files, so a crash may leave bytes in front of a valid text. Skips
    // those.
    const std::size_t last = text_.rfind(R"({"meta": )");
    const bool twice = last != std::string::npos && last != 0;
    if (!twice || !format::ParseSmdebugIndexUntrusted(std::string_view(text_).substr(last), &index_).ok()) {
      AddProblem(
          "index file cannot be read, its step is missing for this worker: " + std::string(parsed.message()) +
          "; copy the file again from where the job wrote it: " + found.path);
      return false;
    }
    AddProblem("index file begins with " + std::to_string(last) +
               " bytes that an interrupted job left behind, which are passed over: " + found.path);
  }
  if (records_.size() + index_.tensors.size() + index_.shapes.size() > kMaxRecords) {
    AddProblem("more than four thousand million records; this index file and later ones are not read: " +
               found.path);
    return false;
  }
  Entry entry;
  entry.global_step = found.step;
  entry.mode_step = index_.mode_step;
  entry.mode = index_.mode;
  entry.worker = found.worker;
  entry.written_unix_ns = written;
  entry.first = static_cast<std::uint32_t>(records_.size());
  Worker& worker = workers_[found.worker];
  if (!index_.event_file.empty() &&
      index_.event_file != format::SmdebugEventPath(found.step, worker.in_file_name)) {
    if (index_.event_file.find("..") != std::string_view::npos || index_.event_file.front() == '/') {
      AddProblem(
          "index file names an event file outside the trial, expected events/...; its step is missing: " +
          found.path);
      return false;
    }
    entry.event_file = static_cast<std::uint32_t>(odd_event_files_.size());
    odd_event_files_.emplace_back(index_.event_file);
  }
  const auto number = static_cast<std::uint32_t>(entries_.size());
  for (std::size_t i = 0; i < index_.tensors.size(); ++i) {
    const auto& tensor = index_.tensors[i];
    if (tensor.length > format::kMaxEventBytes + format::kRecordOverhead) {
      AddProblem("index file gives \"" + std::string(tensor.name) + "\" " + std::to_string(tensor.length) +
                 " bytes, which no record has; it is not shown: " + found.path);
      continue;
    }
    if (guesses_.size() <= i) {
      guesses_.emplace_back();
      guess_names_.emplace_back();
    }
    Record& record = guesses_[i];
    if (guess_names_[i] != tensor.name || tensor.name.empty()) {
      const auto reduction = format::ParseSmdebugReduction(tensor.name);
      record = {};
      record.kind = reduction ? Kind::kReduction : Kind::kValue;
      if (reduction) {
        record.reduction = static_cast<std::uint8_t>(reduction->reduction);
        record.abs = reduction->abs;
      }
      record.tensor = IdOf(reduction ? reduction->tensor : tensor.name);
      guess_names_[i] = tensor.name;
    }
    record.start = tensor.start;
    record.length = static_cast<std::uint32_t>(tensor.length);
    AddRecord(number, record);
  }
  for (const auto& shape : index_.shapes) {
    Record record;
    record.kind = Kind::kShape;
    record.tensor = IdOf(shape.name);
    record.start = dims_.size();
    record.length = shape.rank;
    dims_.insert(dims_.end(), index_.dims.begin() + shape.first,
                 index_.dims.begin() + shape.first + shape.rank);
    if (!shape.original_name.empty() && shape.original_name != shape.name)
      original_names_.try_emplace(record.tensor, shape.original_name);
    AddRecord(number, record);
  }
  entry.count = static_cast<std::uint32_t>(records_.size()) - entry.first;
  entries_.push_back(entry);
  if (worker.written_unix_ns != 0)
    worker.longest_pause_ns = std::max(worker.longest_pause_ns, written - worker.written_unix_ns);
  worker.written_unix_ns = std::max(worker.written_unix_ns, written);
  worker.last_step = std::max(worker.last_step, entry.global_step);
  if (entry.mode == Mode::kTrain) worker.last_train = std::max(worker.last_train, entry.mode_step);
  if (created_unix_ns_ == 0) created_unix_ns_ = written;
  return true;
}

Result<bool> SmdebugDirectory::Scan() {
  if (MtimeNs(path_) < 0) return NotFound("no such directory: " + path_);
  // Looks for the end marker first, so that everything written before it is sure to be seen.
  const bool ended = MtimeNs(path_ + "/" + format::kSmdebugEndFile) >= 0;
  bool news = ScanCollections();
  std::vector<Found> found;
  const std::string index = path_ + "/index";
  ScanFolder(index, &folders_[""], &found);
  std::vector<std::pair<std::string, bool>> names;
  if (ListFolder(index, &names)) {
    for (const auto& [name, is_folder] : names) {
      if (is_folder) ScanFolder(index + "/" + name, &folders_[name], &found);
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.step, a.worker) < std::pair(b.step, b.worker);
  });
  for (const Found& file : found) news |= TakeIndex(file);
  news |= ended && !ended_;
  ended_ = ended;
  return news;
}

std::string SmdebugDirectory::EventName(const Entry& entry) const {
  if (entry.event_file != 0) return odd_event_files_[entry.event_file];
  return format::SmdebugEventPath(entry.global_step, workers_[entry.worker].in_file_name);
}

}  // namespace luff::query
