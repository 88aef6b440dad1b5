// A trainer without Python: a network of two layers learns y = sin(3 x) by gradient descent while Luff
// watches.
//
//   luff_example_trainer RUN_DIRECTORY [LEARNING_RATE]
//
// Afterwards: luff show RUN_DIRECTORY; luff check RUN_DIRECTORY. A learning rate of 50 gives the rules
// something to say.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "luff/capture/session.h"

namespace {

using luff::capture::Session;
using luff::capture::TensorRef;
using luff::format::Mode;
using luff::format::Role;

constexpr std::size_t kHidden = 32, kBatch = 64;
constexpr int kSteps = 300;

// A parameter with its gradient, and their references in Luff.
struct Parameter {
  std::vector<float> value, gradient;
  TensorRef value_ref, gradient_ref;
};

Parameter Make(Session& session, const std::string& name, Role role, std::vector<std::int64_t> shape,
               float scale, std::mt19937& random) {
  const luff::Layout layout = *luff::Layout::Contiguous(luff::DType::kFloat32, shape);
  Parameter p;
  p.value.resize(layout.element_count());
  p.gradient.resize(p.value.size());
  std::normal_distribution<float> normal(0, scale);
  for (float& v : p.value) v = normal(random);
  const std::string module = name.substr(0, name.find('.'));
  const auto id = session.DefineLayout(layout);
  p.value_ref = {session.DefineTensor(name, role, module, "Linear"), id,
                 reinterpret_cast<const std::byte*>(p.value.data()), 0, 0};
  p.gradient_ref = {session.DefineTensor("gradient/" + name, Role::kGradient, module, "Linear"), id,
                    reinterpret_cast<const std::byte*>(p.gradient.data()), 0, 0};
  return p;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s RUN_DIRECTORY [LEARNING_RATE]\n", argv[0]);
    return 2;
  }
  const float rate = argc > 2 ? std::strtof(argv[2], nullptr) : 0.05F;
  luff::capture::SessionOptions options;
  options.run_path = argv[1];
  options.config_json = R"({"collections": [{"name": "weights", "save": {"save_interval": 10}}]})";
  luff::Result<std::unique_ptr<Session>> opened = Session::Open(options);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    return 1;
  }
  Session& luff_session = **opened;

  std::mt19937 random(1);
  std::array<Parameter, 4> parameters{
      Make(luff_session, "hidden.weight", Role::kWeight, {kHidden, 1}, 1.0F, random),
      Make(luff_session, "hidden.bias", Role::kBias, {kHidden}, 0.5F, random),
      Make(luff_session, "out.weight", Role::kWeight, {1, kHidden}, 0.2F, random),
      Make(luff_session, "out.bias", Role::kBias, {1}, 0.0F, random)};
  auto& [w1, b1, w2, b2] = parameters;
  float loss = 0;
  TensorRef loss_ref{luff_session.DefineTensor("MSELoss_output_0", Role::kLoss, "", "MSELoss"),
                     luff_session.DefineLayout(*luff::Layout::Contiguous(luff::DType::kFloat32, {})),
                     reinterpret_cast<const std::byte*>(&loss), 0, 0};

  std::uniform_real_distribution<float> uniform(-1, 1);
  auto reason = luff::format::EndReason::kCompleted;
  for (int step = 0; step < kSteps; ++step) {
    luff_session.BeginStep(Mode::kTrain, step);
    for (const Parameter& p : parameters)
      luff_session.Capture({&p.value_ref, 1});  // the values that the forward pass uses
    for (Parameter& p : parameters) p.gradient.assign(p.gradient.size(), 0);
    loss = 0;
    for (std::size_t n = 0; n < kBatch; ++n) {
      const float x = uniform(random);
      std::array<float, kHidden> h{};
      float y = b2.value[0];
      for (std::size_t i = 0; i < kHidden; ++i) {
        h[i] = std::tanh(w1.value[i] * x + b1.value[i]);
        y += w2.value[i] * h[i];
      }
      const float error = y - std::sin(3 * x);
      loss += error * error / kBatch;
      const float dy = 2 * error / kBatch;
      b2.gradient[0] += dy;
      for (std::size_t i = 0; i < kHidden; ++i) {
        w2.gradient[i] += dy * h[i];
        const float dh = dy * w2.value[i] * (1 - h[i] * h[i]);
        w1.gradient[i] += dh * x;
        b1.gradient[i] += dh;
      }
    }
    luff_session.Capture({&loss_ref, 1});
    for (const Parameter& p : parameters) luff_session.Capture({&p.gradient_ref, 1});
    for (Parameter& p : parameters) {
      for (std::size_t i = 0; i < p.value.size(); ++i) p.value[i] -= rate * p.gradient[i];
    }
    luff_session.EndStep({Mode::kTrain, step, step, step});
    if (luff_session.stop_state() != luff::capture::StopState::kNone &&
        luff_session.AtStepBoundary(step + 1) == luff::capture::StopState::kStop) {
      std::printf("stopped after step %d: %s\n", step, luff_session.stop_reason().c_str());
      reason = luff::format::EndReason::kStopped;
      break;
    }
  }
  luff_session.Close(reason, std::chrono::seconds(5));
  std::printf("loss %.4f\n", static_cast<double>(loss));
  return 0;
}
