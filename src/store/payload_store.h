#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "luff/base/env.h"
#include "luff/store/writer.h"
#include "store/payload_file.h"

namespace luff::store {

/// All payload files of one worker: decides which file a chunk goes to, and which files to remove. **Owned by
/// the writer thread.**
///
/// A *policy* is one Retention. It has up to three *classes* of steps with a file stream each: recent (1),
/// tenth (2), hundredth (3); keep-all has class 0. A policy counts its own steps; `floor` of a class is the
/// last step whose rows are dropped. A file is removed when its last step is at or below its class's floor. A
/// chunk in it to which a row above its floor still refers is first copied to the stream of the
/// longest-living class.
class PayloadStore {
 public:
  struct Start {
    std::array<std::uint8_t, 16> run_id{};
    std::uint32_t worker = 0, epoch = 0;
    std::uint64_t next_sequence = 1;
    std::uint64_t segment_bytes = 0;
    std::uint64_t max_bytes = 0;  // of payload; 0: no limit
    bool direct = true;
  };
  PayloadStore(Env& env, std::string directory, const Start& start);

  /// Adds a file of an earlier epoch. It counts towards the budget, and its own policy removes it.
  void Adopt(std::uint32_t sequence, std::uint64_t bytes, std::uint32_t retention_class);

  /// Errors: kResourceExhausted if max_bytes would be exceeded (exhausted() is then set) or the disk has no
  /// more than PayloadMargin() left; those of File.
  [[nodiscard]] Status Append(std::span<const ChunkRef> chunks, Retention retention, std::int64_t global_step,
                              std::uint64_t ordinal, std::vector<Place>* places);

  /// Call before rows are written. Follows relocations, copies chunks that a row would outlive, and removes
  /// rows whose chunk is gone, which it counts in `lost`.
  [[nodiscard]] Status PrepareRows(std::vector<format::IndexRow>* rows, std::vector<Retention>* retentions,
                                   std::uint64_t ordinal, format::GapRow* lost);
  /// Call when the step's rows are published: counts its references and begins the next step.
  void StepPublished();

  /// Chooses the files to remove. The caller publishes the rows, then calls RemoveRetired().
  struct Expiry {
    std::vector<format::RelocateRow> relocated;
    std::vector<format::RetireRow> retired;
    std::vector<format::GapRow> gaps;
    void clear() {
      relocated.clear();
      retired.clear();
      gaps.clear();
    }
  };
  [[nodiscard]] Status Expire(std::uint64_t ordinal, Expiry* expiry);
  /// Chooses closed files whose bytes are all in a bucket, the oldest first, until at most `keep_bytes` of
  /// payload are left here, and adds them to `expiry`. None that was closed in the last minute: rules may be
  /// about to read it. `uploaded`: bytes in the bucket, by file.
  void RetireUploaded(const std::map<std::uint32_t, std::uint64_t>& uploaded, std::uint64_t keep_bytes,
                      Expiry* expiry);
  /// Thins the classes of thin policies, recent first, until `need` more bytes would fit. False if nothing is
  /// left to thin.
  bool ThinFor(std::uint64_t need);
  void RemoveRetired(const Expiry& expiry);

  [[nodiscard]] Place Resolve(Place place) const noexcept;
  [[nodiscard]] bool IsKept(Place place) const noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t bytes_written() const noexcept { return bytes_written_; }
  [[nodiscard]] bool exhausted() const noexcept { return exhausted_; }
  [[nodiscard]] Place newest() const noexcept { return newest_; }
  /// Appends a gap for each file that was found removed or truncated since the last call.
  void TakeLost(std::vector<format::GapRow>* gaps);
  [[nodiscard]] Status Sync();
  /// Closes every open file and releases reserved space. Idempotent.
  void Finish();

 private:
  static constexpr std::size_t kClasses = 4;
  struct Policy {
    Retention retention;
    std::uint64_t steps = 0;  // begun, the current one included
    bool touched = false;     // in the current step
    std::array<std::uint64_t, kClasses> floor{};
    std::array<std::uint32_t, kClasses> open_file{};  // 0: none
  };
  struct DataFile {
    std::uint32_t sequence = 0;
    std::uint32_t policy = 0;
    std::uint32_t klass = 0;
    std::uint64_t bytes = 0;
    std::uint64_t first_step = 0, last_step = 0;  // of the policy
    std::int64_t first_global = 0, last_global = 0;
    std::uint64_t chunks = 0;
    std::int64_t closed_ns = 0;    // monotonic; 0: by an earlier epoch
    std::uint64_t step_begin = 0;  // length when the current step began: chunks before it are older
    std::unique_ptr<PayloadFile> open;
    std::unordered_map<std::uint64_t, std::array<std::uint64_t, kClasses>>
        references;  // offset: last step per class
  };

  std::uint32_t PolicyOf(Retention retention);
  /// Returns false if `bytes` more would reach into the disk's margin. Queries the file system only now and
  /// then.
  [[nodiscard]] bool DiskHasRoom(std::uint64_t bytes) noexcept;
  void Touch(Policy& policy);
  [[nodiscard]] static std::uint32_t ClassOf(const Policy& policy) noexcept;
  [[nodiscard]] std::uint64_t SegmentLimit(const Policy& policy) const noexcept;
  [[nodiscard]] Result<DataFile*> Writable(std::uint32_t policy, std::uint32_t klass, std::uint64_t bytes,
                                           std::uint64_t ordinal, std::int64_t global_step);
  void Close(DataFile& file);
  /// Removes a file from all lists.
  void Forget(std::uint32_t sequence);
  void GiveUp(DataFile& file);
  [[nodiscard]] Result<Place> Copy(Place from, std::uint32_t policy, std::uint32_t klass,
                                   std::uint64_t ordinal);
  void Move(Place from, Place to);
  void UpdateFloors(Policy& policy) noexcept;
  [[nodiscard]] static bool StillReferred(const Policy& policy,
                                          const std::array<std::uint64_t, kClasses>& reference) noexcept;

  Env& env_;
  const std::string directory_;
  const Start start_;
  DirectIo direct_;
  std::uint64_t next_sequence_;
  std::uint64_t bytes_ = 0;
  std::uint64_t bytes_written_ = 0;
  bool exhausted_ = false;
  std::uint64_t room_bytes_ = 0;  // that may be written before the file system is asked again
  Place newest_;
  std::int64_t global_step_ = 0;
  std::vector<Policy> policies_;
  std::map<std::uint32_t, DataFile> files_;                             // kept ones
  std::unordered_map<std::uint64_t, Place> moved_;                      // where a relocated chunk is now
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> from_;  // the reverse, bounded
  std::unordered_map<std::uint64_t, std::vector<std::pair<std::uint32_t, Place>>> copies_;  // per policy
  struct Reference {
    std::uint32_t file;
    std::uint64_t offset;
    std::uint32_t klass;
    std::uint64_t step;
  };
  std::vector<format::GapRow> lost_;
  std::vector<Reference> pending_references_;
  std::vector<std::byte> copy_buffer_;
};

}  // namespace luff::store
