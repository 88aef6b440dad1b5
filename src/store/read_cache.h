#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace luff::store {

/// Allocates `bytes` bytes, aligned as chunks are. Null if there is no memory, or for more than the machine
/// has.
[[nodiscard]] std::shared_ptr<std::byte> AllocateForReading(std::uint64_t bytes);

/// Caches recently read and verified bytes of files, at most kMaxBytes of them. Evicts by second chance:
/// entries requested since their last turn stay for another round. **Thread-compatible.** Returned bytes live
/// as long as their owner.
class ReadCache {
 public:
  struct Key {
    std::uint64_t file;  // NewFile()
    std::uint64_t part;
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
  };
  // Large enough for one footer's rows, for callers that walk all tensors step by step.
  static constexpr std::uint64_t kMaxBytes = 80ULL << 20;

  /// Returns a number that no other file of the process has.
  [[nodiscard]] static std::uint64_t NewFile() noexcept;
  /// Null if it is not cached. Lifetime: until the next call.
  [[nodiscard]] const Entry* Find(const Key& key);
  void Put(const Key& key, Entry entry);
  /// Returns the list of the previous call if it equals `ids`, since most segments of a run hold the same
  /// tensors.
  [[nodiscard]] std::shared_ptr<const std::vector<std::uint32_t>> Shared(std::vector<std::uint32_t> ids);
  /// Returns whether the bytes were requested recently, and notes this request. For bytes that are worth
  /// caching only if they are requested again. May occasionally be wrong.
  [[nodiscard]] bool AskedBefore(const Key& key);
  /// Returns memory for bytes that are used once and not cached. It is reused once the caller has released
  /// it. Null if there is no memory.
  [[nodiscard]] std::shared_ptr<std::byte> Passing(std::uint64_t bytes);
  /// Returns memory that the caller holds for long, such as that of a step until its segment is sealed. It is
  /// used again once all have released it, since fresh memory costs more than what is read into it. Null if
  /// there is no memory.
  [[nodiscard]] std::shared_ptr<std::byte> Lasting(std::uint64_t bytes);
  /// Frees lasting memory that nobody holds.
  void TrimLasting() noexcept;

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Kept {
    Entry entry;
    bool asked = false;
  };
  std::unordered_map<Key, Kept, Hash> kept_;
  std::deque<Key> turns_;  // in the order in which entries are evicted or stay for another round
  std::uint64_t bytes_ = 0;
  std::vector<std::uint32_t> asked_;  // indexed by some bits of a key's hash; holds other bits of it
  std::shared_ptr<const std::vector<std::uint32_t>> shared_;
  std::shared_ptr<std::byte> passing_;
  std::uint64_t passing_bytes_ = 0;
  struct Room {
    std::shared_ptr<std::byte> memory;
    std::uint64_t bytes;
  };
  std::vector<Room> lasting_;
};

}  // namespace luff::store
