#pragma once
#include <map>
#include <string>
#include <vector>

#include "rules/testing/recorder.h"

/// Runs for the tests of rules about pauses.
namespace luff::rules::testing {

struct PauseStory {
  int steps = 600;
  double step_ms = 50;
  format::Phase phase = format::Phase::kGc;
  int every = 50;  // steps between pauses; 0: none
  double pause_ms = 500;
  int until = 1 << 20;  // step from which there are none
};

/// TRAIN steps, some of which have a pause.
inline FakeTrial RunOf(const PauseStory& story) {
  FakeTrial trial;
  for (int i = 0; i < story.steps; ++i) {
    std::map<format::Phase, double> phases{{format::Phase::kForward, story.step_ms}};
    if (story.every > 0 && i % story.every == story.every - 1 && i < story.until)
      phases[story.phase] = story.pause_ms;
    trial.Step().Phases(phases);
  }
  return trial;
}

inline std::vector<Finding> PausesOf(const PauseStory& story, const std::string& rule) {
  return FindingsOf(RunOf(story), rule, ParameterSet::kLuff);
}

}  // namespace luff::rules::testing
