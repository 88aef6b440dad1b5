#include "luff/query/verify.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "luff/format/event_file.h"
#include "luff/format/smdebug.h"
#include "query/smdebug_collections.h"
#include "query/smdebug_directory.h"
#include "query/smdebug_files.h"

namespace luff::query {
namespace {

constexpr std::size_t kMaxDamage = 1000;
constexpr std::size_t kMaxNotes = 100;
constexpr const char* kCopyAgain = "; copy the file again from where the job wrote it";

std::string Quoted(std::string_view name) { return "\"" + std::string(name.substr(0, 200)) + "\""; }

class Verifier {
 public:
  Verifier(std::string root, SmdebugReport* report) : root_(std::move(root)), report_(report) {}

  void Collections();
  void Indexes();
  void OtherEventFiles();
  void Rest();

 private:
  using Names = std::vector<std::pair<std::string, bool>>;

  void Tell(const std::string& file, std::uint64_t offset, std::string what) {
    if (report_->damage.size() < kMaxDamage) report_->damage.push_back({file, offset, std::move(what)});
    ++report_->damage_count;
  }
  void Note(std::string what) {
    if (report_->notes.size() < kMaxNotes) report_->notes.push_back(std::move(what));
  }
  /// Lists a folder below the root, and reports it if that fails. Omits temporary files, but counts them.
  Names List(const std::string& folder) {
    Names names;
    if (!ListFolder(root_ + "/" + folder, &names) && errno != ENOENT)
      Tell(folder, 0, "cannot be listed: " + std::string(std::strerror(errno)));
    std::erase_if(names, [&](const auto& name) {
      const bool temporary = !name.second && name.first.ends_with(".tmp");
      temporaries_ += temporary ? 1 : 0;
      return temporary;
    });
    return names;
  }
  bool Read(const std::string& file, std::string* text) {
    std::int64_t mtime_ns = 0;
    const Status read = ReadSmallFile(root_, file, text, &mtime_ns);
    if (!read.ok()) {
      const std::string_view message = read.message();  // ends with the path
      Tell(file, 0, std::string(message.substr(0, message.rfind(": "))) + kCopyAgain);
      return false;
    }
    ++report_->files;
    report_->bytes += text->size();
    return true;
  }

  void Index(const std::string& file, const format::SmdebugFileName& name);
  /// Checks the records of an event file. `index` lists the expected ones; it may be null.
  void Events(const std::string& file, const format::SmdebugIndex* index, const std::string& index_file);
  struct Seen {
    std::uint64_t start = 0, bytes = 0;
    std::string tag;
    bool good = false;
  };
  /// Checks the record at `at`. Returns its length, or 0 if the next record cannot be found from it.
  std::uint64_t OneRecord(const RegularFile& events, const std::string& file, std::uint64_t at,
                          std::string_view expected, Seen* seen);
  [[nodiscard]] std::string WhatIsWrong(std::span<const std::byte> payload, std::string* tag) const;

