// Tests descriptors that other code in the process closes, and directories that are moved.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/interrupted.h"
#include "base/testing/forwarding_env.h"
#include "luff/base/env.h"
#include "luff/base/file_table.h"

namespace luff::file_test {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Descriptor number under which this process has a file open; -1 if it has not.
int NumberOf(const std::string& path) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (fs::read_symlink(entry.path(), ignored) == path) return std::stoi(entry.path().filename().string());
  }
  return -1;
}

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "luff-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = fs::canonical(name).string();
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::unique_ptr<File> Open(const std::string& name) {
    auto file = Env::Real().Open(directory_ + "/" + name, Env::OpenMode::kReadWrite);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return std::move(file).value();
  }
  std::string Text(const std::string& name) {
    return ReadWholeFile(Env::Real(), directory_ + "/" + name, 1 << 20).value();
  }
  std::string directory_;
};

/// Real files; records what is done to them, in order.
class RecordingEnv final : public ForwardingEnv {
 public:
  std::vector<std::string> seen;
  bool syncs = true;

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    LUFF_ASSIGN_OR_RETURN(auto file, Real().Open(path, mode));
    return std::unique_ptr<File>(new RecordingFile(*this, std::move(file)));
  }
  Status SyncDirectory(const std::string& path) override {
    seen.emplace_back("sync directory");
    return Real().SyncDirectory(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    seen.emplace_back("rename");
    return Real().Rename(from, to);
  }
  Status Link(const std::string& from, const std::string& to) override {
    seen.emplace_back("link");
    return Real().Link(from, to);
  }

 private:
  class RecordingFile final : public ForwardingFile {
   public:
    RecordingFile(RecordingEnv& env, std::unique_ptr<File> file)
        : ForwardingFile(std::move(file)),
          env_(env) {}
    Status WriteAt(std::span<const std::byte> bytes, std::uint64_t offset) override {
      env_.seen.emplace_back("write");
      return ForwardingFile::WriteAt(bytes, offset);
    }
    Status Sync() override {
      env_.seen.emplace_back("sync");
      return env_.syncs ? ForwardingFile::Sync() : IoError("sync: Input/output error");
    }

   private:
    RecordingEnv& env_;
  };
};

