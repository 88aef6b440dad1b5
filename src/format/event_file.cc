#include "luff/format/event_file.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <exception>
#include <initializer_list>

#include <protozero/pbf_message.hpp>
#include <protozero/pbf_writer.hpp>

#include "luff/tensor/view.h"

namespace luff::format {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

// Field numbers, from TensorFlow's *.proto files.
enum class EventField : protozero::pbf_tag_type { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum class SummaryField : protozero::pbf_tag_type { kValue = 1 };
enum class ValueField : protozero::pbf_tag_type {
  kTag = 1,
  kSimpleValue = 2,
  kHisto = 5,
  kTensor = 8,
  kMetadata = 9
};
enum class MetadataField : protozero::pbf_tag_type { kPluginData = 1 };
enum class PluginField : protozero::pbf_tag_type { kName = 1, kContent = 2 };
enum class HistogramField : protozero::pbf_tag_type {
  kMin = 1,
  kMax = 2,
  kNum = 3,
  kSum = 4,
  kSumSquares = 5,
  kBucketLimit = 6,
  kBucket = 7
};
enum class TensorField : protozero::pbf_tag_type {
  kDType = 1,
  kShape = 2,
  kContent = 4,
  kFloat = 5,
  kDouble = 6,
  kInt = 7,
  kString = 8,
  kInt64 = 10,
  kBool = 11,
  kHalf = 13,
  kUInt32 = 16,
  kUInt64 = 17
};
enum class ShapeField : protozero::pbf_tag_type { kDim = 2 };
enum class DimField : protozero::pbf_tag_type { kSize = 1, kName = 2 };

template <typename T>
using Message = protozero::pbf_message<T>;
using protozero::pbf_wire_type;
using protozero::tag_and_type;

constexpr std::int32_t kWireString = 7;
constexpr std::size_t kMaxDims = 64;

std::string_view Text(protozero::data_view view) { return {view.data(), view.size()}; }

template <typename Tag>
bool Is(const Message<Tag>& message, Tag tag, pbf_wire_type type) {
  return message.tag_and_type() == tag_and_type(tag, type);
}

/// Appends the numbers of a field, converted to `To`.
template <typename To, typename Range>
void AppendPacked(Range range, std::string* to) {
  for (const auto value : range) {
    const To element = static_cast<To>(value);
    to->append(reinterpret_cast<const char*>(&element), sizeof(element));
  }
}

/// Lists of elements, as TensorFlow writes small tensors: int_val holds all integers up to 32 bits, half_val
/// the bits of both 16-bit floats.
struct ListedElements {
  std::string f32, f64, i32, i64, flags, u32, u64;
};

std::string Narrow(const std::string& wide, std::size_t bytes) {
  std::string narrow;
  for (std::size_t i = 0; i + 4 <= wide.size(); i += 4) narrow.append(wide, i, bytes);
  return narrow;
}

std::string ListedAs(DType dtype, const ListedElements& from) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kComplex64: return from.f32;
    case DType::kFloat64:
    case DType::kComplex128: return from.f64;
    case DType::kInt64: return from.i64;
    case DType::kBool: return from.flags;
    case DType::kUInt32: return from.u32;
    case DType::kUInt64: return from.u64;
    default: return Narrow(from.i32, DTypeSize(dtype));
  }
}

void ReadShape(protozero::data_view view, std::vector<std::int64_t>* shape) {
  Message<ShapeField> message(view);
  while (message.next()) {
    if (!Is(message, ShapeField::kDim, pbf_wire_type::length_delimited)) {
      message.skip();
      continue;
    }
    std::int64_t size = 0;
    Message<DimField> dim(message.get_view());
    while (dim.next()) {
      if (Is(dim, DimField::kSize, pbf_wire_type::varint)) {
        size = dim.get_int64();
      } else {
        dim.skip();
      }
    }
    shape->push_back(size);
    if (shape->size() > kMaxDims) throw protozero::invalid_length_exception();
  }
}

/// Reads a field of numbers, packed or one at a time. Returns false if it has another wire type.
template <typename To, typename One, typename Packed>
bool ReadNumbers(Message<TensorField>& message, pbf_wire_type type, One one, Packed packed, std::string* to) {
  if (message.wire_type() == pbf_wire_type::length_delimited) {
    AppendPacked<To>((message.*packed)(), to);
    return true;
  }
  if (message.wire_type() != type) return false;
  AppendPacked<To>(std::initializer_list<To>{static_cast<To>((message.*one)())}, to);
  return true;
}