  std::string root_;
  SmdebugReport* report_;
  bool ended_ = false;
  std::uint64_t temporaries_ = 0;
  std::uint32_t num_workers_ = 0;
  std::set<std::string> announced_;
  std::map<std::string, std::int64_t, std::less<>> last_step_;  // by worker
  std::set<std::int64_t> steps_;
  std::set<std::string> event_files_;  // listed in index files
  format::SmdebugIndex index_;
  std::vector<std::byte> buffer_;
};

void Verifier::Collections() {
  ended_ = MtimeNs(root_ + "/" + format::kSmdebugEndFile) >= 0;
  const std::string folder = "collections/000000000";
  constexpr std::string_view kEnd = "_collections.json";
  for (const auto& [name, is_folder] : List(folder)) {
    if (is_folder || !name.ends_with(kEnd) || name.size() == kEnd.size()) continue;
    const std::string file = folder + "/" + name;
    announced_.insert(name.substr(0, name.size() - kEnd.size()));
    std::string text;
    if (!Read(file, &text)) continue;
    SmdebugCollections collections;
    std::vector<SmdebugCollections::Problem> problems;
    collections.Parse({{name, std::move(text)}}, &problems);
    for (auto& problem : problems) {
      Tell(file, problem.offset,
           "found " + problem.what +
               ", expected what smdebug 1.0 writes: tensors lose collections; copy the file again, or that "
               "of another worker under this name");
    }
    if (problems.empty() && num_workers_ != 0 && collections.num_workers() != num_workers_) {
      Note(file + ": says that " + std::to_string(collections.num_workers()) +
           " workers write, another file " + std::to_string(num_workers_));
    }
    num_workers_ = std::max(num_workers_, collections.num_workers());
  }
  if (announced_.empty()) {
    Tell(folder, 0,
         "found no collections file, expected one of each worker: tensors have no collections, and smdebug "
         "waits for it; copy the folder collections too");
  } else if (announced_.size() < num_workers_) {
    const std::string found = std::to_string(announced_.size());
    const std::string what = "found collections files of " + found + " workers, expected " +
                             std::to_string(num_workers_) + " as they say themselves";
    if (ended_)
      Tell(folder, 0, what + ": smdebug does not open this; copy those of all workers");
    else
      Note(folder + ": " + what + ": the others have not begun");
  }
}

std::string Verifier::WhatIsWrong(std::span<const std::byte> payload, std::string* tag) const {
  const auto event = format::ParseEventUntrusted(payload);
  if (!event.ok()) return std::string(event.status().message());
  if (!event->file_version.empty()) return "found the first record of a file for TensorBoard";
  const auto at = std::find_if(event->values.begin(), event->values.end(), [](const auto& value) {
    return value.kind == format::EventValue::Kind::kTensor;
  });
  if (at == event->values.end()) return "found a record without a tensor";
  *tag = std::string(at->tag);
  const format::EventTensor& tensor = at->tensor;
  if (tensor.dtype == DType::kInvalid)
    return "found a tensor of type number " + std::to_string(tensor.wire_dtype) + ", which Luff has not";
  const bool one_number = tensor.dtype != DType::kString && tensor.content.size() == DTypeSize(tensor.dtype);
  if (format::ParseSmdebugReduction(*tag) && !one_number) return "found a reduction that is not one number";
  return "";
}

std::uint64_t Verifier::OneRecord(const RegularFile& events, const std::string& file, std::uint64_t at,
                                  std::string_view expected, Seen* seen) {
  const auto tell = [&](std::string_view what) {
    const std::string lost = expected.empty() ? "" : "; lost: value of " + Quoted(expected);
    Tell(file, at, std::string(what) + lost + kCopyAgain);
  };
  seen->start = at;
  const std::uint64_t left = events.size() - at;
  buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(left, format::kRecordHead)));
  if (const Status read = events.ReadAllAt(buffer_, at); !read.ok()) return tell(read.message()), 0;
  const auto bytes = format::RecordBytesUntrusted(buffer_, left, "");
  if (!bytes.ok()) return tell(bytes.status().message()), 0;
  buffer_.resize(static_cast<std::size_t>(*bytes));
  if (const Status read = events.ReadAllAt(buffer_, at); !read.ok()) return tell(read.message()), 0;
  seen->bytes = *bytes;
  const auto record = format::ParseRecordUntrusted(buffer_, 0);
  std::string wrong;
  if (record.ok()) {
    wrong = WhatIsWrong(record->payload, &seen->tag);
  } else {
    const std::string_view message = record.status().message();
    wrong = message.substr(0, message.rfind(" at byte "));  // the offset in the buffer
  }
  if (!wrong.empty()) {
    tell(wrong);
    return *bytes;  // the length has a checksum of its own
  }
  seen->good = true;
  ++report_->records;
  if (record->footer == format::RecordFooter::kSmdebug) ++report_->unchecked;
  return *bytes;
}

