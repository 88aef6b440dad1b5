#include "luff/format/event_file.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <string>

#include "luff/format/smdebug.h"

namespace luff::format::event_file_test {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size();) {
    if (hex[i] == ' ') {
      ++i;
      continue;
    }
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
    i += 2;
  }
  return bytes;
}

// Tensor "w" = float32 [[1, 2]] of global step 3, TRAIN step 1, wall time 1, as smdebug 1.0.34 writes it.
const std::string kRecord = FromHex(
    "5100000000000000 9ca1d9bc 09 000000000000f03f 1003 2a44 0a42 0a01 77 4220 0801 1212 1207 0801 1203 "
    "775f31 "
    "1207 0802 1203 775f32 2208 0000803f00000040 4a1b 0a0e 0a09 6d6f64655f73746570 1201 31 0a09 0a04 "
    "6d6f6465 "
    "1201 31 b3c02d06");

TEST(Crc32c, HasTheCheckValueOfItsDefinition) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283U);
  EXPECT_EQ(MaskedCrc32c(Bytes("123456789")), 0xC78AB0E5U);
  EXPECT_EQ(MaskedCrc32c(Bytes("0x12345678")), kSmdebugFooter);
}

RC_GTEST_PROP(Crc32c, IsThatOfItsDefinitionForAnyBytes, (const std::string& text)) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0);
  }
  RC_ASSERT(Crc32c(Bytes(text)) == ~crc);
}

TEST(EventFile, ReadsWhatSmdebugWrites) {
  const auto record = ParseRecordUntrusted(Bytes(kRecord), 0);
  ASSERT_TRUE(record.ok()) << record.status().message();
  EXPECT_EQ(record->bytes, 97U);
  EXPECT_EQ(record->footer, RecordFooter::kSmdebug);
  const auto event = ParseEventUntrusted(record->payload);
  ASSERT_TRUE(event.ok()) << event.status().message();
  EXPECT_EQ(event->step, 3);
  EXPECT_EQ(event->wall_time, 1.0);
  ASSERT_EQ(event->values.size(), 1U);
  const EventValue& value = event->values[0];
  EXPECT_EQ(value.tag, "w");
  ASSERT_EQ(value.kind, EventValue::Kind::kTensor);
  EXPECT_EQ(value.tensor.dtype, DType::kFloat32);
  EXPECT_EQ(value.tensor.shape, (std::vector<std::int64_t>{1, 2}));
  float numbers[2];
  std::memcpy(numbers, value.tensor.content.data(), sizeof(numbers));
  EXPECT_EQ(numbers[1], 2.0F);
  ASSERT_EQ(value.plugins.size(), 2U);
  EXPECT_EQ(value.plugins[0].first, "mode_step");
  EXPECT_EQ(value.plugins[1].second, "1");
}

TEST(EventFile, WritesWhatSmdebugWrites) {
  const std::int64_t shape[] = {1, 2};
  const float numbers[] = {1, 2};
  TensorToWrite tensor;
  tensor.name = "w";
  tensor.dtype = DType::kFloat32;
  tensor.shape = shape;
  tensor.content = std::as_bytes(std::span(numbers));
  tensor.mode_step = 1;
  tensor.mode = 1;
  std::string file;
  AppendRecord(EncodeSmdebugTensor(1.0, 3, tensor), RecordFooter::kSmdebug, &file);
  EXPECT_EQ(file, kRecord);
}

TEST(EventFile, WritesTextsAsSmdebugDoes) {
  const std::int64_t shape[] = {2};
  const std::string_view texts[] = {"ab", "c"};
  TensorToWrite tensor;
  tensor.name = "s";
  tensor.shape = shape;
  tensor.strings = texts;
  tensor.mode = 1;
  const std::string payload = EncodeSmdebugTensor(1.0, 3, tensor);
  EXPECT_NE(payload.find(FromHex("1209 1207 0802 1203 735f32 4202 6162 4201 63")), std::string::npos);
  const auto event = ParseEventUntrusted(Bytes(payload));
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->values[0].tensor.dtype, DType::kString);
  EXPECT_EQ(event->values[0].tensor.strings, (std::vector<std::string_view>{"ab", "c"}));
}