/// Reads a field that lists elements. Returns false if it is another field.
bool ReadListed(Message<TensorField>& message, ListedElements* to) {
  using M = Message<TensorField>;
  constexpr auto kVarint = pbf_wire_type::varint;
  switch (message.tag()) {
    case TensorField::kFloat:
      return ReadNumbers<float>(message, pbf_wire_type::fixed32, &M::get_float, &M::get_packed_float,
                                &to->f32);
    case TensorField::kDouble:
      return ReadNumbers<double>(message, pbf_wire_type::fixed64, &M::get_double, &M::get_packed_double,
                                 &to->f64);
    case TensorField::kInt:
    case TensorField::kHalf:
      return ReadNumbers<std::int32_t>(message, kVarint, &M::get_int32, &M::get_packed_int32, &to->i32);
    case TensorField::kInt64:
      return ReadNumbers<std::int64_t>(message, kVarint, &M::get_int64, &M::get_packed_int64, &to->i64);
    case TensorField::kBool:
      return ReadNumbers<std::uint8_t>(message, kVarint, &M::get_bool, &M::get_packed_bool, &to->flags);
    case TensorField::kUInt32:
      return ReadNumbers<std::uint32_t>(message, kVarint, &M::get_uint32, &M::get_packed_uint32, &to->u32);
    case TensorField::kUInt64:
      return ReadNumbers<std::uint64_t>(message, kVarint, &M::get_uint64, &M::get_packed_uint64, &to->u64);
    default: return false;
  }
}

/// Returns the number of bytes that the shape needs. kCorruption if no message can hold them.
Result<std::uint64_t> BytesOfShape(const EventTensor& tensor) {
  std::uint64_t bytes = DTypeSize(tensor.dtype);
  for (const std::int64_t dim : tensor.shape) {
    if (dim < 0 || (dim != 0 && bytes > kMaxEventBytes / static_cast<std::uint64_t>(dim)))
      return Corruption("found a tensor of dimension " + std::to_string(dim) + ", which no message can hold");
    bytes *= static_cast<std::uint64_t>(dim);
  }
  return bytes;
}

Status ReadTensor(protozero::data_view view, EventTensor* tensor) {
  ListedElements listed;
  Message<TensorField> message(view);
  while (message.next()) {
    if (Is(message, TensorField::kDType, pbf_wire_type::varint)) {
      tensor->wire_dtype = message.get_int32();
    } else if (Is(message, TensorField::kShape, pbf_wire_type::length_delimited)) {
      ReadShape(message.get_view(), &tensor->shape);
    } else if (Is(message, TensorField::kContent, pbf_wire_type::length_delimited)) {
      tensor->content = std::as_bytes(std::span(Text(message.get_view())));
    } else if (Is(message, TensorField::kString, pbf_wire_type::length_delimited)) {
      tensor->strings.push_back(Text(message.get_view()));
    } else if (!ReadListed(message, &listed)) {
      message.skip();
    }
  }
  const bool text =
      tensor->wire_dtype == kWireString || (tensor->wire_dtype == 0 && !tensor->strings.empty());
  if (text) {
    tensor->dtype = DType::kString;
    return Status::Ok();
  }
  tensor->dtype = DTypeOfWire(tensor->wire_dtype);
  if (tensor->dtype == DType::kInvalid) return Status::Ok();
  LUFF_ASSIGN_OR_RETURN(const std::uint64_t wanted, BytesOfShape(*tensor));
  if (tensor->content.empty() && wanted != 0) {
    tensor->own = ListedAs(tensor->dtype, listed);
    const std::size_t one = DTypeSize(tensor->dtype);
    // TensorFlow leaves out the elements at the end that equal the last one it lists.
    if (tensor->own.size() >= one && tensor->own.size() < wanted && wanted <= (64U << 20)) {
      const std::string last = tensor->own.substr(tensor->own.size() - one);
      while (tensor->own.size() < wanted) tensor->own += last;
    }
    tensor->content = std::as_bytes(std::span<const char>(tensor->own));
  }
  if (tensor->content.size() != wanted) {
    return Corruption("found a tensor of " + std::to_string(tensor->content.size()) + " bytes, expected " +
                      std::to_string(wanted) + " by its shape and type");
  }
  return Status::Ok();
}

