#include "catalog/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "catalog/labels.h"
#include "query/testing.h"

namespace luff::catalog {
namespace {

namespace fs = std::filesystem;
using query::testing::Writing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CatalogTest : public ::testing::Test {
 protected:
  CatalogTest() {
    std::string pattern = (fs::temp_directory_path() / "luff-catalog-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    index_ = root_ + "/home/catalog.sqlite3";
    fs::create_directories(folder());
  }
  ~CatalogTest() override { fs::remove_all(root_); }

  [[nodiscard]] std::string folder() const { return root_ + "/runs"; }
  [[nodiscard]] std::string Path(const std::string& name) const { return folder() + "/" + name; }

  void Make(const std::string& name, double loss, format::EndReason end = format::EndReason::kCompleted) {
    fs::create_directories(fs::path(Path(name)).parent_path());
    Writing w(Path(name), 0, 1);
    w.Define(0, "loss", 1, format::Role::kLoss);
    for (int step = 0; step < 3; ++step) {
      w.AddScalar(0, loss);
      w.Step();
    }
    w.Close(end);
    usleep(2000);  // the next one begins later
  }

  Answer Asked(const std::string& where = "", const std::string& sort = "begun", bool ascending = false) {
    Question question;
    question.folder = folder();
    question.sort = sort;
    question.ascending = ascending;
    if (!where.empty()) {
      auto condition = ParseCondition(where);
      EXPECT_TRUE(condition.ok()) << condition.status().ToString();
      question.where = *condition;
    }
    read_ = 0;
    auto answer = Ask(index_, question, [this](std::size_t done, std::size_t) { read_ = done; });
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    return answer.ok() ? *answer : Answer();
  }
  std::vector<std::string> Names(const std::string& where = "", const std::string& sort = "begun",
                                 bool ascending = false) {
    std::vector<std::string> names;
    for (const Entry& entry : Asked(where, sort, ascending).entries) names.push_back(entry.name);
    return names;
  }

  std::string root_, index_;
  std::size_t read_ = 0;  // runs that the last question had to read
};

TEST_F(CatalogTest, ListsTheNewestFirstAndReadsEachOnce) {
  Make("a", 3);
  Make("sweep/b", 1);
  Make("sweep/deep/c", 2);
  fs::create_directories(Path("no run/at all"));
  EXPECT_THAT(Names(), ElementsAre("sweep/deep/c", "sweep/b", "a"));
  EXPECT_EQ(read_, 3U);
  EXPECT_THAT(Names("", "loss", true), ElementsAre("sweep/b", "sweep/deep/c", "a"));
  EXPECT_EQ(read_, 0U);
  EXPECT_THAT(Names("", "loss"), ElementsAre("a", "sweep/deep/c", "sweep/b"));
  EXPECT_THAT(Names("", "begun", true), ElementsAre("a", "sweep/b", "sweep/deep/c"));
  EXPECT_EQ(Asked().entries[0].age, 1U);
  EXPECT_EQ(Asked("loss > 2.5").entries[0].age, 3U);
}

TEST_F(CatalogTest, SelectsByFields) {
  Make("a", 3);
  Make("b", 1, format::EndReason::kException);
  ASSERT_TRUE(ChangeLabel(Path("a"), {.add = {"good", "Night"}}).ok());
  EXPECT_THAT(Names("loss < 2"), ElementsAre("b"));
  EXPECT_THAT(Names("verdict = failed and loss = 1"), ElementsAre("b"));
  EXPECT_THAT(Names("not verdict = failed"), ElementsAre("a"));
  EXPECT_THAT(Names("tag = good"), ElementsAre("a"));
  EXPECT_THAT(Names("tag != good"), IsEmpty());  // b has no tag
  EXPECT_THAT(Names("not tag = good"), ElementsAre("b"));
  EXPECT_THAT(Names("why ~ EXCEPTION"), ElementsAre("b"));
  EXPECT_THAT(Names("name = a or name = 'b'"), ElementsAre("b", "a"));
  EXPECT_THAT(Names("steps >= 3 and loss.min <= 1"), ElementsAre("b"));
  EXPECT_THAT(Names("begun > 2020-01-01 and took < 1000d and rule = DeadRelu"), IsEmpty());
  EXPECT_THAT(Names("name = \"x' OR '1'='1\""), IsEmpty());
  Question question;
  question.folder = folder();
  question.tags = {"good", "Night"};
  EXPECT_EQ(Ask(index_, question)->entries.size(), 1U);
}

TEST_F(CatalogTest, AFieldThatNoRunHasIsAnError) {
  Make("a", 3);
  Question question;
  question.folder = folder();
  question.where = *ParseCondition("los < 3");
  const auto answer = Ask(index_, question);
  ASSERT_FALSE(answer.ok());
  EXPECT_THAT(std::string(answer.status().message()),
              HasSubstr("no run has a field 'los' (column 1); nearest: loss"));
  question.where = *ParseCondition("name = a or (steps > 1 and ls < 3)");
  EXPECT_THAT(std::string(Ask(index_, question).status().message()), HasSubstr("'ls' (column 28)"));
  question.where.reset();
  question.sort = "zzz";
  EXPECT_THAT(std::string(Ask(index_, question).status().message()),
              HasSubstr("no run has a field 'zzz'; there are "));
  question.where = *ParseCondition("verdict = okay");
  EXPECT_THAT(std::string(Ask(index_, question).status().message()),
              HasSubstr("there is no verdict 'okay'; there are running, ok,"));
  question.where.reset();
  question.sort = "los";
  EXPECT_FALSE(Ask(index_, question).ok());
}

TEST_F(CatalogTest, SeesWhatChanges) {
  Make("a", 3);
  Make("b", 1);
  EXPECT_EQ(Names().size(), 2U);
  ASSERT_TRUE(ChangeLabel(Path("a"), {.add = {"late"}, .title = "the last one"}).ok());
  EXPECT_THAT(Names("tag = late"), ElementsAre("a"));
  EXPECT_EQ(read_, 1U);
  EXPECT_THAT(Names("title ~ last"), ElementsAre("a"));
  fs::remove_all(Path("b"));
  EXPECT_THAT(Names(), ElementsAre("a"));
  Make("b", 7);
  EXPECT_THAT(Names("loss > 5"), ElementsAre("b"));
  {
    Writing w(Path("a"), 0, 1, true);
    w.Define(0, "loss", 1, format::Role::kLoss);
    w.AddScalar(0, 0.5);
    w.Step();
    EXPECT_THAT(Names("verdict = running"), ElementsAre("a"));
    w.Close();
  }
  EXPECT_THAT(Names("loss < 1 and verdict = ok"), ElementsAre("a"));
}

TEST_F(CatalogTest, ADamagedIndexIsMadeAnew) {
  Make("a", 3);
  EXPECT_EQ(Names().size(), 1U);
  const auto size = fs::file_size(index_);
  std::ofstream(index_, std::ios::binary) << "this is no database, but as long as one";
  EXPECT_THAT(Names(), ElementsAre("a"));
  // Bytes of any page are spoiled.
  for (std::uint64_t at = 0; at < size; at += 512) {
    {
      std::fstream file(index_, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(static_cast<std::streamoff>(at));
      file << std::string(512, static_cast<char>(at / 512));
    }
    Question question;
    question.folder = folder();
    const auto answer = Ask(index_, question);
    ASSERT_TRUE(answer.ok()) << at << " " << answer.status().ToString();
    fs::remove(index_);
    EXPECT_EQ(Names().size(), 1U);
  }
}

TEST_F(CatalogTest, WorksWithoutAnIndex) {
  Make("a", 3);
  index_ = "";
  EXPECT_THAT(Names(), ElementsAre("a"));
  fs::create_directories(root_ + "/home/catalog.sqlite3");  // a directory of that name
  index_ = root_ + "/home/catalog.sqlite3";
  const Answer answer = Asked();
  EXPECT_EQ(answer.entries.size(), 1U);
  EXPECT_THAT(answer.notes, ElementsAre(HasSubstr("all runs were read again")));
}

TEST_F(CatalogTest, ShowsADamagedRun) {
  Make("a", 3);
  std::ofstream(Path("a") + "/run.json") << "{}";
  const Answer answer = Asked();
  ASSERT_EQ(answer.entries.size(), 1U);
  EXPECT_EQ(answer.entries[0].verdict, "damaged");
  EXPECT_THAT(answer.entries[0].why, HasSubstr("run.json"));
}

TEST_F(CatalogTest, FollowsNoLinks) {
  Make("a", 3);
  fs::create_directory_symlink(folder(), Path("loop"));
  fs::create_directory_symlink(Path("a"), Path("again"));
  EXPECT_THAT(Names(), ElementsAre("a"));
}

class FindRunTest : public CatalogTest {
 protected:
  FindRunTest() { setenv("LUFF_HOME", root_.c_str(), 1); }
  ~FindRunTest() override { unsetenv("LUFF_HOME"); }
  [[nodiscard]] std::string Found(const std::string& meant) const {
    const auto run = FindRun(meant);
    return run.ok() ? fs::relative(*run, folder()).string() : std::string(run.status().message());
  }
};

TEST_F(FindRunTest, ByPathNameOrAge) {
  Make("20260101-train", 1);
  Make("20260102-train", 1);
  Make("20260102-tune", 1);
  EXPECT_EQ(Found(Path("20260101-train")), "20260101-train");
  EXPECT_EQ(Found("20260101-train"), "20260101-train");
  EXPECT_EQ(Found("20260101"), "20260101-train");
  EXPECT_EQ(Found("@1"), "20260102-tune");
  EXPECT_EQ(Found("@3"), "20260101-train");
  EXPECT_EQ(Found(folder() + "/@2"), "20260102-train");
  EXPECT_THAT(Found("20260102"),
              HasSubstr("several runs begin with '20260102': 20260102-train, 20260102-tune"));
  EXPECT_THAT(Found("20260101-trian"), HasSubstr("nearest: 20260101-train"));
  EXPECT_THAT(Found("@4"), HasSubstr("there is no run @4, the oldest one is @3"));
  EXPECT_THAT(Found("some/where"), HasSubstr("there is no such directory: some/where"));
  EXPECT_EQ(Found("nosuch"),
            "there is no directory 'nosuch', and no run of this name; `luff runs` lists the runs");
  for (const char* age : {"@0", "@", "@x", "@999999999999"})
    EXPECT_THAT(Found(age), HasSubstr("is no age of a run: @1 is the newest"));
}

}  // namespace
}  // namespace luff::catalog