TEST(EventFile, ReadsItsOwnScalarsAndHistograms) {
  std::string file;
  AppendRecord(EncodeFileVersion(1), RecordFooter::kPayloadCrc, &file);
  AppendRecord(EncodeScalar(2, 7, "loss", 0.5), RecordFooter::kPayloadCrc, &file);
  AppendRecord(EncodeHistogram(2, 7, "w", {-1, 1, 3, 0.5, 2, {0, 1}, {1, 2}}), RecordFooter::kPayloadCrc,
               &file);
  std::uint64_t offset = 0;
  std::vector<std::string> seen;
  while (offset < file.size()) {
    const auto record = ParseRecordUntrusted(Bytes(file), offset);
    ASSERT_TRUE(record.ok()) << record.status().message();
    EXPECT_EQ(record->footer, RecordFooter::kPayloadCrc);
    const auto event = ParseEventUntrusted(record->payload);
    ASSERT_TRUE(event.ok());
    for (const EventValue& value : event->values) {
      seen.emplace_back(value.tag);
      if (value.tag == "loss") {
        EXPECT_EQ(value.scalar, 0.5F);
      }
      if (value.tag == "w") {
        EXPECT_EQ(value.histogram.counts, (std::vector<double>{1, 2}));
      }
    }
    if (offset == 0) {
      EXPECT_EQ(event->file_version, "brain.Event:2");
    }
    offset += record->bytes;
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"loss", "w"}));
}

TEST(EventFile, NamesWhatIsWrongAndWhere) {
  const auto told = [](std::string file, std::uint64_t offset = 0) {
    return std::string(ParseRecordUntrusted(Bytes(file), offset).status().message());
  };
  std::string flipped = kRecord;
  flipped[0] ^= 1;
  EXPECT_NE(told(flipped).find("no event file"), std::string::npos) << told(flipped);
  EXPECT_NE(told(kRecord.substr(0, 90)).find("cut off"), std::string::npos);
  EXPECT_NE(told(kRecord, 97).find("at byte 97"), std::string::npos);
  EXPECT_NE(told("PNG").find("expected at least 16"), std::string::npos);
  std::string footer = kRecord;
  footer.back() ^= 1;
  EXPECT_NE(told(footer).find("0x062dc0b3"), std::string::npos);
}

RC_GTEST_PROP(EventFile, AnyByteMayBeAnything, (std::uint8_t byte)) {
  std::string payload = kRecord.substr(12, 81);
  const auto at = *rc::gen::inRange<std::size_t>(0, payload.size());
  payload[at] = static_cast<char>(byte);
  (void)ParseEventUntrusted(Bytes(payload)).ok();  // an error or an event, never a crash
}

constexpr const char* kIndex =
    R"({"meta": {"mode": "TRAIN", "mode_step": 1, "event_file_name": "events/000000000003/000000000003_worker_0.tfevents"}, )"
    R"("tensor_payload": [{"tensorname": "w", "start_idx": 0, "length": 97}], )"
    R"("shape_payload": [{"tensorname": "w", "originalname": "graph/w", "shape": [1, 2]}]})";

TEST(SmdebugIndex, ReadsAndWritesWhatSmdebugWrites) {
  SmdebugIndex index;
  const Status parsed = ParseSmdebugIndexUntrusted(kIndex, &index);
  ASSERT_TRUE(parsed.ok()) << parsed.message();
  EXPECT_EQ(index.mode, Mode::kTrain);
  EXPECT_EQ(index.mode_step, 1);
  ASSERT_EQ(index.tensors.size(), 1U);
  EXPECT_EQ(index.tensors[0].length, 97U);
  ASSERT_EQ(index.shapes.size(), 1U);
  EXPECT_EQ(index.shapes[0].original_name, "graph/w");
  EXPECT_EQ(index.dims, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(FormatSmdebugIndex(index), kIndex);
}

TEST(SmdebugIndex, TakesAnyOrderUnknownKeysAndEscapes) {
  SmdebugIndex index;
  const Status parsed = ParseSmdebugIndexUntrusted(
      R"({"later": [1, {"a": -1.5e3}], "tensor_payload":[{"length":1,"tensorname":"a\u00e4\"\ud83d\ude00","start_idx":0,"x":null}],
          "meta":{"mode":"EVAL","event_file_name":null,"mode_step":0,"new":true}})",
      &index);
  ASSERT_TRUE(parsed.ok()) << parsed.message();
  EXPECT_EQ(index.tensors[0].name, "a\xC3\xA4\"\xF0\x9F\x98\x80");
  std::string python;
  AppendPythonJson(index.tensors[0].name, &python);
  EXPECT_EQ(python, R"("a\u00e4\"\ud83d\ude00")");
}

