#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "luff/format/event_file.h"
#include "luff/format/smdebug.h"

namespace luff::query::testing {

/// Writes a directory as smdebug does: float32 tensors, one step of one worker at a time.
class SmdebugWriter {
 public:
  /// Replaces the folder by an empty one.
  explicit SmdebugWriter(std::filesystem::path root) : root_(std::move(root)) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }

  struct Tensor {
    std::string name;
    std::vector<float> numbers;
    std::vector<std::int64_t> shape;
  };

  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << text;
  }
  void WriteCollections(int workers = 1) const {
    std::string text =
        R"({"collections": {"weights": {"name": "weights", "include_regex": ["^(?!gradient).*weight"], "tensor_names": []},
        "gradients": {"name": "gradients", "include_regex": ["^gradient"], "tensor_names": []},
        "losses": {"name": "losses", "include_regex": [], "tensor_names": ["CrossEntropyLoss_output_0"]}},
        "_meta": {"num_workers": %})";
    text.replace(text.find('%'), 1, std::to_string(workers) + "}");
    for (int w = 0; w < workers; ++w)
      Write(format::SmdebugCollectionsPath("worker_" + std::to_string(w)), text);
  }
  void WriteStep(std::int64_t step, format::Mode mode, std::int64_t mode_step,
                 const std::vector<Tensor>& tensors, const std::string& worker = "worker_0",
                 const std::vector<Tensor>& shapes = {}) {
    std::string events;
    format::SmdebugIndex index;
    const std::string event_file = format::SmdebugEventPath(step, worker);
    for (const Tensor& tensor : tensors) {
      format::TensorToWrite to;
      to.name = tensor.name;
      to.dtype = DType::kFloat32;
      to.shape = tensor.shape;
      to.content = std::as_bytes(std::span(tensor.numbers));
      to.mode_step = mode_step;
      to.mode = static_cast<int>(mode);
      const std::uint64_t start = events.size();
      format::AppendRecord(format::EncodeSmdebugTensor(1.0, step, to), format::RecordFooter::kSmdebug,
                           &events);
      index.tensors.push_back({tensor.name, start, events.size() - start});
    }
    for (const Tensor& shape : shapes) {
      index.shapes.push_back({shape.name, "graph/" + shape.name,
                              static_cast<std::uint32_t>(index.dims.size()),
                              static_cast<std::uint32_t>(shape.shape.size())});
      names_.push_back("graph/" + shape.name);
      index.shapes.back().original_name = names_.back();
      index.dims.insert(index.dims.end(), shape.shape.begin(), shape.shape.end());
    }
    index.mode = mode;
    index.mode_step = mode_step;
    index.event_file = event_file;
    if (!tensors.empty()) Write(event_file, events);
    Write(format::SmdebugIndexPath(step, worker), format::FormatSmdebugIndex(index));
  }
  void End() const { Write(format::kSmdebugEndFile, ""); }

 protected:
  std::filesystem::path root_;
  std::deque<std::string> names_;
};

}  // namespace luff::query::testing