void ReadHistogram(protozero::data_view view, EventHistogram* to) {
  Message<HistogramField> message(view);
  const auto append = [&](std::vector<double>* list) {
    if (message.wire_type() == pbf_wire_type::length_delimited) {
      for (const double value : message.get_packed_double()) list->push_back(value);
    } else if (message.wire_type() == pbf_wire_type::fixed64) {
      list->push_back(message.get_double());
    } else {
      message.skip();
    }
  };
  while (message.next()) {
    if (message.tag() == HistogramField::kBucketLimit) {
      append(&to->limits);
    } else if (message.tag() == HistogramField::kBucket) {
      append(&to->counts);
    } else if (message.wire_type() != pbf_wire_type::fixed64) {
      message.skip();
    } else if (message.tag() == HistogramField::kMin) {
      to->min = message.get_double();
    } else if (message.tag() == HistogramField::kMax) {
      to->max = message.get_double();
    } else if (message.tag() == HistogramField::kNum) {
      to->num = message.get_double();
    } else if (message.tag() == HistogramField::kSum) {
      to->sum = message.get_double();
    } else if (message.tag() == HistogramField::kSumSquares) {
      to->sum_squares = message.get_double();
    } else {
      message.skip();
    }
  }
}

void ReadMetadata(protozero::data_view view, EventValue* value) {
  Message<MetadataField> metadata(view);
  while (metadata.next()) {
    if (!Is(metadata, MetadataField::kPluginData, pbf_wire_type::length_delimited)) {
      metadata.skip();
      continue;
    }
    auto& [name, content] = value->plugins.emplace_back();
    Message<PluginField> plugin(metadata.get_view());
    while (plugin.next()) {
      if (Is(plugin, PluginField::kName, pbf_wire_type::length_delimited)) {
        name = Text(plugin.get_view());
      } else if (Is(plugin, PluginField::kContent, pbf_wire_type::length_delimited)) {
        content = Text(plugin.get_view());
      } else {
        plugin.skip();
      }
    }
  }
}

Status ReadValue(protozero::data_view view, EventValue* value) {
  Message<ValueField> message(view);
  while (message.next()) {
    if (Is(message, ValueField::kTag, pbf_wire_type::length_delimited)) {
      value->tag = Text(message.get_view());
    } else if (Is(message, ValueField::kSimpleValue, pbf_wire_type::fixed32)) {
      value->kind = EventValue::Kind::kScalar;
      value->scalar = message.get_float();
    } else if (Is(message, ValueField::kHisto, pbf_wire_type::length_delimited)) {
      value->kind = EventValue::Kind::kHistogram;
      ReadHistogram(message.get_view(), &value->histogram);
      if (value->histogram.limits.size() != value->histogram.counts.size())
        return Corruption("found a histogram whose limits and counts differ in number");
    } else if (Is(message, ValueField::kTensor, pbf_wire_type::length_delimited)) {
      value->kind = EventValue::Kind::kTensor;
      value->tensor = {};
      LUFF_RETURN_IF_ERROR(ReadTensor(message.get_view(), &value->tensor));
    } else if (Is(message, ValueField::kMetadata, pbf_wire_type::length_delimited)) {
      ReadMetadata(message.get_view(), value);
    } else {
      message.skip();
    }
  }
  return Status::Ok();
}

std::string Hex(std::uint32_t value) {
  char text[11];
  std::snprintf(text, sizeof(text), "0x%08x", value);
  return text;
}

constexpr protozero::pbf_tag_type N(auto tag) { return static_cast<protozero::pbf_tag_type>(tag); }

/// An Event with one Summary.Value, whose fields `fill` adds. proto3 omits fields that are zero.
template <typename Fill>
std::string EventWith(double wall_time, std::int64_t step, std::string_view tag, std::size_t room,
                      Fill fill) {
  std::string out;
  out.reserve(room + tag.size() + 64);
  {
    protozero::pbf_writer event(out);
    if (std::bit_cast<std::uint64_t>(wall_time) != 0) event.add_double(N(EventField::kWallTime), wall_time);
    if (step != 0) event.add_int64(N(EventField::kStep), step);
    protozero::pbf_writer summary(event, N(EventField::kSummary));
    protozero::pbf_writer value(summary, N(SummaryField::kValue));
    if (!tag.empty()) value.add_string(N(ValueField::kTag), tag.data(), tag.size());
    fill(value);
  }  // the destructors write the lengths
  return out;
}

void AddPlugin(protozero::pbf_writer* metadata, std::string_view name, const std::string& content) {
  protozero::pbf_writer plugin(*metadata, N(MetadataField::kPluginData));
  plugin.add_string(N(PluginField::kName), name.data(), name.size());
  if (!content.empty()) plugin.add_string(N(PluginField::kContent), content);
}

}  // namespace

