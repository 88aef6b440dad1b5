// Fuzzes checkpoints of rules, which come from the run directory: whatever they hold, the rule continues from
// there or starts over. An input changes the real state of one rule half-way through a short training (the
// first byte selects it), or a whole checkpoint file; then the second half is evaluated. So no seeds are
// needed, and numbers of the state become hostile one by one.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "luff/rules/choice.h"
#include "luff/rules/evaluator.h"
#include "luff/rules/rule.h"
#include "rules/facts/step_memo.h"
#include "rules/testing/fake_trial.h"

namespace {

using namespace luff::rules;  // NOLINT(google-build-using-namespace)
using luff::format::EventKind;
using luff::format::Role;
namespace fs = std::filesystem;

constexpr std::size_t kSteps = 80;

/// A training with every kind of row that rules read.
testing::FakeTrial Story() {
  testing::FakeTrial trial;
  trial.SetDocument("model", R"({"parameters":[{"name":"fc.weight","trainable":true}]})");
  for (std::size_t step = 0; step < kSteps; ++step) {
    const double x = static_cast<double>(step % 7) * 0.1;
    trial.Step()
        .Loss(step > 70 ? std::nan("") : 2.0 - x)
        .Scalar("optimizer_0/lr", Role::kOptimizerSetting, 0.1)
        .Tensor("fc.weight", Role::kWeight, {1.0, 2.0, step > 75 ? HUGE_VAL : 3.0})
        .Tensor("fc.bias", Role::kBias, {1.0, x})
        .Tensor("gradient/fc.weight", Role::kGradient, {x, 1e-9, 0})
        .Tensor("gradient/conv.weight", Role::kGradient, {1.0, 2.0})
        .Difference("fc.weight", x, 10 * x, 1, step % 3)
        .Units("relu_output_0", {0, step % 2, 5, 0}, 8)
        .Event(EventKind::kBackward)
        .Event(EventKind::kOptimizerStep)
        .Event(EventKind::kZeroGrad);
  }
  return trial;
}

class NoSink final : public Sink {
 public:
  void Report(Finding finding) override { bytes += ToJson(finding, "new").size(); }
  void Heal(const std::string& cause, const std::string& tensor, std::int64_t) override {
    bytes += cause.size() + tensor.size();
  }
  std::size_t bytes = 0;
};

struct Subject {
  Choice choice;
  std::string state;  // half-way
};

void Tell(Rule& rule, const testing::FakeTrial& trial, std::size_t from, std::size_t to) {
  NoSink sink;
  luff::query::Trial::StepRows rows;
  for (std::size_t n = from; n < to; ++n) {
    if (!trial.ReadStepRows(n, &rows).ok()) std::abort();
    StepMemo memo;
    rule.OnStep({trial, rows, n, memo, StepIndex(trial, rows)}, sink);
  }
}

struct World {
  testing::FakeTrial trial = Story();
  std::vector<Subject> subjects;
  std::vector<Choice> choices;
  fs::path folder;
  std::string checkpoint;

  World() {
    for (const auto set : {ParameterSet::kLuff, ParameterSet::kOriginal}) {
      auto parsed = ParseChoices("all", set);
      if (!parsed.ok()) std::abort();
      if (set == ParameterSet::kLuff) choices = *parsed;
      for (const Choice& choice : *parsed) {
        auto rule = choice.spec->make(choice.parameters);
        if (!rule.ok()) std::abort();
        Tell(**rule, trial, 0, kSteps / 2);
        subjects.push_back({choice, (*rule)->SaveState()});
        auto again = choice.spec->make(choice.parameters);
        if (!(*again)->LoadState(subjects.back().state).ok() ||
            (*again)->SaveState() != subjects.back().state)
          std::abort();  // a real state is loaded unchanged
      }
    }
    folder = fs::path(fs::exists("/dev/shm") ? "/dev/shm" : "/tmp") /
             ("luff-checkpoint-fuzz-" + std::to_string(getpid()));
    fs::remove_all(folder);
    trial.ShowOnly(kSteps / 2);
    auto evaluator = Open();
    if (evaluator == nullptr || !evaluator->Advance(trial, kSteps).ok() || !evaluator->Checkpoint().ok())
      std::abort();
    evaluator.reset();
    std::ifstream file(folder / "checkpoint.json");
    checkpoint.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (checkpoint.empty()) std::abort();
    trial.ShowOnly(kSteps);
    std::atexit([] { fs::remove_all(Get().folder); });
  }
  std::unique_ptr<Evaluator> Open() const {
    EvaluatorOptions options;
    options.folder = folder;
    options.choices = choices;
    auto opened = Evaluator::Open(options, [](const Finding&, const std::string&) {});
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
  static World& Get() {
    static World world;
    return world;
  }
};

/// Returns `text` with changes applied. Each is a position (2 bytes), the number of bytes to remove, and what
/// to insert (a length with bytes, or one of the values below).
std::string Changed(std::string text, std::string_view changes) {
  static constexpr std::string_view kValues[] = {"-1",
                                                 "0",
                                                 "1",
                                                 "9223372036854775807",
                                                 "-9223372036854775808",
                                                 "18446744073709551615",
                                                 "1e308",
                                                 "-1e308",
                                                 "null",
                                                 "[]",
                                                 "{}",
                                                 "\"\"",
                                                 "[0]",
                                                 "2147483647",
                                                 "true",
                                                 "1e-320"};
  while (changes.size() >= 4) {
    std::uint16_t place = 0;
    std::memcpy(&place, changes.data(), sizeof(place));
    const auto gone = static_cast<std::uint8_t>(changes[2]);
    const auto come = static_cast<std::uint8_t>(changes[3]);
    changes.remove_prefix(4);
    const std::size_t at = place % (text.size() + 1);
    if (come >= 0x80) {
      // Replaces the value from this position to its end.
      const std::size_t end = std::min(text.find_first_of(",]}:", at), text.size());
      text.replace(at, end - at, kValues[come % std::size(kValues)]);
    } else {
      const std::string_view bytes = changes.substr(0, come % 16);
      text.replace(at, std::min<std::size_t>(gone, text.size() - at), bytes);
      changes.remove_prefix(bytes.size());
    }
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  World& world = World::Get();
  const std::string_view changes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t which = data[0] % (world.subjects.size() + 1);
  if (which < world.subjects.size()) {
    const Subject& subject = world.subjects[which];
    const auto rule = subject.choice.spec->make(subject.choice.parameters);
    if (!rule.ok()) std::abort();
    const std::string state = Changed(subject.state, changes);
    if (!(*rule)->LoadState(state).ok()) return 0;
    Tell(**rule, world.trial, kSteps / 2, kSteps);
    NoSink sink;
    (*rule)->OnEnd(world.trial, sink);
    (void)(*rule)->SaveState();
    return 0;
  }
  std::ofstream(world.folder / "checkpoint.json", std::ios::trunc) << Changed(world.checkpoint, changes);
  std::error_code ignored;
  fs::remove(world.folder / "findings.jsonl", ignored);
  if (const auto evaluator = world.Open(); evaluator != nullptr) {
    (void)evaluator->Advance(world.trial, 2 * kSteps).ok();
    (void)evaluator->Finish(world.trial).ok();
  }
  return 0;
}
