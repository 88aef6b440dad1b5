#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "luff/base/result.h"
#include "luff/tensor/dtype.h"

/// Event files of smdebug and TensorBoard: TFRecord framing around protobuf messages. Sources: TensorFlow's
/// tfrecord format, its event.proto, summary.proto and tensor.proto; docs/spec/smdebug.md describes what
/// smdebug does differently. Nothing here keeps state: all functions are **thread-safe**.
namespace luff::format {

/// CRC-32C (Castagnoli, reflected 0x82F63B78). The CRC of "123456789" is 0xE3069283.
[[nodiscard]] std::uint32_t Crc32c(std::span<const std::byte> bytes) noexcept;
/// The CRC as records store it, masked, because CRCs of data that contains CRCs are weak.
[[nodiscard]] std::uint32_t MaskedCrc32c(std::span<const std::byte> bytes) noexcept;

/// smdebug ends every record with this constant, the masked CRC of the text "0x12345678", instead of its
/// payload's CRC.
inline constexpr std::uint32_t kSmdebugFooter = 0x062DC0B3U;
inline constexpr std::size_t kRecordOverhead = 16;  // u64 length, u32 its CRC, payload, u32 footer
inline constexpr std::uint64_t kMaxEventBytes = (2ULL << 30) - 1;  // protobuf has no larger messages

enum class RecordFooter : std::uint8_t {
  kPayloadCrc,  // TensorBoard's; TensorFlow's own reader checks it
  kSmdebug,     // the constant
};

struct Record {
  std::span<const std::byte> payload;
  std::uint64_t bytes = 0;  // of the whole record
  RecordFooter footer = RecordFooter::kPayloadCrc;
};

/// Returns the size of the record that begins with `head`, its first kRecordHead bytes, so that records can
/// be read one at a time. `left`: bytes of the file from there on. Errors: kCorruption, with `at` appended to
/// the message.
inline constexpr std::size_t kRecordHead = 12;
[[nodiscard]] Result<std::uint64_t> RecordBytesUntrusted(std::span<const std::byte> head, std::uint64_t left,
                                                         const std::string& at);

/// Parses the record at `offset`, with either footer. Errors: kCorruption with the offset and what was
/// expected there.
[[nodiscard]] Result<Record> ParseRecordUntrusted(std::span<const std::byte> file, std::uint64_t offset);

/// Appends a record. `payload` must not be longer than kMaxEventBytes.
void AppendRecord(std::string_view payload, RecordFooter footer, std::string* to);

/// A TensorProto. Views lie in the message it was parsed from.
struct EventTensor {
  DType dtype = DType::kInvalid;       // kString: see `strings`; kInvalid: no DType for it
  std::int32_t wire_dtype = 0;         // the message's DataType number
  std::vector<std::int64_t> shape;     // of strings too
  std::span<const std::byte> content;  // row-major, little-endian; exactly as many bytes as the shape needs
  std::vector<std::string_view> strings;
  std::string own;  // holds `content` if the message lists its elements one by one
};

struct EventHistogram {  // a HistogramProto
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, counts;  // of equal length; a limit is its bucket's upper end
};

struct EventValue {  // a Summary.Value
  enum class Kind : std::uint8_t { kOther, kScalar, kHistogram, kTensor };
  std::string_view tag;
  Kind kind = Kind::kOther;
  float scalar = 0;
  EventHistogram histogram;
  EventTensor tensor;
  std::vector<std::pair<std::string_view, std::string_view>> plugins;  // name, content
};

struct Event {
  double wall_time = 0;  // seconds since 1970
  std::int64_t step = 0;
  std::string_view file_version;
  std::vector<EventValue> values;
};

/// Errors: kCorruption for bytes that are not such a message, or a tensor whose bytes do not fit its shape.
[[nodiscard]] Result<Event> ParseEventUntrusted(std::span<const std::byte> payload);

/// Convert TensorFlow's DataType numbers. kInvalid stands for types without a counterpart and for strings, 0
/// for types without a number and for float8, which is only read.
[[nodiscard]] DType DTypeOfWire(std::int32_t data_type) noexcept;
[[nodiscard]] std::int32_t WireOfDType(DType dtype) noexcept;

// Messages as the original programs write them: smdebug's tensors byte for byte, TensorBoard's scalars and
// histograms.

struct TensorToWrite {
  std::string_view name;
  DType dtype = DType::kInvalid;  // must have a DataType number
  std::span<const std::int64_t> shape;
  std::span<const std::byte> content;
  std::span<const std::string_view> strings;  // instead of content, with dtype kInvalid
  std::int64_t mode_step = 0;
  int mode = 0;  // 1 TRAIN, 2 EVAL, 3 PREDICT, 4 GLOBAL, as luff::format::Mode
};

/// An Event with one tensor, as smdebug's hooks write it.
[[nodiscard]] std::string EncodeSmdebugTensor(double wall_time, std::int64_t global_step,
                                              const TensorToWrite& tensor);
/// The first event of every TensorBoard file.
[[nodiscard]] std::string EncodeFileVersion(double wall_time);
[[nodiscard]] std::string EncodeScalar(double wall_time, std::int64_t step, std::string_view tag,
                                       double value);
[[nodiscard]] std::string EncodeHistogram(double wall_time, std::int64_t step, std::string_view tag,
                                          const EventHistogram& histogram);

}  // namespace luff::format
