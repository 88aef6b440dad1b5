#include "luff/store/mirror.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "luff/base/env.h"
#include "luff/format/footer.h"
#include "store/test_run.h"

namespace luff::store::mirror_test {
namespace {

/// Answers lines on a socket, as the fetcher does.
class Fetcher {
 public:
  Fetcher(const std::string& folder, std::function<std::string(const std::string&)> answer)
      : answer_(std::move(answer)) {
    listener_ = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder + "/socket";
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(
        bind(listener_, static_cast<const sockaddr*>(static_cast<const void*>(&address)), sizeof(address)),
        0);
    EXPECT_EQ(listen(listener_, 8), 0);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Fetcher() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;
  std::atomic<int> asked{0};
  std::atomic<bool> hangs_up{false};  // after each answer

 private:
  void Serve() {
    for (;;) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      std::string line;
      char byte = 0;
      while (read(fd, &byte, 1) == 1) {
        if (byte != '\n') {
          line += byte;
          continue;
        }
        ++asked;
        const std::string answer = answer_(line);
        line.clear();
        if (answer.empty()) break;                                   // hangs up
        (void)send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);  // the reader may have hung up
        if (hangs_up) break;
      }
      close(fd);
    }
  }
  std::function<std::string(const std::string&)> answer_;
  int listener_ = -1;
  std::thread thread_;
};

class MirrorTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) const { std::ofstream(folder.path() + "/mirror.json") << text; }
  void WriteGood(const std::string& more = "") const {
    Write(
        R"({"format": "luff-mirror", "url": "s3://b/x", "host_unix_ns": 77, "workers": [[3, 55, true]], "socket": ")" +
        folder.path() + "/socket\"" + more + "}");
  }
  TemporaryDirectory folder;
};

TEST_F(MirrorTest, AnOrdinaryRunIsNone) {
  EXPECT_EQ(Mirror::Of(folder.path()), nullptr);
  for (const char* text :
       {"", "[]", "{}", R"({"format": "luff-mirror"})", R"({"format": "luff-mirror", "socket": 1})",
        R"({"format": "luff-mirror", "socket": "/tmp/other"})", "{\"format\": \"luff-mirror\""}) {
    Write(text);
    EXPECT_EQ(Mirror::Of(folder.path()), nullptr) << text;
  }
}

TEST_F(MirrorTest, TellsTimesOfHostsAndWhatTheHeadSays) {
  WriteGood(R"(, "behind": true, "ended": 1, "problem": "no network", "sent": -5)");
  const auto mirror = Mirror::Of(folder.path());
  ASSERT_NE(mirror, nullptr);
  EXPECT_EQ(mirror->TimeOf(3), 55);
  EXPECT_TRUE(mirror->EndedOf(3));
  EXPECT_EQ(mirror->TimeOf(4), 77);
  EXPECT_FALSE(mirror->EndedOf(4));
  const Mirror::State& state = mirror->Look();
  EXPECT_TRUE(state.behind);
  EXPECT_FALSE(state.ended);  // no truth value
  EXPECT_EQ(state.url, "s3://b/x");
  EXPECT_EQ(state.problem, "no network");
  EXPECT_EQ(state.sent_bytes, 0U);
}

TEST_F(MirrorTest, WithoutFetcherNothingIsAskedAndTheErrorSaysWhatToDo) {
  WriteGood();
  const auto mirror = Mirror::Of(folder.path());
  const Status status = mirror->Need(0, 1, 0, 10);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("open its URL again: s3://b/x"), std::string::npos);
  EXPECT_EQ(mirror->missed(), 1U);
}

