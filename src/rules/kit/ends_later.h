#pragma once

namespace luff::query {
class Trial;
}

namespace luff::rules {

class Sink;

/// A rule whose last conclusions come from elsewhere, and take their time.
class EndsLater {
 public:
  virtual ~EndsLater() = default;
  /// Before each OnPause: the trial that it judges. After a restart it may be behind without a new step.
  virtual void Judges(const query::Trial& trial) = 0;
  /// The run has ended, and OnStep had all of its steps: begins to conclude, or goes on with it. Never waits.
  virtual void Ending(const query::Trial& trial, Sink& sink) = 0;
  /// OnEnd would wait for it.
  [[nodiscard]] virtual bool pending() const = 0;
};

}  // namespace luff::rules
