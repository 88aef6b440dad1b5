#include "server/audit.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "luff/base/env.h"
#include "query/testing.h"

namespace luff::server::audit_test {
namespace {

using query::testing::TempRun;

struct Folder {
  TempRun run;
  std::string path = run.path() + "-audit/audit.jsonl";
  ~Folder() { std::filesystem::remove_all(run.path() + "-audit"); }
  [[nodiscard]] std::string Text(const std::string& suffix = "") const {
    return ReadWholeFile(Env::Real(), path + suffix, 64 << 20).value_or("");
  }
};

Request Asks(const std::string& method, const std::string& path) {
  Request request;
  request.method = method;
  request.path = path;
  request.query = {{"token", "hunter2"}};
  request.authorization = "Bearer hunter2";
  request.cookie = "luff_1=hunter2";
  request.body = R"({"token":"hunter2"})";
  request.from = "127.0.0.1";
  return request;
}

TEST(AuditFile, HasLinesOfWhatIsWorthThemAndNoToken) {
  const Folder folder;
  AuditFile audit(folder.path);
  ASSERT_TRUE(audit.Try().ok());
  const Visitor ann{.name = "ann"};
  const std::string run = "/api/v1/runs/x";
  audit.Answered(Asks("POST", "/api/v1/session"), {.status = 401}, nullptr, false);
  audit.Answered(Asks("POST", "/api/v1/session"), {.status = 200}, &ann, false);
  audit.Answered(Asks("GET", run), {.status = 200}, &ann, false);
  audit.Answered(Asks("GET", run + "/value"), {.status = 200}, &ann, true);
  audit.Answered(Asks("POST", run + "/requests"), {.status = 202}, &ann, false);
  audit.Answered(Asks("POST", run + "/requests"), {.status = 403}, &ann, false);
  const std::string text = folder.Text();
  EXPECT_EQ(std::ranges::count(text, '\n'), 5);
  for (const char* event : {"log-in refused", "\"log-in\"", "values", "asked", "\"refused\""})
    EXPECT_NE(text.find(event), std::string::npos) << event << text;
  EXPECT_EQ(text.find("hunter2"), std::string::npos);
  const auto line = TryParseJson(text.substr(0, text.find('\n')));
  EXPECT_EQ(line["from"], "127.0.0.1");
  EXPECT_EQ(line["status"], 401);
}

TEST(AuditFile, NobodyInParticularDrivesNothingOut) {
  const Folder folder;
  AuditFile audit(folder.path);
  ASSERT_TRUE(audit.Try().ok());
  for (int i = 0; i < 1000; ++i) audit.Answered(Asks("GET", "/api/v1/runs"), {.status = 401}, nullptr, false);
  const auto lines = static_cast<std::uint64_t>(std::ranges::count(folder.Text(), '\n'));
  EXPECT_GE(lines, AuditFile::kStrangers);
  EXPECT_LE(lines, 2 * AuditFile::kStrangers);  // a minute may have passed
}

TEST(AuditFile, IsRotated) {
  const Folder folder;
  AuditFile audit(folder.path);
  ASSERT_TRUE(audit.Try().ok());
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(audit.Write("token added", "ann", std::to_string(i)).ok());
    std::filesystem::resize_file(folder.path, AuditFile::kMaxBytes);  // full
  }
  for (const char* suffix : {"", ".1", ".2", ".3", ".4"})
    EXPECT_NE(folder.Text(suffix).find("token added"), std::string::npos) << suffix;
  EXPECT_FALSE(std::filesystem::exists(folder.path + ".5"));
}

TEST(AuditFile, RefusesAFileThatOthersReadAndWhatIsNone) {
  const Folder folder;
  AuditFile audit(folder.path);
  ASSERT_TRUE(audit.Try().ok());
  ASSERT_EQ(chmod(folder.path.c_str(), 0644), 0);
  EXPECT_EQ(audit.Try().code(), StatusCode::kFailedPrecondition);
  std::filesystem::remove(folder.path);
  std::filesystem::create_symlink("/dev/null", folder.path);
  EXPECT_FALSE(audit.Try().ok());
}

}  // namespace
}  // namespace luff::server::audit_test
