#include "server/job_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "query/testing.h"

namespace luff::server::job_log_test {
namespace {

namespace fs = std::filesystem;

struct Log {
  explicit Log(const std::string& out, const std::string& err, const std::string& times = "") {
    fs::create_directories(run.path() + "/log");
    Put("stdout", out);
    Put("stderr", err);
    Put("times", times);
  }
  void Put(const std::string& name, const std::string& text) {
    std::ofstream(run.path() + "/log/" + name, std::ios::binary) << text;
  }
  query::testing::TempRun run;
};

std::vector<std::string> Texts(const LogPage& page) {
  std::vector<std::string> texts;
  for (const LogLine& line : page.lines) texts.push_back((line.stream == 0 ? "o " : "e ") + line.text);
  return texts;
}

using Lines = std::vector<std::string>;

TEST(JobLog, MergesTheStreamsByTime) {
  const Log log("one\ntwo\nthree\n", "warning\n", "10 4 0\n20 4 8\n30 14 8\n");
  const auto page = ReadLog(log.run.path(), LogPlace{}, false, 1000).value();
  EXPECT_EQ(Texts(page), (Lines{"o one", "e warning", "o two", "o three"}));
  EXPECT_EQ(page.lines[0].unix_ns, 10);
  EXPECT_EQ(page.lines[2].unix_ns, 30);
  EXPECT_EQ(page.next, (LogPlace{14, 8}));
}

TEST(JobLog, GoesOnWhereAPageEnded) {
  Log log("one\ntwo\nthr", "");
  auto page = ReadLog(log.run.path(), LogPlace{}, false, 1000).value();
  EXPECT_EQ(Texts(page), (Lines{"o one", "o two", "o thr"}));
  EXPECT_FALSE(page.lines.back().whole);
  EXPECT_EQ(page.next, (LogPlace{8, 0}));
  log.Put("stdout", "one\ntwo\nthree\nfour\n");
  page = ReadLog(log.run.path(), page.next, false, 1000).value();
  EXPECT_EQ(Texts(page), (Lines{"o three", "o four"}));
}

TEST(JobLog, PagesHoldEveryLineOnce) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += std::to_string(i) + "\n";
  const Log log(text, "");
  Lines forward, backward;
  LogPlace place{};
  while (place[0] < text.size()) {
    const auto page = ReadLog(log.run.path(), place, false, 64).value();
    for (const LogLine& line : page.lines) forward.push_back(line.text);
    place = page.next;
  }
  std::optional<LogPlace> end;
  do {
    const auto page = ReadLog(log.run.path(), end, end.has_value(), 64).value();
    Lines lines;
    for (const LogLine& line : page.lines) lines.push_back(line.text);
    backward.insert(backward.begin(), lines.begin(), lines.end());
    end = page.from;
  } while ((*end)[0] > 0);
  ASSERT_EQ(forward.size(), 1000U);
  EXPECT_EQ(forward[999], "999");
  EXPECT_EQ(forward, backward);
}

TEST(JobLog, TellsWhatWasDropped) {
  Log log(std::string("\0\0\0\0d\nkept\n", 11), "");
  log.Put("dropped", "4 0\n");
  const auto page = ReadLog(log.run.path(), LogPlace{}, false, 1000).value();
  EXPECT_EQ(Texts(page), (Lines{"o kept"}));
  EXPECT_EQ(page.dropped, (LogPlace{4, 0}));
}

TEST(JobLog, LinesCannotControlWhoShowsThem) {
  EXPECT_EQ(PlainLine("10%\r50%\r100%\r"), "100%");
  EXPECT_EQ(PlainLine("\033[1;31mred\033[0m \033]0;title\007x\033]8;;u\033\\y"), "red xy");
  EXPECT_EQ(PlainLine("a\tb\007\xff\u202e"), "a    b\\x07\\xff\\xe2\\x80\\xae");
  EXPECT_EQ(PlainLine("\033["), "");
  EXPECT_EQ(PlainLine("\033]never ends"), "");
  const Log log(std::string(100'000, 'x') + "\n", "");
  const auto page = ReadLog(log.run.path(), LogPlace{}, false, 1 << 20).value();
  EXPECT_EQ(page.lines.at(0).text.size(), kMaxLine);
}

TEST(JobLog, TakesAnythingForTimes) {
  const auto marks =
      ParseLogTimesUntrusted("x\n10 1 1\n5 2 2\n20 0 5\n18446744073709551615 9 9\n30 3 3 3\n40 4 4\n50 5");
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_EQ(marks[1].unix_ns, 40);
  EXPECT_EQ(ParseLogDroppedUntrusted("nonsense"), (LogPlace{0, 0}));
  EXPECT_EQ(ParseLogDroppedUntrusted("7 8\n"), (LogPlace{7, 8}));
}

TEST(JobLog, ReadsNoLinks) {
  const Log log("", "");
  fs::remove(log.run.path() + "/log/stdout");
  EXPECT_EQ(ReadLog(log.run.path(), {}, false, 10).status().code(), StatusCode::kNotFound);
  fs::create_symlink("/etc/passwd", log.run.path() + "/log/stdout");
  EXPECT_EQ(ReadLog(log.run.path(), {}, false, 10).status().code(), StatusCode::kCorruption);
}

}  // namespace
}  // namespace luff::server::job_log_test
