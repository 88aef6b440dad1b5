#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "luff/base/result.h"
#include "luff/format/event_file.h"
#include "luff/format/smdebug.h"
#include "luff/query/trial.h"

namespace luff::query {

/// The contents of a directory that smdebug writes, according to its index files: which worker wrote what at
/// which step, and where the bytes are. Does not open event files. docs/spec/smdebug.md is the contract.
/// **Thread-compatible.**
class SmdebugDirectory {
 public:
  /// One index file: what one worker wrote at one step.
  struct Entry {
    std::int64_t global_step = 0, mode_step = 0;
    std::int64_t written_unix_ns = 0;    // when the file was last changed
    std::uint32_t worker = 0;            // place in workers()
    std::uint32_t first = 0, count = 0;  // its records
    std::uint32_t event_file = 0;        // place in odd_event_files_, 0: the usual name
    Mode mode = Mode::kGlobal;
  };
  enum class Kind : std::uint8_t { kValue, kShape, kReduction };
  struct Record {
    std::uint64_t start = 0;   // kShape: place in `dims`
    std::uint32_t length = 0;  // kShape: rank
    std::uint32_t tensor = 0;
    std::uint32_t entry = 0;
    Kind kind = Kind::kValue;
    std::uint8_t reduction = 0;  // SmdebugReduction
    bool abs = false;
  };
  struct Worker {
    std::string name;          // "worker_0", "/job:worker/replica:0/task:1/device:GPU:0"
    std::string in_file_name;  // the same, as it appears in file names
    std::uint32_t number = 0;
    bool announced = false;        // it has a collections file
    std::int64_t last_step = -1;   // global
    std::int64_t last_train = -1;  // mode step
    std::int64_t written_unix_ns = 0, longest_pause_ns = 0;
  };

  explicit SmdebugDirectory(std::string path) : path_(std::move(path)) { odd_event_files_.emplace_back(); }

  /// True if the directory has the folders that only smdebug creates.
  [[nodiscard]] static bool Looks(const std::string& path);

  /// Reads new collections and index files. Returns true if anything is new. Files that cannot be read become
  /// problems. Errors: kNotFound if the directory itself is missing.
  [[nodiscard]] Result<bool> Scan();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const std::vector<Worker>& workers() const noexcept { return workers_; }
  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const Record& record(std::uint32_t at) const noexcept { return records_[at]; }
  [[nodiscard]] std::uint32_t PlaceOf(const Record& record) const noexcept {
    return static_cast<std::uint32_t>(&record - records_.data());
  }
  [[nodiscard]] std::span<const Record> RecordsOf(const Entry& entry) const noexcept {
    return std::span(records_).subspan(entry.first, entry.count);
  }
  [[nodiscard]] std::size_t tensor_count() const noexcept { return names_.size(); }
  [[nodiscard]] const std::string& tensor_name(std::uint32_t id) const noexcept { return *names_[id]; }
  /// Name in the graph, from a shape record; "" if there is none.
  [[nodiscard]] const std::string& original_name(std::uint32_t id) const noexcept;
  [[nodiscard]] std::optional<std::uint32_t> FindTensor(std::string_view name) const;
  /// Places of a tensor's records, ascending.
  [[nodiscard]] std::span<const std::uint32_t> Postings(std::uint32_t tensor) const noexcept {
    return postings_[tensor];
  }
  [[nodiscard]] std::span<const std::int64_t> ShapeOf(const Record& record) const noexcept {
    return std::span(dims_).subspan(static_cast<std::size_t>(record.start), record.length);
  }
  [[nodiscard]] std::string EventName(const Entry& entry) const;
  [[nodiscard]] std::string EventPath(const Entry& entry) const { return path_ + "/" + EventName(entry); }

  /// Texts of the collections files, one for each worker, by file name.
  [[nodiscard]] const std::map<std::string, std::string>& collections() const noexcept {
    return collections_;
  }
  [[nodiscard]] std::uint32_t collections_version() const noexcept { return collections_version_; }
  [[nodiscard]] std::int64_t created_unix_ns() const noexcept { return created_unix_ns_; }
  /// True if smdebug's end marker exists.
  [[nodiscard]] bool ended() const noexcept { return ended_; }

  [[nodiscard]] const std::vector<std::string>& problems() const noexcept { return problems_; }
  void AddProblem(std::string text) const;

 private:
  struct Folder {
    std::int64_t listed_mtime_ns = -1;
    std::vector<std::pair<std::int64_t, std::uint32_t>> known;  // step, worker; ascending
    std::set<std::string> strange;                              // invalid names that were reported
  };
  struct Found {
    std::int64_t step;
    std::uint32_t worker;
    std::string path;
  };

  [[nodiscard]] bool ScanCollections();
  void ScanFolder(const std::string& path, Folder* folder, std::vector<Found>* found);
  [[nodiscard]] bool TakeIndex(const Found& found);
  [[nodiscard]] std::uint32_t WorkerOf(std::string_view in_file_name, bool announced);
  [[nodiscard]] std::uint32_t FreeNumber(std::uint32_t wanted);
  [[nodiscard]] std::uint32_t IdOf(std::string_view name);
  void AddRecord(std::uint32_t entry, Record record);

  std::string path_;
  std::vector<Worker> workers_;
  std::unordered_map<std::string, std::uint32_t> worker_at_;  // by name in files
  std::map<std::uint32_t, std::uint32_t> numbers_;
  std::vector<Entry> entries_;
  std::vector<Record> records_;
  std::vector<std::int64_t> dims_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;  // views of the strings in names_
  std::vector<std::unique_ptr<const std::string>> names_;
  std::vector<std::vector<std::uint32_t>> postings_;
  std::map<std::uint32_t, std::string> original_names_;
  std::vector<std::string> odd_event_files_;
  std::map<std::string, std::string> collections_;         // file name: text
  std::map<std::string, std::int64_t> collections_mtime_;  // file name: its time
  std::map<std::string, Folder> folders_;
  std::uint32_t collections_version_ = 0;
  std::int64_t created_unix_ns_ = 0;
  bool ended_ = false;
  // Files usually list the same tensors in the same order: the record and the name at each place of the last
  // file.
  std::vector<Record> guesses_;
  std::vector<std::string> guess_names_;
  format::SmdebugIndex index_;
  std::string text_;
  mutable std::vector<std::string> problems_;
};

}  // namespace luff::query
