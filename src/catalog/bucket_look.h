#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog.h"
#include "luff/base/result.h"

/// Lists the runs of a bucket by their cards, with the same index and questions as those of a directory.
namespace luff::catalog {

/// A run of a bucket, and its card if that has changed.
struct BucketRun {
  std::string run_id;               // 32 hexadecimal digits
  std::uint64_t stamp = 0;          // changes when the card does; never 0
  std::int64_t heard_unix_ns = 0;   // when the card was put, by the bucket's clock
  std::optional<std::string> card;  // the object: at most kMaxBucketCard bytes, not looked at yet
};

/// Who asks the bucket.
class CardSource {
 public:
  virtual ~CardSource() = default;
  /// Begins a look, also a second time. `known`: what need not be fetched.
  [[nodiscard]] virtual Status Begin(const std::vector<BucketRun>& known) = 0;
  /// How many cards have changed; 0 until that is known.
  [[nodiscard]] virtual std::size_t changed() const noexcept = 0;
  /// The next run; none after the last one. Adds to `notes` what cannot be shown, and why. Errors: the
  /// bucket's.
  [[nodiscard]] virtual Result<std::optional<BucketRun>> Next(std::vector<std::string>* notes) = 0;
};

/// As Ask(). `question.folder` is the URL of the bucket, the name of an entry its run id. If the bucket
/// fails, what was known before is told with a note, and an error if that is nothing.
[[nodiscard]] Result<Answer> AskBucket(const std::string& index, const Question& question, CardSource* source,
                                       const Progress& progress = {});

/// What the process that asks the bucket prints, a line at a time ("# CHANGED", "= ID STAMP", "+ ID STAMP
/// HEARD BYTES" and the bytes, "! NOTE", "E ERROR", "."): a parser that takes it in pieces.
class LookReader {
 public:
  enum class Kind { kMore, kCount, kRun, kNote, kError, kEnd };
  struct Item {
    Kind kind = Kind::kMore;  // kMore: it takes more bytes to know
    BucketRun run;
    std::size_t count = 0;
    std::string text;  // of a note or an error
  };
  void AddUntrusted(std::string_view bytes) { bytes_.append(bytes); }
  /// Errors: kCorruption for what no such process prints.
  [[nodiscard]] Result<Item> Next();

 private:
  [[nodiscard]] Result<Item> Line(std::string_view line, std::size_t after);
  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace luff::catalog
