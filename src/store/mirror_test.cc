#include "luff/store/mirror.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "luff/base/env.h"
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

}  // namespace
}  // namespace luff::store::mirror_test