void Verifier::Events(const std::string& file, const format::SmdebugIndex* index,
                      const std::string& index_file) {
  auto opened = OpenFile(root_, file);
  if (!opened.ok()) {
    const bool missing = opened.status().code() == StatusCode::kNotFound;
    const std::string_view message = opened.status().message();
    const std::string what = missing ? "found no such file, though " + index_file + " names it"
                                     : std::string(message.substr(0, message.rfind(": ")));
    Tell(file, 0,
         what + ": its " + std::to_string(index == nullptr ? 0 : index->tensors.size()) +
             " values are lost; copy the folder events too");
    return;
  }
  ++report_->files;
  report_->bytes += (*opened)->size();
  std::vector<std::pair<std::uint64_t, std::string_view>> expected;  // start, name
  for (const auto& tensor : index == nullptr ? std::vector<format::SmdebugIndex::Tensor>{} : index->tensors)
    expected.emplace_back(tensor.start, tensor.name);
  std::sort(expected.begin(), expected.end());
  std::vector<Seen> seen;
  for (std::uint64_t at = 0; at < (*opened)->size();) {
    const auto next = std::lower_bound(expected.begin(), expected.end(), std::pair(at, std::string_view()));
    const bool named = next != expected.end() && next->first == at;
    Seen one;
    const std::uint64_t bytes =
        OneRecord(**opened, file, at, named ? next->second : std::string_view(), &one);
    if (index != nullptr && one.good && !named) {
      Tell(index_file, 0,
           "does not name the record of " + Quoted(one.tag) + " at byte " + std::to_string(at) + " of " +
               file + ", so nobody finds it" + kCopyAgain);
    }
    seen.push_back(std::move(one));
    if (bytes != 0) {
      at += bytes;
      continue;
    }
    // The start of the next record is lost; takes it from the index file.
    const auto later = std::upper_bound(expected.begin(), expected.end(), at,
                                        [](std::uint64_t a, const auto& e) { return a < e.first; });
    if (later == expected.end()) break;
    at = later->first;
  }
  if (index == nullptr) return;
  std::uint64_t beyond = 0;
  std::string_view first_beyond;
  for (const auto& tensor : index->tensors) {
    if (tensor.start >= (*opened)->size()) {
      if (beyond++ == 0) first_beyond = tensor.name;
      continue;
    }
    const auto at = std::lower_bound(seen.begin(), seen.end(), tensor.start,
                                     [](const Seen& s, std::uint64_t start) { return s.start < start; });
    if (at == seen.end() || at->start != tensor.start) {
      Tell(index_file, 0,
           "says that " + Quoted(tensor.name) + " is at byte " + std::to_string(tensor.start) + " of " +
               file + ", where no record begins" + kCopyAgain);
    } else if (at->good && (at->bytes != tensor.length || at->tag != tensor.name)) {
      Tell(index_file, 0,
           "says that " + Quoted(tensor.name) + " of " + std::to_string(tensor.length) +
               " bytes is at byte " + std::to_string(tensor.start) + " of " + file + ", found there " +
               Quoted(at->tag) + " of " + std::to_string(at->bytes) + " bytes" + kCopyAgain);
    }
  }
  if (beyond != 0) {
    Tell(file, (*opened)->size(),
         "the file ends, and " + index_file + " names values behind it: lost are " + std::to_string(beyond) +
             ", the first " + Quoted(first_beyond) + kCopyAgain);
  }
}

void Verifier::Index(const std::string& file, const format::SmdebugFileName& name) {
  std::string text;
  if (!Read(file, &text)) return;
  steps_.insert(name.step);
  auto& last = last_step_[std::string(name.worker)];
  last = std::max(last, name.step);
  const std::string usual = format::SmdebugEventPath(name.step, name.worker);
  if (const Status parsed = format::ParseSmdebugIndexUntrusted(text, &index_); !parsed.ok()) {
    const std::size_t begin = text.rfind(R"({"meta": )");
    const std::uint64_t at = index_.error_at;
    const bool twice = begin != std::string::npos && begin != 0;
    const std::string rest = twice ? text.substr(begin) : "";
    if (!twice || !format::ParseSmdebugIndexUntrusted(rest, &index_).ok()) {
      Tell(file, at, std::string(parsed.message()) + ": its step is missing for this worker" + kCopyAgain);
      event_files_.insert(usual);  // else OtherEventFiles() would report it again
      if (MtimeNs(root_ + "/" + usual) >= 0) Events(usual, nullptr, file);
      return;
    }
    Tell(file, 0,
         "begins with " + std::to_string(begin) +
             " bytes that an interrupted job left behind: Luff passes them over, smdebug does not open this; "
             "cut "
             "them off");
    text = rest;
    (void)format::ParseSmdebugIndexUntrusted(text, &index_).ok();
  }
  report_->values += index_.tensors.size();
  report_->shapes += index_.shapes.size();
  if (index_.tensors.empty()) return;
  std::string events(index_.event_file);
  if (events.empty()) {
    Tell(file, 0, "names values and no event file, expected " + usual + std::string(kCopyAgain));
    events = usual;
  } else if (events.find("..") != std::string::npos || events.front() == '/') {
    Tell(file, 0, "names an event file outside the trial, expected " + usual + ": its step is not read");
    return;
  }
  event_files_.insert(events);
  Events(events, &index_, file);
}

