#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace luff::store {

/// Memory for `bytes` bytes, aligned as chunks are; null when there is none, also for more than the machine
/// has.
[[nodiscard]] std::shared_ptr<std::byte> AllocateForReading(std::uint64_t bytes);

/// Bytes of files that were read and found right not long ago: at most kMaxBytes of them, those go first that
/// nobody has asked for since it was last their turn. **Thread-compatible.** What is handed out stays as long
/// as its owner.
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
  // One footer's rows fit, for who walks over all tensors step by step.
  static constexpr std::uint64_t kMaxBytes = 80ULL << 20;

  /// A number that no other file of the process has.
  [[nodiscard]] static std::uint64_t NewFile() noexcept;
  /// Null when it is not there. Lifetime: until the next call.
  [[nodiscard]] const Entry* Find(const Key& key);
  void Put(const Key& key, Entry entry);
  /// For what is only worth keeping when it is asked for again: whether this was asked before, not long ago.
  /// May err now and then.
  [[nodiscard]] bool AskedBefore(const Key& key);
  /// Memory for what is used once and not put here: the same again as soon as nobody has it. Null: there is
  /// none.
  [[nodiscard]] std::shared_ptr<std::byte> Passing(std::uint64_t bytes);

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Kept {
    Entry entry;
    bool asked = false;
  };
  std::unordered_map<Key, Kept, Hash> kept_;
  std::deque<Key> turns_;  // whose turn it is to go, or to stay for another round
  std::uint64_t bytes_ = 0;
  std::vector<std::uint32_t> asked_;  // by hash: other bits of it
  std::shared_ptr<std::byte> passing_;
  std::uint64_t passing_bytes_ = 0;
};

}  // namespace luff::store