TEST_F(MirrorTest, AnswersBecomeCodes) {
  WriteGood();
  std::string next = R"({"ok": true})";
  Fetcher fetcher(folder.path(), [&](const std::string& line) {
    return (line.find("follow") != std::string::npos ? R"({"ok": true})" : next) + "\n";
  });
  const auto mirror = Mirror::Of(folder.path());
  EXPECT_TRUE(mirror->Need(0, 1, 0, 10).ok());
  next = R"({"ok": false, "gone": true, "error": "deleted"})";
  EXPECT_EQ(mirror->Need(0, 1, 0, 10).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(mirror->missed(), 0U);
  next = R"({"ok": false, "later": true, "error": "not yet"})";
  EXPECT_EQ(mirror->Need(0, 1, 0, 10).code(), StatusCode::kUnavailable);
  next = R"({"ok": true})";
  EXPECT_TRUE(mirror->Need(0, 1, 0, 10).ok());  // "later" is asked again at once
  next = "nonsense";
  EXPECT_EQ(mirror->Need(0, 1, 0, 10).code(), StatusCode::kUnavailable);
  const int asked = fetcher.asked;
  EXPECT_EQ(mirror->Need(0, 1, 0, 10).code(), StatusCode::kUnavailable);
  EXPECT_EQ(fetcher.asked, asked);  // a failure that took its time fails at once for a while
  EXPECT_EQ(mirror->missed(), 3U);
}

TEST_F(MirrorTest, AFetcherThatWasStartedAnewIsFollowed) {
  WriteGood();
  Fetcher fetcher(folder.path(), [](const std::string&) { return std::string("{\"ok\": true}\n"); });
  fetcher.hangs_up = true;
  const auto mirror = Mirror::Of(folder.path());
  EXPECT_EQ(fetcher.asked, 1);
  const std::int64_t end = Env::Real().NowMonotonicNs() + 10'000'000'000;
  while (fetcher.asked < 2 && Env::Real().NowMonotonicNs() < end) (void)mirror->Look();
  EXPECT_GE(fetcher.asked, 2);
}

TEST_F(MirrorTest, LargeValuesAreAskedForInPieces) {
  WriteGood();
  Fetcher fetcher(folder.path(), [](const std::string&) { return std::string("{\"ok\": true}\n"); });
  const auto mirror = Mirror::Of(folder.path());
  EXPECT_TRUE(mirror->Need(0, 1, 0, (std::uint64_t{100} << 20)).ok());
  EXPECT_EQ(fetcher.asked, 1 + 4);
}

TEST_F(MirrorTest, AFetcherThatHangsUpOrTalksWithoutEndIsGivenUp) {
  WriteGood();
  std::atomic<bool> talks = false;  // while the other thread answers
  Fetcher fetcher(folder.path(), [&](const std::string& line) {
    if (line.find("follow") != std::string::npos) return std::string("{\"ok\": true}\n");
    return talks ? std::string(1 << 20, 'x') : std::string();
  });
  EXPECT_EQ(Mirror::Of(folder.path())->Need(0, 1, 0, 10).code(), StatusCode::kUnavailable);
  talks = true;
  EXPECT_EQ(Mirror::Of(folder.path())->Need(0, 1, 0, 10).code(), StatusCode::kUnavailable);
}

/// A copy of a run whose only segment is sealed, and has zeros where its columns belong.
class CopyWithHoles : public MirrorTest {
 protected:
  void SetUp() override {
    WriterOptions options;
    options.run_path = run;
    ASSERT_TRUE(CreateRun(run, TestRun(), false, false).ok());
    auto writer = WorkerWriter::Open(options, TestRun());
    ASSERT_TRUE(writer.ok());
    StepBatch names;
    names.tensors = {Def(0, "a"), Def(1, "b")};
    ASSERT_TRUE((*writer)->PublishLoose(names).ok());
    for (std::int64_t step = 0; step < 40; ++step) {
      StepBatch batch;
      batch.summaries = {SummaryOf(0, step), SummaryOf(1, step)};
      batch.mark = MarkOf(step);
      ASSERT_TRUE((*writer)->PublishStep(batch).ok());
    }
    ASSERT_TRUE((*writer)->Close(format::EndReason::kCompleted).ok());
    std::ifstream in(segment, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
    const auto read = [&](std::uint64_t at, std::uint64_t bytes) -> Result<std::span<const std::byte>> {
      return std::as_bytes(std::span(whole)).subspan(at, bytes);
    };
    const auto footer = format::FooterDirectory::ReadUntrusted(whole.size(), 1, read);
    ASSERT_TRUE(footer.ok()) << footer.status().ToString();
    const auto tensors = footer->ReadTensorsUntrusted(read);
    ASSERT_TRUE(tensors.ok());
    from = *footer->PlaceOf(format::FooterDirectory::SummarySection(tensors->front()));
    end = *footer->PlaceOf(footer->head().tensors) < from ? *footer->PlaceOf(footer->head().defs)
                                                          : *footer->PlaceOf(footer->head().tensors);
    Put(from, std::string(end - from, '\0'));
    std::ofstream(run + "/mirror.json")
        << R"({"format": "luff-mirror", "url": "s3://b/x", "ended": true, "socket": ")" + folder.path() +
               "/socket\"}";
  }
  void Put(std::uint64_t at, const std::string& bytes) const {
    std::fstream out(segment, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(at));
    out << bytes;
  }
  [[nodiscard]] std::string Told(bool all) const {
    const std::string size = std::to_string(whole.size());
    return all ? "{\"ok\": true, \"have\": [[0, " + size + "]]}\n"
               : "{\"ok\": true, \"have\": [[0, " + std::to_string(from) + "], [" + std::to_string(end) +
                     ", " + size + "]]}\n";
  }
  const std::string run = folder.path() + "/copy", segment = run + "/w0000/m-000001.lfm";
  std::string whole;
  std::uint64_t from = 0, end = 0;  // of the columns
};

TEST_F(CopyWithHoles, ColumnsAreAskedForWhenTheyAreReadAndOnce) {
  std::atomic<int> asked_for_columns = 0;
  Fetcher fetcher(folder.path(), [&](const std::string& line) -> std::string {
    if (line.find("rows") == std::string::npos) return "{\"ok\": true}\n";
    if (line.find("\"from\":" + std::to_string(from)) == std::string::npos) return Told(false);
    ++asked_for_columns;
    Put(from, whole.substr(from, end - from));
    return Told(true);
  });
  const auto reader = RunReader::Open(run);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  ASSERT_EQ((*reader)->workers().size(), 1U);
  const WorkerReader& worker = *(*reader)->workers()[0];
  ASSERT_EQ(worker.segments().size(), 1U);
  const SegmentReader& sealed = *worker.segments()[0];
  EXPECT_TRUE(sealed.sealed());
  EXPECT_EQ(sealed.steps().size(), 40U);
  EXPECT_EQ(asked_for_columns, 0);
  for (const std::uint32_t tensor : {0U, 1U, 0U}) {
    const auto rows = sealed.Summaries(*sealed.FindSlot(tensor), Again::kNo);
    ASSERT_TRUE(rows.ok()) << rows.status().ToString();
    ASSERT_EQ(rows->size(), 40U);
    EXPECT_EQ(rows->sum[39], SummaryOf(tensor, 39).sum);
  }
  EXPECT_EQ(asked_for_columns, 1);
}

TEST_F(CopyWithHoles, ColumnsThatDoNotComeAreAnErrorAndNeverZeros) {
  Fetcher fetcher(folder.path(), [&](const std::string& line) -> std::string {
    if (line.find("\"from\":" + std::to_string(from)) == std::string::npos) return Told(false);
    return "{\"ok\": false, \"later\": true, \"error\": \"not uploaded yet\"}\n";
  });
  const auto reader = RunReader::Open(run);
  ASSERT_TRUE(reader.ok());
  const SegmentReader& sealed = *(*reader)->workers()[0]->segments()[0];
  const auto rows = sealed.Summaries(0);
  EXPECT_EQ(rows.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ((*reader)->mirror()->missed(), 1U);
  SegmentSweep sweep;
  sweep.Begin(sealed);
  EXPECT_EQ(sweep.Summaries(0).status().code(), StatusCode::kUnavailable);
}

TEST_F(CopyWithHoles, WhatOpensASegmentIsFetchedIfItIsNotThere) {
  const std::uint64_t tail = whole.size() - 64;
  std::uint64_t footer = 0;
  std::memcpy(&footer, whole.data() + tail + 8, sizeof(footer));
  Put(footer + 64, std::string(32, '\0'));  // of the footer's head
  std::atomic<int> asked_for_all = 0;
  Fetcher fetcher(folder.path(), [&](const std::string& line) -> std::string {
    if (line.find("\"from\":0,") != std::string::npos || line.find("\"from\":0}") != std::string::npos) {
      ++asked_for_all;
      Put(0, whole);
    }
    return line.find("rows") == std::string::npos ? "{\"ok\": true}\n" : Told(true);
  });
  const auto reader = RunReader::Open(run);
  ASSERT_TRUE(reader.ok());
  const WorkerReader& worker = *(*reader)->workers()[0];
  ASSERT_EQ(worker.segments().size(), 1U);
  EXPECT_TRUE(worker.segments()[0]->sealed());
  EXPECT_TRUE(worker.problems().empty());
  EXPECT_EQ(asked_for_all, 1);
}

}  // namespace
}  // namespace luff::store::mirror_test
