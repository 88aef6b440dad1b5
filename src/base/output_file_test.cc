#include "base/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace luff::output_file_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    std::string name = testing::TempDir() + "luff-output-XXXXXX";
    folder_ = mkdtemp(name.data());
    Put("victim", "mine");
  }
  ~OutputFileTest() override { fs::remove_all(folder_); }

  std::string At(const std::string& name) const { return folder_ + "/" + name; }
  void Put(const std::string& name, const std::string& text) const { std::ofstream(At(name)) << text; }
  std::string Get(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(At(name)).rdbuf();
    return text.str();
  }
  std::size_t Count() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  static Status Write(const std::string& path, Existing existing, std::string_view text) {
    LUFF_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(path, existing));
    LUFF_RETURN_IF_ERROR(file->Append(text));
    return file->Commit();
  }

  std::string folder_;
};

TEST_F(OutputFileTest, IsThereWholeOrNotAtAll) {
  {
    const auto file = OutputFile::Create(At("new"), Existing::kRefuse);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_TRUE((*file)->Append("half").ok());
    EXPECT_FALSE(fs::exists(At("new")));
  }
  EXPECT_EQ(Count(), 1U);
  EXPECT_TRUE(Write(At("new"), Existing::kRefuse, "whole").ok());
  EXPECT_EQ(Get("new"), "whole");
  EXPECT_EQ(Count(), 2U);
}

TEST_F(OutputFileTest, NothingIsReplacedUnasked) {
  const Status refused = Write(At("victim"), Existing::kRefuse, "other");
  EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--force"));
  // A file that appears while ours is written is not replaced either.
  const auto file = OutputFile::Create(At("late"), Existing::kRefuse);
  ASSERT_TRUE(file.ok());
  Put("late", "theirs");
  EXPECT_EQ((*file)->Commit().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Get("late"), "theirs");
  EXPECT_EQ(Get("victim"), "mine");
}

TEST_F(OutputFileTest, AFileThatIsReplacedHandsOnItsMode) {
  chmod(At("victim").c_str(), 0640);
  EXPECT_TRUE(Write(At("victim"), Existing::kReplace, "other").ok());
  EXPECT_EQ(Get("victim"), "other");
  struct stat info{};
  ASSERT_EQ(stat(At("victim").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0640U);
}

TEST_F(OutputFileTest, NoLinkIsFollowedAndNothingElseThanAFileIsWritten) {
  fs::create_symlink("victim", At("link"));
  fs::create_symlink("nowhere", At("dangling"));
  fs::create_directory(At("folder"));
  mkfifo(At("pipe").c_str(), 0600);
  for (const char* name : {"link", "dangling", "folder", "pipe"}) {
    for (const Existing existing : {Existing::kRefuse, Existing::kReplace}) {
      const Status status = Write(At(name), existing, "other");
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name << ": " << status.ToString();
    }
    EXPECT_EQ(BeginLines(At(name)).code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(AppendLine(At(name), "x").code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(Get("victim"), "mine");
  EXPECT_FALSE(fs::exists(At("nowhere")));
}

TEST_F(OutputFileTest, DevicesTakeWhatComes) {
  fs::create_symlink("/dev/null", At("null"));
  EXPECT_TRUE(Write("/dev/null", Existing::kRefuse, "x").ok());
  EXPECT_TRUE(BeginLines(At("null")).ok());
  EXPECT_TRUE(AppendLine(At("null"), "x").ok());
  EXPECT_TRUE(fs::is_symlink(At("null")));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_TRUE(Write("/dev/fd/" + std::to_string(ends[1]), Existing::kRefuse, "told").ok());
  char told[5] = {};
  EXPECT_EQ(read(ends[0], told, 4), 4);
  EXPECT_STREQ(told, "told");
  close(ends[0]);
  close(ends[1]);
}

TEST_F(OutputFileTest, LinesAreAdded) {
  EXPECT_TRUE(BeginLines(At("lines")).ok());
  EXPECT_TRUE(AppendLine(At("lines"), "a").ok());
  EXPECT_TRUE(AppendLine(At("lines"), "b").ok());
  EXPECT_EQ(Get("lines"), "a\nb\n");
  fs::create_hard_link(At("lines"), At("backup"));
  EXPECT_EQ(BeginLines(At("lines")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Get("backup"), "a\nb\n");
  fs::remove(At("backup"));
  EXPECT_TRUE(BeginLines(At("lines")).ok());
  EXPECT_EQ(Get("lines"), "");
}

TEST_F(OutputFileTest, AFolderWritesBelowItselfOnly) {
  fs::create_directory(At("elsewhere"));
  const auto folder = OutputFolder::Open(At("out/deep"));
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  EXPECT_TRUE(folder->Write("a/b/c.txt", "text").ok());
  EXPECT_EQ(Get("out/deep/a/b/c.txt"), "text");
  fs::create_symlink(At("elsewhere"), At("out/deep/way"));
  fs::create_symlink(At("victim"), At("out/deep/file"));
  for (const char* name : {"way/x", "../x", "a/../../x", "/tmp/x", "", "a//x", ".", "file"}) {
    EXPECT_EQ(folder->Write(name, "x").code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(folder->OpenAt(name, 0).status().code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(folder->Remove("way/x").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(fs::is_empty(At("elsewhere")));
  EXPECT_EQ(Get("victim"), "mine");
}

TEST_F(OutputFileTest, WhatDoesNotCountIsCutOff) {
  const auto folder = OutputFolder::Open(folder_);
  ASSERT_TRUE(folder.ok());
  Put("rows", "12345");
  auto file = folder->OpenAt("rows", 3);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->Append("ab").ok());
  EXPECT_TRUE(file->Flush().ok());
  EXPECT_EQ(file->bytes(), 5U);
  EXPECT_EQ(Get("rows"), "123ab");
  EXPECT_EQ(folder->OpenAt("rows", 6).status().code(), StatusCode::kCorruption);
}

}  // namespace
}  // namespace luff::output_file_test