void Verifier::Indexes() {
  const Names top = List("index");
  std::vector<std::string> folders = {"index"};
  for (const auto& [name, is_folder] : top) {
    if (is_folder) folders.push_back("index/" + name);
  }
  for (const std::string& folder : folders) {
    for (const auto& [name, is_folder] : folder == "index" ? top : List(folder)) {
      if (is_folder || !(name.ends_with(".json") || name.ends_with(".csv"))) continue;
      const std::string file = folder + "/" + name;
      if (const auto parsed = format::ParseSmdebugIndexName(name))
        Index(file, *parsed);
      else
        Tell(file, 0, "found an index file of this name, expected STEP_WORKER.json; rename or remove it");
    }
  }
}

void Verifier::OtherEventFiles() {
  constexpr std::string_view kEnd = ".tfevents";
  for (const auto& [folder, is_folder] : List("events")) {
    if (!is_folder) continue;
    for (const auto& [name, below] : List("events/" + folder)) {
      const std::string file = "events/" + folder + "/" + name;
      if (below || !name.ends_with(kEnd) || event_files_.contains(file)) continue;
      const std::string as_index = name.substr(0, name.size() - kEnd.size()) + ".json";
      const auto parsed = format::ParseSmdebugIndexName(as_index);
      if (!parsed) continue;
      Events(file, nullptr, "");
      // An event file is finished before its index file, so only a worker's last one may lack an index file.
      const auto last = last_step_.find(parsed->worker);
      const bool is_last = last == last_step_.end() || last->second < parsed->step;
      const std::string index = format::SmdebugIndexPath(parsed->step, parsed->worker);
      if (ended_ || !is_last) {
        Tell(index, 0,
             "found no such file, expected it beside " + file +
                 ": nobody finds its values; copy the folder "
                 "index again");
      } else {
        Note(file + ": has no index file yet: the job runs, or was killed in this step, which is not read");
      }
    }
  }
}

void Verifier::Rest() {
  for (const auto& [worker, step] : last_step_) {
    if (announced_.contains(worker) || announced_.empty() || num_workers_ > 1) continue;
    Note("worker " + format::SmdebugWorkerName(worker) + " has written, and has no collections file");
  }
  report_->workers = std::max(last_step_.size(), announced_.size());
  report_->steps = steps_.size();
  if (temporaries_ != 0) {
    Note(std::to_string(temporaries_) +
         " files *.tmp: they were being written when the job was killed, or are now; nobody reads them");
  }
  if (!ended_) Note(std::string(format::kSmdebugEndFile) + " is not there: the job runs, or was killed");
  if (report_->unchecked != 0) {
    Note(std::to_string(report_->unchecked) +
         " records have no checksum of their payload (smdebug writes a constant instead): a number that "
         "changed "
         "in one of them cannot be seen");
  }
}

}  // namespace

bool IsSmdebugDirectory(const std::string& path) { return SmdebugDirectory::Looks(path); }

Result<SmdebugReport> VerifySmdebug(const std::string& path) {
  if (!SmdebugDirectory::Looks(path))
    return NotFound("no directory of smdebug's (it has the folders collections, events and index): " + path);
  SmdebugReport report;
  Verifier verifier(path, &report);
  verifier.Collections();
  verifier.Indexes();
  verifier.OtherEventFiles();
  verifier.Rest();
  return report;
}

}  // namespace luff::query