TEST_F(FileTest, AWholeFileIsSyncedBeforeItGetsItsName) {
  using Seen = std::vector<std::string>;
  const std::string path = directory_ + "/file";
  RecordingEnv env;
  ASSERT_TRUE(WriteWholeFile(env, path, "one").ok());
  EXPECT_EQ(env.seen, (Seen{"write", "sync", "rename", "sync directory"}));
  env.seen.clear();
  EXPECT_EQ(WriteNewFile(env, path, "two").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(env.seen, (Seen{"write", "sync", "link"}));
  env.seen.clear();
  ASSERT_TRUE(WriteNewFile(env, directory_ + "/other", "two").ok());
  EXPECT_EQ(env.seen, (Seen{"write", "sync", "link", "sync directory"}));

  env.syncs = false;
  EXPECT_FALSE(WriteWholeFile(env, path, "three").ok());
  EXPECT_EQ(Text("file"), "one");
  EXPECT_EQ(Text("other"), "two");
  EXPECT_EQ(Env::Real().List(directory_).value(), (Seen{"file", "other"}));  // nothing temporary is left
}

std::atomic<int> g_signals{0};

TEST(InterruptedTest, ACallGoesOnAfterSignalsThatRestartNothing) {
  struct sigaction counts{};
  struct sigaction before{};
  counts.sa_handler = [](int) { ++g_signals; };
  ASSERT_EQ(sigaction(SIGUSR1, &counts, &before), 0);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pthread_t reader = pthread_self();
  std::thread writer([&] {
    while (g_signals < 20) {
      pthread_kill(reader, SIGUSR1);
      std::this_thread::yield();
    }
    EXPECT_EQ(write(ends[1], "x", 1), 1);
  });
  char byte = 0;
  EXPECT_EQ(Uninterrupted([&] { return read(ends[0], &byte, 1); }), 1);
  EXPECT_EQ(byte, 'x');
  writer.join();
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

TEST_F(FileTest, ANumberThatSomebodyElseHasNowIsNeitherWrittenNorClosed) {
  auto ours = Open("ours");
  ASSERT_TRUE(ours->WriteAt(Bytes("ours"), 0).ok());
  const int number = NumberOf(directory_ + "/ours");
  ASSERT_GE(number, 0);
  // The file is gone as well: the next one may get its inode number.
  ASSERT_EQ(unlink((directory_ + "/ours").c_str()), 0);
  ASSERT_EQ(close(number), 0);
  const int low = open((directory_ + "/theirs").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_EQ(write(low, "theirs", 6), 6);
  ASSERT_EQ(dup2(low, number), number);
  EXPECT_EQ(ours->WriteAt(Bytes("more"), 4).code(), StatusCode::kUnavailable);
  EXPECT_EQ(ours->Truncate(0).code(), StatusCode::kUnavailable);
  EXPECT_EQ(ours->Reserve(0, 1 << 20).code(), StatusCode::kUnavailable);
  std::byte read[4];
  EXPECT_EQ(ours->ReadAt(read, 0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(ours->Intact().code(), StatusCode::kUnavailable);
  ours.reset();
  EXPECT_EQ(fcntl(number, F_GETFD), 0) << "closed";
  EXPECT_EQ(Text("theirs"), "theirs");
  close(number);
  close(low);
}

TEST_F(FileTest, AnotherDescriptorOfTheSameFileIsAsGood) {
  auto ours = Open("ours");
  const int number = NumberOf(directory_ + "/ours");
  const int other = open((directory_ + "/ours").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(dup2(other, number), number);
  EXPECT_TRUE(ours->WriteAt(Bytes("ours"), 0).ok());
  close(other);
}

TEST_F(FileTest, NumbersAreHighAndEndWithTheProgram) {
  auto ours = Open("ours");
  const int number = NumberOf(directory_ + "/ours");
  EXPECT_GE(number, 128);
  EXPECT_EQ(fcntl(number, F_GETFD), FD_CLOEXEC);
}

TEST_F(FileTest, AFileThatWasRemovedOrCutOffSaysSo) {
  auto ours = Open("ours");
  ASSERT_TRUE(ours->WriteAt(Bytes("0123456789"), 0).ok());
  EXPECT_TRUE(ours->Intact().ok());
  ASSERT_EQ(truncate((directory_ + "/ours").c_str(), 5), 0);
  EXPECT_EQ(ours->Intact().code(), StatusCode::kCorruption);
  ASSERT_TRUE(ours->Truncate(3).ok());  // by ourselves
  EXPECT_TRUE(ours->Intact().ok());
  fs::remove(directory_ + "/ours");
  EXPECT_EQ(ours->Intact().code(), StatusCode::kNotFound);
}

/// Tries to lock the file in a child in which flock fails with `error`. Returns its exit code: 0 not locked,
/// 1 locked, 2 the kernel does not accept the filter.
int TryLockWhere(int error, File* file) {
  const pid_t child = fork();
  if (child == 0) {
    sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 0, 1),
                            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
                            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program = {std::size(filter), filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      _exit(2);
    _exit(file->TryLock() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WEXITSTATUS(status);
}

TEST_F(FileTest, OnlyAnotherProcessRefusesALock) {
  const auto ours = Open("ours");
  if (TryLockWhere(EWOULDBLOCK, ours.get()) == 2) GTEST_SKIP() << "the kernel takes no filter for calls";
  EXPECT_EQ(TryLockWhere(EWOULDBLOCK, ours.get()), 0);
  for (const int error : {ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL})
    EXPECT_EQ(TryLockWhere(error, ours.get()), 1) << error;
}

TEST_F(FileTest, AThreadWithItsOwnTableIsOutOfReach) {
  const std::string path = directory_ + "/ours";
  std::unique_ptr<File> ours;
  bool own = false;
  const int theirs = open((directory_ + "/theirs").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  std::thread thread([&] {
    own = TakeOwnFileTable();
    if (!own) return;
    EXPECT_NE(CurrentFileTable(), 0U);
    EXPECT_EQ(fcntl(theirs, F_GETFD), -1);
    ours = Open("ours");
    EXPECT_TRUE(ours->WriteAt(Bytes("ours"), 0).ok());
  });
  thread.join();
  if (!own) GTEST_SKIP() << "the kernel keeps one table for a process";
  EXPECT_EQ(CurrentFileTable(), 0U);
  EXPECT_EQ(NumberOf(path), -1);
  EXPECT_EQ(ours->WriteAt(Bytes("more"), 4).code(), StatusCode::kUnavailable) << "of another table";
  ours.reset();  // in this thread, its number may refer to another file
  EXPECT_NE(fcntl(theirs, F_GETFD), -1);
  EXPECT_EQ(Text("ours"), "ours");
  close(theirs);
}

TEST_F(FileTest, AnAnchorIsTheDirectoryAndNotItsName) {
  const std::string run = directory_ + "/run";
  fs::create_directory(run);
  auto env = Env::Anchored(run);
  ASSERT_TRUE(env.ok());
  fs::rename(run, directory_ + "/moved");
  fs::create_directory(run);  // a different directory
  ASSERT_TRUE(WriteWholeFile(**env, run + "/a", "text").ok());
  EXPECT_TRUE(fs::is_empty(run));
  EXPECT_EQ(Text("moved/a"), "text");
  EXPECT_EQ((*env)->List(run).value(), std::vector<std::string>{"a"});
  EXPECT_TRUE((*env)->Exists(run + "/a"));

  // Once its descriptor is closed, the path leads to another directory, which is left alone.
  const int number = NumberOf(directory_ + "/moved");
  ASSERT_GE(number, 0);
  ASSERT_EQ(close(number), 0);
  EXPECT_EQ(WriteWholeFile(**env, run + "/b", "text").code(), StatusCode::kNotFound);
  EXPECT_TRUE(fs::is_empty(run));
  fs::remove(run);
  fs::rename(directory_ + "/moved", run);  // back again
  EXPECT_TRUE(WriteWholeFile(**env, run + "/b", "text").ok());

  fs::remove_all(run);
  EXPECT_FALSE((*env)->Exists(run));
  fs::create_directory(run);
  EXPECT_EQ(WriteWholeFile(**env, run + "/c", "text").code(), StatusCode::kNotFound);
  EXPECT_TRUE(fs::is_empty(run));
}

}  // namespace
}  // namespace luff::file_test
