#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "luff/base/env.h"

namespace luff::store {

/// What a worker's folder holds from earlier epochs, as far as a writer must know it.
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

/// Reads the folder. Damaged files are passed over: their numbers stay taken. Temporary files are removed,
/// space that dead writers had reserved is given back, payload files that are retired on record are removed.
/// Errors: kIo, kNotFound (the folder itself).
[[nodiscard]] Result<EarlierEpochs> ReadEarlierEpochs(Env& env, const std::string& directory);

}  // namespace luff::store
