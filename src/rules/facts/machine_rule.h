#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "luff/profile/machine.h"
#include "rules/facts/run_machines.h"
#include "rules/kit/kept_rule.h"
#include "rules/kit/params.h"

namespace luff::rules {

/// Ten seconds of a training, and what its machines did meanwhile.
struct MachineWindow {
  const query::Trial* trial = nullptr;  // never null where a rule judges
  std::size_t number = 0;               // of its last step among those of the trial: for documents
  std::int64_t from_unix_ns = 0, to_unix_ns = 0;
  std::int64_t first_step = 0, last_step = 0;  // TRAIN steps that ended in it
  std::int64_t steps = 0;
  double wall_s = 0, wait_s = 0;  // of these steps, and of them waiting for data
  double queue_s = -1;            // for which the training thread had no core; -1: not known
  std::uint32_t worker = 0;       // whose steps these are: the first that recorded phases
  std::int64_t epoch_steps = -1;  // of the training's loader; -1: not known
  bool on_host = false;           // its optimizers say that it computes on no device
  std::vector<profile::MachineUse> machines;
  [[nodiscard]] double share(double seconds) const noexcept { return wall_s > 0 ? seconds / wall_s : 0; }
  /// The machine on which that worker trains; null if it was not measured.
  [[nodiscard]] const profile::MachineUse* own() const noexcept;
  /// Whether the GPUs that work on the machine can be the job's: no more of them than it has processes there.
  /// Others' GPUs are seen, too, and nobody says whose each is.
  [[nodiscard]] bool OwnsGpus(const profile::MachineUse& use) const noexcept;
};
/// Whether anything computes on it.
[[nodiscard]] inline bool Works(const profile::GpuUse& gpu) noexcept {
  return gpu.utilisation.value_or(0) >= 0.05;
}

/// What is wrong in a window, as a subclass of MachineRule sees it.
struct MachineClaim {
  std::string cause;
  std::string what;  // one sentence with the numbers of this window
  std::string why, remedy;
  std::vector<std::string> causes;
  std::vector<NamedNumber> evidence;
  std::string threshold;
  /// Seconds of the window that mending it would save, with bounds; negative: cannot be said, and is not
  /// asked for.
  double saving_s = -1, low_s = 0, high_s = 0;
  std::string method;
};

struct MachineLimits {
  double worth, seconds;  // least saving: share of the time so far, and in seconds
  std::int64_t windows;   // in a row
};
#define LUFF_MACHINE_PARAMS(Limits)                                                                    \
  {&Limits::worth, "worth", "0.03", "least saving, as a share of the time of all steps so far (Luff)", \
   Between(0, 1)},                                                                                     \
      {&Limits::seconds, "seconds", "5", "least saving so far, in seconds (Luff)", AtLeast(0)}, {      \
    &Limits::windows, "windows", "2", "windows of 10 s in a row (Luff)", Within(1, 1000)               \
  }

/// Base class of rules on samples of machines. Divides the training into windows of ten seconds and judges
/// each when its samples are there; a window that was measured only in part is left out. Something is said
/// when it holds in several windows in a row and is worth it, and has healed after three without. The first
/// window is left out: a training warms up in it.
class MachineRule : public KeptRule {
 public:
  MachineRule(const char* name, const MachineLimits& limits) : name_(name), limits_(limits) {}
  void OnStep(const StepView& view, Sink& sink) final;
  void OnEnd(const query::Trial& trial, Sink& sink) final;
  void VisitFields(Fields& io) override;

 protected:
  /// What is wrong in the window; nullopt if nothing is, or if what it needs was not measured.
  [[nodiscard]] virtual std::optional<MachineClaim> Judge(const MachineWindow& window) = 0;

 private:
  struct Open {  // a window whose samples may not be there yet
    std::int64_t from_ns = 0, to_ns = 0, first_step = 0, last_step = 0, steps = 0;
    std::int64_t global_step = 0, update = 0, mode_step = 0;
    double wall_s = 0, wait_s = 0, queue_s = 0;
    std::uint64_t worker = 0, number = 0;
    bool queue_known = true, first = false;
    void VisitFields(Fields& io);
  };
  void JudgeOpen(const query::Trial& trial, std::int64_t now_ns, bool all, Sink& sink);
  void Take(const query::Trial& trial, const Open& open, const MachineWindow& window, Sink& sink);

  const char* const name_;
  const MachineLimits limits_;
  Open now_;
  std::vector<Open> waiting_;
  double run_s_ = 0;   // of all steps with phases, or by the clock where there are none
  double lost_s_ = 0;  // that mending it would have saved
  std::int64_t streak_ = 0, free_ = 0, since_ = 0, judged_ = 0, begin_step_ = 0, told_ = 0;
  bool open_ = false, begun_ = false;
  std::string cause_;
  std::int64_t looked_ns_ = 0;        // for samples that are awaited; not kept
  std::shared_ptr<RunMachines> run_;  // not kept: that of the evaluation
};

}  // namespace luff::rules
