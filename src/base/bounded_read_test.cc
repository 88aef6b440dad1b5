#include "base/bounded_read.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace luff::bounded_read_test {
namespace {

namespace fs = std::filesystem;

class BoundedReadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/luff-read-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
    fs::create_directories(root_ + "/run/w0000");
    fs::create_directory(root_ + "/else");
    Write("run/w0000/live", "inside");
    Write("else/live", "outside");
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ + "/" + name, std::ios::binary) << text;
  }
  [[nodiscard]] Result<std::string> Read(const std::string& name, std::size_t inside = 2) const {
    return ReadRegular(root_ + "/" + name, 100, inside);
  }
  /// Reads with OpenBeneathByWalking. On failure returns "" and sets errno.
  [[nodiscard]] std::string Walked(const std::string& names) const {
    const int root = open((root_ + "/run").c_str(), O_PATH | O_DIRECTORY);
    const int fd = OpenBeneathByWalking(root, names);
    const int error = errno;
    char text[100] = {};
    const ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text));
    if (fd >= 0) close(fd);
    close(root);
    errno = fd < 0 ? error : 0;
    return {text, static_cast<std::size_t>(std::max<ssize_t>(0, got))};
  }

  std::string root_;
};

TEST_F(BoundedReadTest, ReadsAFile) {
  EXPECT_EQ(Read("run/w0000/live").value(), "inside");
  EXPECT_EQ(Read("run//w0000///live").value(), "inside");
  EXPECT_EQ(Walked("w0000/live"), "inside");
  EXPECT_EQ(Read("run/w0000/none").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Read("run/none/live").status().code(), StatusCode::kNotFound);
  // The user's path to the directory may contain links, paths below it may not.
  fs::create_symlink(root_ + "/run", root_ + "/link");
  EXPECT_EQ(Read("link/w0000/live").value(), "inside");
  EXPECT_EQ(Read("link/w0000/live", 3).status().code(), StatusCode::kCorruption);
}

TEST_F(BoundedReadTest, FollowsNoLinkInside) {
  fs::create_symlink(root_ + "/else/live", root_ + "/run/w0000/file");
  fs::create_symlink("live", root_ + "/run/w0000/near");
  fs::create_symlink(root_ + "/else", root_ + "/run/w0001");
  fs::create_symlink("nowhere", root_ + "/run/w0000/dangling");
  fs::create_symlink("/dev/zero", root_ + "/run/w0000/zero");
  for (const char* name : {"w0000/file", "w0000/near", "w0001/live", "w0000/dangling", "w0000/zero"}) {
    const auto read = Read(std::string("run/") + name);
    EXPECT_EQ(read.status().code(), StatusCode::kCorruption) << name;
    EXPECT_NE(read.status().message().find("found a link, expected a file"), std::string::npos);
    EXPECT_EQ(Walked(name), "") << name;
    EXPECT_EQ(errno, ELOOP) << name;
  }
  EXPECT_EQ(Read("run/../else/live", 3).status().code(), StatusCode::kCorruption);
  EXPECT_EQ(Walked("../else/live"), "");
  EXPECT_EQ(errno, EXDEV);
  EXPECT_EQ(Read("run/w0000/file", 0).value(), "outside");  // named by the user
}

TEST_F(BoundedReadTest, ReadsRegularFilesOnly) {
  ASSERT_EQ(mkfifo((root_ + "/run/w0000/pipe").c_str(), 0600), 0);
  fs::create_directory(root_ + "/run/w0000/folder");
  for (const char* name : {"run/w0000/pipe", "run/w0000/folder"})
    EXPECT_EQ(Read(name).status().code(), StatusCode::kCorruption) << name;
  EXPECT_EQ(ReadRegular("/dev/zero", 100, 0).status().code(), StatusCode::kCorruption);
}

TEST_F(BoundedReadTest, ReadsNoMoreThanTheLimit) {
  Write("run/w0000/exact", std::string(100, 'x'));
  EXPECT_EQ(Read("run/w0000/exact").value().size(), 100U);
  Write("run/w0000/more", std::string(101, 'x'));
  EXPECT_EQ(Read("run/w0000/more").status().code(), StatusCode::kOutOfRange);
  // 40 GB that take no space.
  Write("run/w0000/sparse", "");
  fs::resize_file(root_ + "/run/w0000/sparse", 40ULL << 30);
  const auto sparse = ReadRegular(root_ + "/run/w0000/sparse", 1 << 20, 2);
  EXPECT_EQ(sparse.status().code(), StatusCode::kOutOfRange);
  EXPECT_NE(sparse.status().message().find("found 42949672960 bytes, expected at most 1048576"),
            std::string::npos);
}

TEST_F(BoundedReadTest, ReadsFilesOfTheKernel) {
  EXPECT_NE(ReadKernelFile("/proc/self/stat").find(')'), std::string::npos);
  EXPECT_EQ(ReadKernelFile("/proc/self/maps", 10).size(), 10U);
  EXPECT_EQ(ReadKernelFile("/proc/self/none"), "");
}

}  // namespace
}  // namespace luff::bounded_read_test
