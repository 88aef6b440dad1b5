#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/env.h"

namespace luff::store {

/// What a writer must know about earlier epochs in a worker's folder.
struct EarlierEpochs {
  std::uint32_t next_epoch = 1;
  std::uint64_t next_meta_sequence = 1, next_data_sequence = 1;
  std::uint64_t next_ordinal = 0;
  std::int64_t train_steps = 0;
  struct MetaFile {
    std::uint64_t sequence = 0, bytes = 0;
    std::uint32_t generation = 0, epoch = 0;
    bool sealed = false;
  };
  std::vector<MetaFile> meta;  // ascending by sequence
  struct DataFile {
    std::uint32_t sequence = 0, retention_class = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<DataFile> data;
};

/// Reads the folder. Skips damaged files; their numbers stay taken. Removes temporary files and payload files
/// that are recorded as retired, and releases space that dead writers had reserved. Errors: kIo, kNotFound
/// (the folder itself).
[[nodiscard]] Result<EarlierEpochs> ReadEarlierEpochs(Env& env, const std::string& directory);

}  // namespace luff::store