DType DTypeOfWire(std::int32_t data_type) noexcept {
  switch (data_type) {
    case 1: return DType::kFloat32;
    case 2: return DType::kFloat64;
    case 3: return DType::kInt32;
    case 4: return DType::kUInt8;
    case 5: return DType::kInt16;
    case 6: return DType::kInt8;
    case 8: return DType::kComplex64;
    case 9: return DType::kInt64;
    case 10: return DType::kBool;
    case 11: return DType::kInt8;   // QINT8: the integers of a quantised tensor
    case 12: return DType::kUInt8;  // QUINT8
    case 13: return DType::kInt32;  // QINT32
    case 14: return DType::kBFloat16;
    case 15: return DType::kInt16;   // QINT16
    case 16: return DType::kUInt16;  // QUINT16
    case 17: return DType::kUInt16;
    case 18: return DType::kComplex128;
    case 19: return DType::kFloat16;
    case 22: return DType::kUInt32;
    case 23: return DType::kUInt64;
    case 24: return DType::kFloat8E5M2;
    case 25: return DType::kFloat8E4M3FN;
    default: return DType::kInvalid;
  }
}

std::int32_t WireOfDType(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32: return 1;
    case DType::kFloat64: return 2;
    case DType::kInt32: return 3;
    case DType::kUInt8: return 4;
    case DType::kInt16: return 5;
    case DType::kInt8: return 6;
    case DType::kComplex64: return 8;
    case DType::kInt64: return 9;
    case DType::kBool: return 10;
    case DType::kBFloat16: return 14;
    case DType::kUInt16: return 17;
    case DType::kComplex128: return 18;
    case DType::kFloat16: return 19;
    case DType::kUInt32: return 22;
    case DType::kUInt64: return 23;
    case DType::kFloat8E5M2: return 24;
    case DType::kFloat8E4M3FN: return 25;
    default: return 0;
  }
}

Result<std::uint64_t> RecordBytesUntrusted(std::span<const std::byte> head, std::uint64_t left,
                                           const std::string& at) {
  if (left < kRecordOverhead || head.size() < kRecordHead) {
    return Corruption("found " + std::to_string(left) + " bytes where a record begins, expected at least 16" +
                      at);
  }
  std::uint64_t length = 0;
  std::uint32_t length_crc = 0;
  std::memcpy(&length, head.data(), sizeof(length));
  std::memcpy(&length_crc, head.data() + 8, sizeof(length_crc));
  if (const std::uint32_t crc = MaskedCrc32c(head.first(8)); crc != length_crc) {
    return Corruption("found checksum " + Hex(length_crc) + " of a record's length, expected " + Hex(crc) +
                      ", so this is no event file or it is damaged" + at);
  }
  if (length > kMaxEventBytes || length > left - kRecordOverhead) {
    return Corruption("found a record of " + std::to_string(length) + " bytes, expected at most " +
                      std::to_string(left - kRecordOverhead) + ": the file is cut off" + at);
  }
  return length + kRecordOverhead;
}

Result<Record> ParseRecordUntrusted(std::span<const std::byte> file, std::uint64_t offset) {
  const std::string at = " at byte " + std::to_string(offset);
  const std::span rest = file.subspan(static_cast<std::size_t>(std::min<std::uint64_t>(offset, file.size())));
  LUFF_ASSIGN_OR_RETURN(
      const std::uint64_t bytes,
      RecordBytesUntrusted(rest.first(std::min(kRecordHead, rest.size())), rest.size(), at));
  const std::byte* p = rest.data();
  const std::uint64_t length = bytes - kRecordOverhead;
  Record record;
  record.payload = {p + 12, static_cast<std::size_t>(length)};
  record.bytes = bytes;
  std::uint32_t footer = 0;
  std::memcpy(&footer, p + 12 + length, sizeof(footer));
  if (footer == kSmdebugFooter) {
    record.footer = RecordFooter::kSmdebug;
  } else if (const std::uint32_t crc = MaskedCrc32c(record.payload); crc != footer) {
    return Corruption("found checksum " + Hex(footer) + " of a record, expected " + Hex(crc) + " or " +
                      Hex(kSmdebugFooter) + at);
  }
  return record;
}

