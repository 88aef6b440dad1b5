#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/env.h"
#include "store/earlier_epochs.h"
#include "store/meta_stream.h"

namespace luff::store {

/// Rewrites a sealed segment under the next generation's name, merging the summaries of ten steps of a mode
/// into one row, and removes the old file. Returns the bytes of the new file. `with_definitions`: false if a
/// newer segment of the epoch holds them. Errors: kCorruption, kIo, kResourceExhausted; the old file is then
/// untouched.
[[nodiscard]] Result<std::uint64_t> MergeSegment(Env& env, const std::string& directory,
                                                 std::uint64_t sequence, std::uint32_t generation,
                                                 bool with_definitions);

/// Keeps the sealed metadata of a worker within its share. **Owned by the writer thread.**
class MetaBudget {
 public:
  /// `max_bytes` 0: no limit.
  MetaBudget(Env& env, std::string directory, std::uint64_t max_bytes)
      : env_(env),
        directory_(std::move(directory)),
        max_bytes_(max_bytes) {}
  void Adopt(const EarlierEpochs::MetaFile& file);
  void Add(const MetaStream::SealedSegment& segment, std::uint32_t epoch);
  /// Merges at most one segment: the oldest of the least merged. True if it did.
  bool MergeOne(std::uint64_t open_bytes);
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Segment {
    std::uint64_t sequence = 0, bytes = 0;
    std::uint32_t generation = 0, epoch = 0;
    bool stuck = false;  // damaged, or did not get smaller
  };
  Env& env_;
  const std::string directory_;
  const std::uint64_t max_bytes_;
  std::uint64_t bytes_ = 0;
  std::vector<Segment> segments_;
};

}  // namespace luff::store