TEST(SmdebugIndex, BytesThatAreNoTextAreWrittenSoThatTheyCanBeReadAgain) {
  SmdebugIndex index;
  // Half of a surrogate pair, and two characters in more bytes than they need.
  for (const char* bytes : {"\xED\xA0\x80", "\xC1\x81", "\xE0\x80\x81", "\xF0\x80\x80\x81", "\xFF"}) {
    std::string name;
    AppendPythonJson(bytes, &name);
    EXPECT_EQ(name.rfind("\"\\ufffd", 0), 0U) << name;
    const Status parsed = ParseSmdebugIndexUntrusted(
        R"({"meta": {"mode": "EVAL"}, "tensor_payload": [{"start_idx": 0, "length": 1, "tensorname": )" +
            name + "}]}",
        &index);
    EXPECT_TRUE(parsed.ok()) << parsed.message();
  }
}

TEST(SmdebugIndex, NamesWhatIsWrongAndWhere) {
  SmdebugIndex index;
  const auto told = [&](std::string_view json) {
    return std::string(ParseSmdebugIndexUntrusted(json, &index).message());
  };
  EXPECT_EQ(told(""), "found the end of the file at byte 0, expected an object");
  EXPECT_NE(told(R"({"meta": {"mode": "TRAIN", "mode_step": -1}})").find("mode_step"), std::string::npos);
  EXPECT_NE(told(R"({"meta": {"mode": "DREAM"}})").find("modes TRAIN"), std::string::npos);
  EXPECT_NE(told(R"({"meta": {"mode": "TRAIN"}})").find("tensor_payload"), std::string::npos);
  EXPECT_NE(told(R"({"tensor_payload": []})").find("meta"), std::string::npos);
  EXPECT_NE(told(std::string(kIndex) + kIndex).find("expected the end"), std::string::npos);
  EXPECT_NE(told(std::string(100, '[')).find("object"), std::string::npos);
}

TEST(SmdebugNames, AreThoseOfItsFiles) {
  EXPECT_EQ(SmdebugIndexPath(2345, "worker_0"), "index/000000002/000000002345_worker_0.json");
  EXPECT_EQ(SmdebugEventPath(3, "worker_1"), "events/000000000003/000000000003_worker_1.tfevents");
  const auto name = ParseSmdebugIndexName("000000000012__job-worker_replica-0_task-1_device-GPU-0.json");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->step, 12);
  EXPECT_EQ(SmdebugWorkerName(name->worker), "/job:worker/replica:0/task:1/device:GPU:0");
  EXPECT_EQ(SmdebugWorkerName("worker_0"), "worker_0");
  for (const char* bad : {"-00000000001_worker_0.json", "a_b.json", "12.json", "12_.json", "12_w.tmp"})
    EXPECT_FALSE(ParseSmdebugIndexName(bad).has_value()) << bad;
  const auto reduction = ParseSmdebugReduction("smdebug/reductions/abs_mean/fc/w");
  ASSERT_TRUE(reduction.has_value());
  EXPECT_EQ(reduction->tensor, "fc/w");
  EXPECT_TRUE(reduction->abs);
  EXPECT_EQ(reduction->reduction, SmdebugReduction::kMean);
  EXPECT_FALSE(ParseSmdebugReduction("smdebug/reductions/median/w").has_value());
}

}  // namespace
}  // namespace luff::format::event_file_test