void AppendRecord(std::string_view payload, RecordFooter footer, std::string* to) {
  const std::uint64_t length = payload.size();
  const std::uint32_t length_crc = MaskedCrc32c(std::as_bytes(std::span(&length, 1)));
  const std::uint32_t end =
      footer == RecordFooter::kSmdebug ? kSmdebugFooter : MaskedCrc32c(std::as_bytes(std::span(payload)));
  const auto append = [&](const auto& value) {
    to->append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(length);
  append(length_crc);
  *to += payload;
  append(end);
}

Result<Event> ParseEventUntrusted(std::span<const std::byte> payload) {
  try {
    Event event;
    Message<EventField> message(reinterpret_cast<const char*>(payload.data()), payload.size());
    while (message.next()) {
      if (Is(message, EventField::kWallTime, pbf_wire_type::fixed64)) {
        event.wall_time = message.get_double();
      } else if (Is(message, EventField::kStep, pbf_wire_type::varint)) {
        event.step = message.get_int64();
      } else if (Is(message, EventField::kFileVersion, pbf_wire_type::length_delimited)) {
        event.file_version = Text(message.get_view());
      } else if (Is(message, EventField::kSummary, pbf_wire_type::length_delimited)) {
        Message<SummaryField> summary(message.get_view());
        while (summary.next()) {
          if (Is(summary, SummaryField::kValue, pbf_wire_type::length_delimited)) {
            LUFF_RETURN_IF_ERROR(ReadValue(summary.get_view(), &event.values.emplace_back()));
          } else {
            summary.skip();
          }
        }
      } else {
        message.skip();
      }
    }
    return event;
  } catch (const std::exception& error) {
    return Corruption(std::string("found bytes that are no Event message (") + error.what() + ")");
  }
}

std::string EncodeSmdebugTensor(double wall_time, std::int64_t global_step, const TensorToWrite& tensor) {
  const std::size_t room = tensor.content.size() + (tensor.name.size() + 32) * tensor.shape.size() + 64;
  return EventWith(wall_time, global_step, tensor.name, room, [&](protozero::pbf_writer& value) {
    {
      std::string shape;
      protozero::pbf_writer dims(shape);
      for (const std::int64_t size : tensor.shape) {
        protozero::pbf_writer dim(dims, N(ShapeField::kDim));
        if (size != 0) dim.add_int64(N(DimField::kSize), size);
        dim.add_string(N(DimField::kName), std::string(tensor.name) + "_" + std::to_string(size));
      }
      protozero::pbf_writer proto(value, N(ValueField::kTensor));
      if (const std::int32_t type = WireOfDType(tensor.dtype); type != 0)
        proto.add_int32(N(TensorField::kDType), type);
      proto.add_message(N(TensorField::kShape), shape);
      if (!tensor.content.empty()) {
        proto.add_bytes(N(TensorField::kContent), reinterpret_cast<const char*>(tensor.content.data()),
                        tensor.content.size());
      }
      for (const std::string_view text : tensor.strings)
        proto.add_bytes(N(TensorField::kString), text.data(), text.size());
    }
    protozero::pbf_writer metadata(value, N(ValueField::kMetadata));
    AddPlugin(&metadata, "mode_step", std::to_string(tensor.mode_step));
    AddPlugin(&metadata, "mode", std::to_string(tensor.mode));
  });
}

std::string EncodeFileVersion(double wall_time) {
  std::string out;
  protozero::pbf_writer event(out);
  event.add_double(N(EventField::kWallTime), wall_time);
  event.add_string(N(EventField::kFileVersion), "brain.Event:2");
  return out;
}

std::string EncodeScalar(double wall_time, std::int64_t step, std::string_view tag, double value) {
  return EventWith(wall_time, step, tag, 8, [&](protozero::pbf_writer& to) {
    to.add_float(N(ValueField::kSimpleValue), static_cast<float>(value));
  });
}

std::string EncodeHistogram(double wall_time, std::int64_t step, std::string_view tag,
                            const EventHistogram& histogram) {
  return EventWith(wall_time, step, tag, histogram.limits.size() * 16 + 64, [&](protozero::pbf_writer& to) {
    protozero::pbf_writer proto(to, N(ValueField::kHisto));
    proto.add_double(N(HistogramField::kMin), histogram.min);
    proto.add_double(N(HistogramField::kMax), histogram.max);
    proto.add_double(N(HistogramField::kNum), histogram.num);
    proto.add_double(N(HistogramField::kSum), histogram.sum);
    proto.add_double(N(HistogramField::kSumSquares), histogram.sum_squares);
    proto.add_packed_double(N(HistogramField::kBucketLimit), histogram.limits.begin(),
                            histogram.limits.end());
    proto.add_packed_double(N(HistogramField::kBucket), histogram.counts.begin(), histogram.counts.end());
  });
}

}  // namespace luff::format
