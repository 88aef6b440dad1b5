#pragma once
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include <gtest/gtest.h>

#include "luff/store/control.h"

namespace luff::actions::testing {

/// A directory that is a run as far as commands go: its document and an empty control log.
class RunFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "luff-actions-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    run_ = name;
    std::filesystem::create_directory(run_ + "/control");
    std::ofstream(run_ + "/run.json") << R"({"run_id":"00ff"})";
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(run_, ignored);
  }
  [[nodiscard]] std::vector<store::ControlRecord> Log() const {
    auto records = store::ReadControl(run_, 0, nullptr);
    EXPECT_TRUE(records.ok());
    return records.ok() ? std::move(records).value() : std::vector<store::ControlRecord>{};
  }

  std::string run_;
};

}  // namespace luff::actions::testing
