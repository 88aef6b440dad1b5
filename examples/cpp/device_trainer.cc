// A trainer whose weights are in the memory of a GPU: each step computes new ones and copies them there on a
// stream, in place of the kernels of a real training, and Luff reads them behind that copy.
//
//   luff_example_device_trainer RUN_DIRECTORY
//
// Needs nothing of CUDA to be built: the few functions of the driver that it calls are declared here. A real
// trainer has its pointers from cudaMalloc, and passes its cudaStream_t. Without a driver it says so (3).
#include <dlfcn.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>

#include "luff/capture/session.h"

namespace {

using luff::capture::Session;
using luff::format::Mode;
using luff::format::Role;

constexpr std::size_t kWeights = 4096;
constexpr int kSteps = 100;

/// What is used of the driver, in the primary context of device 0.
class Gpu {
 public:
  [[nodiscard]] bool Open() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) return false;
    int (*init)(unsigned) = nullptr;
    int (*retain)(void**, int) = nullptr;
    int (*push)(void*) = nullptr;
    int (*stream_create)(void**, unsigned) = nullptr;
    int (*allocate)(std::uint64_t*, std::size_t) = nullptr;
    int (*allocate_host)(void**, std::size_t, unsigned) = nullptr;
    const bool found = Find("cuInit", &init) && Find("cuDevicePrimaryCtxRetain", &retain) &&
                       Find("cuCtxPushCurrent_v2", &push) && Find("cuStreamCreate", &stream_create) &&
                       Find("cuMemAlloc_v2", &allocate) && Find("cuMemHostAlloc", &allocate_host) &&
                       Find("cuMemcpyHtoDAsync_v2", &copy_) && Find("cuStreamSynchronize", &synchronize_);
    void* context = nullptr;
    void* pinned = nullptr;
    constexpr std::size_t kBytes = kWeights * sizeof(float);
    if (!found || init(0) != 0 || retain(&context, 0) != 0 || push(context) != 0) return false;
    if (stream_create(&stream_, 1) != 0 || allocate(&weights_, kBytes) != 0) return false;
    if (allocate_host(&pinned, kBytes, 0) != 0) return false;
    host_ = {static_cast<float*>(pinned), kWeights};
    return true;
  }
  /// Weights that the host writes, and that Upload copies to the device. They must not change before it has.
  [[nodiscard]] std::span<float> host() const { return host_; }
  void Upload() { static_cast<void>(copy_(weights_, host_.data(), host_.size_bytes(), stream_)); }
  void Synchronize() { static_cast<void>(synchronize_(stream_)); }
  [[nodiscard]] std::uint64_t weights() const { return weights_; }
  [[nodiscard]] std::uint64_t stream() const { return reinterpret_cast<std::uintptr_t>(stream_); }

 private:
  template <typename F>
  bool Find(const char* name, F** function) {
    *function = reinterpret_cast<F*>(dlsym(library_, name));
    return *function != nullptr;
  }

  void* library_ = nullptr;
  void* stream_ = nullptr;
  std::uint64_t weights_ = 0;
  std::span<float> host_;
  int (*copy_)(std::uint64_t, const void*, std::size_t, void*) = nullptr;
  int (*synchronize_)(void*) = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s RUN_DIRECTORY\n", argv[0]);
    return 2;
  }
  Gpu gpu;
  if (!gpu.Open()) {
    std::fprintf(stderr, "no GPU: the driver's library (libcuda.so.1) is not here or finds none\n");
    return 3;
  }
  luff::capture::SessionOptions options;
  options.run_path = argv[1];
  options.config_json = R"({"accelerators": true, "collections": [
    {"name": "weights", "forms": ["summary", "raw", "histogram"], "save": {"save_interval": 10}}]})";
  luff::Result<std::unique_ptr<Session>> opened = Session::Open(options);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    return 1;
  }
  Session& luff_session = **opened;
  const std::array<std::int64_t, 1> shape{kWeights};
  // `data` is a device address, which the host never reads.
  const luff::capture::TensorRef weights{
      luff_session.DefineTensor("layer.weight", Role::kWeight, "layer", "Linear"),
      luff_session.DefineLayout(*luff::Layout::Contiguous(luff::DType::kFloat32, shape)),
      reinterpret_cast<const std::byte*>(gpu.weights()), 0, 0};

  for (int step = 0; step < kSteps; ++step) {
    luff_session.BeginStep(Mode::kTrain, step);
    for (std::size_t i = 0; i < kWeights; ++i)
      gpu.host()[i] = std::sin(static_cast<float>(i)) / static_cast<float>(step + 1);
    gpu.Upload();
    // Behind the copy in the stream. It enqueues and waits for nothing; the values arrive later, at this
    // step.
    luff_session.CaptureOnDevice({&weights, 1}, {0, gpu.stream(), 0}, 1.0);
    luff_session.EndStep({Mode::kTrain, step, step, step});
    gpu.Synchronize();  // this trainer writes to `host` again; Luff needs none
  }
  luff_session.Close(luff::format::EndReason::kCompleted, std::chrono::seconds(5));
  for (const luff::capture::Counter& counter : luff_session.health().counters) {
    if (counter.name == "late_values" || counter.name == "gaps")
      std::printf("%s %llu\n", counter.name.c_str(), static_cast<unsigned long long>(counter.value));
  }
  return 0;
}
