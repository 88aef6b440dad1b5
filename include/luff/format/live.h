#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "luff/format/layout.h"

/// The page `live` in a worker's folder: 4 KiB, read and written by system calls. It is never mapped, because
/// truncating a mapped file kills every process that reads it. Readers use it on the same host and boot only.
/// It only speeds readers up: everything in it can be found by walking frames.
namespace luff::format {

enum class LiveState : std::uint32_t { kStarting = 0, kWriting = 1, kDegraded = 2, kEnded = 3 };

inline constexpr std::uint32_t kLiveLayout = 2;  // 1 was mapped, with no checksum of the changing part

/// A place in a stream in one word: file sequence (24 bits) and length (40 bits). Grows monotonically.
[[nodiscard]] constexpr std::uint64_t PackPosition(std::uint64_t sequence, std::uint64_t length) noexcept {
  return sequence << 40 | (length & ((std::uint64_t{1} << 40) - 1));
}
[[nodiscard]] constexpr std::uint64_t PositionSequence(std::uint64_t position) noexcept {
  return position >> 40;
}
[[nodiscard]] constexpr std::uint64_t PositionLength(std::uint64_t position) noexcept {
  return position & ((std::uint64_t{1} << 40) - 1);
}

/// The changing part, written in one call from byte 128 on. A reader may see a half-written one, which fails
/// its checksum.
struct LiveNews {
  std::uint64_t meta_position;    // published end of the newest metadata file
  std::uint64_t data_position;    // newest payload file; only a hint, there may be several streams
  std::uint64_t next_ordinal;     // published steps, all epochs
  std::int64_t last_global_step;  // -1: none
  std::int64_t train_steps;       // published TRAIN steps, all epochs
  std::int64_t heartbeat_unix_ns;
  std::uint32_t state;     // LiveState
  std::uint32_t changes;   // grows when metadata files are rewritten or payload files retired
  std::uint64_t checksum;  // XXH3-64 of the bytes before it
};
static_assert(sizeof(LiveNews) == 64);

/// Constant after creation up to `checksum`.
struct LivePage {
  std::uint64_t magic;
  std::uint32_t layout;  // kLiveLayout
  std::uint32_t worker;
  std::uint64_t host;  // HostIdentity of base/env.h
  std::uint64_t boot[2];
  std::uint64_t pid;
  std::uint64_t pid_start_ticks;  // with it a pid is unique within a boot
  std::uint8_t run_id[16];
  std::uint32_t epoch;
  std::uint32_t pid_namespace;  // in which `pid` counts: inode of /proc/self/ns/pid; 0: not known
  std::int64_t created_unix_ns;
  std::uint64_t checksum;  // XXH3-64 of the bytes before it
  std::uint8_t reserved1[128 - 96];
  LiveNews news;
};
/// True if the constant part of `page`, the bytes of a live page, is intact: magic and checksum. Untrusted.
[[nodiscard]] bool IsLivePageUntrusted(std::span<const std::byte> page) noexcept;

/// Parses the changing part of a page from `bytes`, which begin at kLiveNewsOffset. Nothing if it is damaged
/// or half-written.
[[nodiscard]] std::optional<LiveNews> ParseLiveNewsUntrusted(std::span<const std::byte> bytes) noexcept;
void SealLiveNews(LiveNews* news) noexcept;

inline constexpr std::size_t kLiveNewsOffset = 128;
static_assert(offsetof(LivePage, news) == kLiveNewsOffset);
static_assert(sizeof(LivePage) <= kPageBytes);

}  // namespace luff::format
