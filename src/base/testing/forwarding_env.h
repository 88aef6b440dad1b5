#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "luff/base/env.h"

/// Forwards to real files. Tests derive from these classes and override what they need.
namespace luff {

class ForwardingFile : public File {
 public:
  explicit ForwardingFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
  Status WriteAt(std::span<const std::byte> bytes, std::uint64_t offset) override {
    return file_->WriteAt(bytes, offset);
  }
  Result<std::size_t> ReadAt(std::span<std::byte> bytes, std::uint64_t offset) override {
    return file_->ReadAt(bytes, offset);
  }
  Result<std::uint64_t> Size() override { return file_->Size(); }
  Status Truncate(std::uint64_t size) override { return file_->Truncate(size); }
  Status Sync() override { return file_->Sync(); }
  Status Reserve(std::uint64_t offset, std::uint64_t bytes) override { return file_->Reserve(offset, bytes); }
  void WriteBack(std::uint64_t offset, std::uint64_t bytes, bool finish) noexcept override {
    file_->WriteBack(offset, bytes, finish);
  }
  bool TryLock() noexcept override { return file_->TryLock(); }

 private:
  std::unique_ptr<File> file_;
};

class ForwardingEnv : public Env {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    return Real().Open(path, mode);
  }
  Status MakeDirectories(const std::string& path) override { return Real().MakeDirectories(path); }
  Status MakeDirectory(const std::string& path) override { return Real().MakeDirectory(path); }
  Result<std::vector<std::string>> List(const std::string& path) override { return Real().List(path); }
  Status SyncDirectory(const std::string& path) override { return Real().SyncDirectory(path); }
  Status Rename(const std::string& from, const std::string& to) override { return Real().Rename(from, to); }
  Status Link(const std::string& from, const std::string& to) override { return Real().Link(from, to); }
  Status Remove(const std::string& path) override { return Real().Remove(path); }
  bool Exists(const std::string& path) noexcept override { return Real().Exists(path); }
  std::int64_t NowUnixNs() noexcept override { return Real().NowUnixNs(); }
  std::int64_t NowMonotonicNs() noexcept override { return Real().NowMonotonicNs(); }
};

}  // namespace luff
