#include "luff/store/owner.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "luff/store/control.h"
#include "store/test_run.h"

namespace luff::store::owner_test {
namespace {

namespace fs = std::filesystem;
constexpr uid_t kNobody = 65534;

class OwnerTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(CreateRun(path, TestRun(), false, false).ok()); }
  std::uint64_t Stop() const {
    ControlRecord record;
    record.kind = "stop";
    const auto number = WriteControl(path, record);
    return number.ok() ? *number : 0;
  }
  std::size_t Obeyed() const {
    const auto records = ReadCommands(path, 0);
    return records.ok() ? records->size() : 0;
  }
  StatusCode Resumed() const { return CreateRun(path, TestRun(), false, true).status().code(); }

  TemporaryDirectory directory;
  const std::string path = directory.path() + "/run";
};

TEST_F(OwnerTest, ARunOfOnesOwnIsObeyed) {
  EXPECT_TRUE(CheckOwner(path).ok());
  EXPECT_EQ(Stop(), 1U);
  EXPECT_EQ(Obeyed(), 1U);
  fs::create_directory_symlink(path, directory.path() + "/link");
  EXPECT_TRUE(CheckOwner(directory.path() + "/link").ok());
  EXPECT_EQ(CheckOwner(directory.path() + "/missing").code(), StatusCode::kNotFound);
}

TEST_F(OwnerTest, AFolderThatOthersMayWriteIsRefused) {
  EXPECT_EQ(Stop(), 1U);
  for (const char* folder : {"", "/control", "/rules"}) {
    for (const mode_t mode : {0770, 0707, 0777}) {
      ASSERT_EQ(chmod((path + folder).c_str(), mode), 0);
      const Status status = CheckOwner(path);
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << folder << mode;
      EXPECT_NE(status.message().find("chmod go-w"), std::string_view::npos);
      EXPECT_EQ(Resumed(), StatusCode::kFailedPrecondition);
    }
    EXPECT_EQ(Obeyed(), std::string(folder) == "/rules" ? 1U : 0U) << folder;
    ASSERT_EQ(chmod((path + folder).c_str(), 0755), 0);
    EXPECT_TRUE(CheckOwner(path).ok());
    EXPECT_EQ(Obeyed(), 1U);
  }
}

TEST_F(OwnerTest, AFolderOrARecordOfSomebodyElsesIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  EXPECT_EQ(Stop(), 1U);
  for (const char* folder : {"", "/control"}) {
    ASSERT_EQ(chown((path + folder).c_str(), kNobody, kNobody), 0);
    const Status status = CheckOwner(path);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("chown"), std::string_view::npos);
    EXPECT_EQ(Resumed(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(Obeyed(), 0U);
    EXPECT_EQ(ReadControl(path, 0, nullptr)->size(), 1U);  // reading without obeying is allowed
    ASSERT_EQ(chown((path + folder).c_str(), 0, 0), 0);
  }
  // A record that another user planted while the folder was writable.
  ASSERT_EQ(chown((path + "/control/000001.json").c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(Obeyed(), 0U);
}

TEST_F(OwnerTest, ALinkInTheRunIsNoFolderOfIt) {
  const std::string elsewhere = directory.path() + "/elsewhere";
  fs::rename(path + "/control", elsewhere);
  fs::create_directory_symlink(elsewhere, path + "/control");
  EXPECT_FALSE(CheckOwner(path).ok());
  EXPECT_EQ(Obeyed(), 0U);
  fs::remove(path + "/control");
  fs::rename(elsewhere, path + "/control");
  EXPECT_EQ(Stop(), 1U);
  fs::rename(path + "/control/000001.json", directory.path() + "/record");
  fs::create_symlink(directory.path() + "/record", path + "/control/000001.json");
  EXPECT_EQ(Obeyed(), 0U);
}

TEST_F(OwnerTest, EverythingInARunIsItsOwnersAlone) {
  const mode_t before = umask(0);
  const std::string other = directory.path() + "/other";
  ASSERT_TRUE(CreateRun(other, TestRun(), false, false).ok());
  {
    WriterOptions options;
    options.run_path = other;
    auto writer = WorkerWriter::Open(options, TestRun());
    ASSERT_TRUE(writer.ok());
    ControlRecord record;
    record.kind = "note";
    EXPECT_TRUE(WriteControl(other, record).ok());
    EXPECT_TRUE(SupervisorLock::Take(other).ok());
    EXPECT_TRUE((*writer)->Close(format::EndReason::kCompleted).ok());
  }
  umask(before);
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(other)) {
    const bool folder = entry.is_directory();
    files += folder ? 0 : 1;
    EXPECT_EQ(entry.status().permissions(),
              folder ? fs::perms::owner_all : fs::perms::owner_read | fs::perms::owner_write)
        << entry.path();
  }
  EXPECT_GE(files, 5U);
}

TEST_F(OwnerTest, OneSupervisorAtATimeAndNoneAfterACrash) {
  EXPECT_FALSE(SupervisorLock::IsTaken(path));
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t other = fork();
  if (other == 0) {
    const auto lock = SupervisorLock::Take(path);
    const char answer = lock.ok() ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_TRUE(SupervisorLock::IsTaken(path));
  const auto second = SupervisorLock::Take(path);
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find("process " + std::to_string(other)), std::string_view::npos);
  EXPECT_EQ(Resumed(), StatusCode::kAlreadyExists);          // a script that opens a session itself
  EXPECT_TRUE(CreateRun(path, TestRun(), true, true).ok());  // a worker of that supervisor
  kill(other, SIGKILL);
  ASSERT_EQ(waitpid(other, nullptr, 0), other);
  close(ready[0]);
  close(ready[1]);
  EXPECT_FALSE(SupervisorLock::IsTaken(path));
  const auto third = SupervisorLock::Take(path);
  ASSERT_TRUE(third.ok());
  (*third)->Remove();
  EXPECT_FALSE(fs::exists(path + "/supervisor"));
}

TEST_F(OwnerTest, ALockThatIsALinkIsLeftAlone) {
  const std::string precious = directory.path() + "/precious";
  std::ofstream(precious) << "mine";
  fs::create_symlink(precious, path + "/supervisor");
  EXPECT_FALSE(SupervisorLock::Take(path).ok());
  EXPECT_FALSE(SupervisorLock::IsTaken(path));
  EXPECT_EQ(*ReadWholeFile(Env::Real(), precious, 100), "mine");
}

}  // namespace
}  // namespace luff::store::owner_test
