#pragma once
#include <string>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "luff/rules/finding.h"
#include "rules/facts/json_event.h"

/// What the event `dataset` (docs/spec/evidence.md) tells: a dataset was asked for the same items again, in a
/// child that ends. Each function is false for an event that says nothing of its kind, or is malformed.
namespace luff::rules {

[[nodiscard]] inline std::string DatasetIn(const nlohmann::json& event) {
  const auto name = event.is_object() ? event.find("dataset") : event.end();
  return name == event.end() || !name->is_string() ? "the dataset" : name->get<std::string>();
}

/// LabelNoise, moved_apart: pictures are mirrored or turned, and their masks or boxes in another way, or not.
[[nodiscard]] inline bool TellMovedApart(const nlohmann::json& event, Finding* finding) {
  const double apart = NumberIn(event, "apart");
  const double boxes = NumberIn(event, "boxes");
  const double moved = NumberIn(event, "moved");
  if (!(moved > 0) || !(apart > 0 || boxes > 0)) return false;
  const char* target = apart > 0 ? "mask" : "boxes";
  const auto position = [&](const char* key) {
    const auto at = event.find(key);
    return at != event.end() && at->is_string() ? at->get<std::string>() : std::string("otherwise");
  };
  finding->what =
      fmt::format("{} transforms pictures without their {}", DatasetIn(event), apart > 0 ? "masks" : "boxes");
  finding->why =
      apart > 0
          ? fmt::format(
                "one item was asked for with several seeds: of {:.0f} times that its picture came mirrored "
                "or turned, its mask was moved otherwise {:.0f} times (the picture {}, the mask {}), bit "
                "for bit",
                moved, apart, position("picture"), position("mask"))
          : fmt::format(
                "one item was asked for with several seeds: {:.0f} times its picture came mirrored, and its "
                "boxes were where they had been, in every number",
                boxes);
  finding->remedy = fmt::format(
      "draw each transform once and apply it to picture and {0} alike: one random number for both, or a "
      "transform "
      "that takes both (torchvision.transforms.v2 with tv_tensors, albumentations with {0})",
      target);
  finding->causes = {"a random transform that is called for picture and target one after the other",
                     "a flip of the picture alone", "seeds that differ between both calls"};
  finding->evidence = {{"moved", moved}, {"apart", apart > 0 ? apart : boxes}};
  finding->threshold = "a fact, bit for bit, of two items at least (Luff)";
  return true;
}

/// TrainValSkew, in_place: asking for an item changes what the dataset holds.
[[nodiscard]] inline bool TellChangedInPlace(const nlohmann::json& event, Finding* finding) {
  const double changed = NumberIn(event, "changed");
  const double distance = NumberIn(event, "distance");
  if (!(changed > 0) || !(distance > 0)) return false;
  finding->what = fmt::format("{} changes its own rows whenever it is asked for them", DatasetIn(event));
  finding->why = fmt::format(
      "asked for an item again, with the same seeds, it gave another one each time (up to {:.3g} of the "
      "largest "
      "number apart), and the first one again once the arrays that it had written into were put back: each "
      "epoch "
      "trains on what the epochs before it have left, and evaluations do not",
      distance);
  finding->remedy =
      "work on a copy in __getitem__: x = self.x[i].copy() (clone() of a tensor), and x = x / 255 in the "
      "place of "
      "x /= 255; scale once, where the data are read";
  finding->causes = {"/=, +=, *=, add_ or clip(out=) on a row that is a view",
                     "a transform that works in place, on data that are kept in memory",
                     "annotations that are changed in the list that holds them"};
  finding->evidence = {{"items", changed}, {"distance", distance}};
  finding->threshold = "a fact of an item that was asked for three times (Luff)";
  return true;
}

/// TrainValSkew, drawn_in_evaluations: evaluations are augmented, and the training is not.
[[nodiscard]] inline bool TellDrawnInEvaluations(const nlohmann::json& event, Finding* finding) {
  const double drawn = NumberIn(event, "evaluations_drawn");
  const double asked = NumberIn(event, "asked");
  if (!(drawn > 0) || !(asked >= drawn)) return false;
  finding->what = "evaluations get inputs that are drawn anew each time, and the training gets the same ones";
  finding->why = fmt::format(
      "of {:.0f} items of an evaluation, {:.0f} had other inputs with another seed, and all else was as "
      "before; "
      "none of the training's had: the random transforms of both are exchanged",
      asked, drawn);
  finding->remedy =
      "give the training's dataset the random transforms, and that of evaluations the fixed ones";
  finding->causes = {"train_transform and test_transform exchanged",
                     "arguments of two datasets in the wrong order",
                     "a flag such as train= or augment= that is turned over"};
  finding->evidence = {{"drawn", drawn}, {"asked", asked}};
  finding->threshold = "two items and a quarter of them; none of the training's (Luff)";
  return true;
}

/// TrainValSkew: one of the two above, with its cause.
[[nodiscard]] inline bool TellAskedDataset(const nlohmann::json& event, Finding* finding) {
  finding->cause = "in_place";
  if (TellChangedInPlace(event, finding)) return true;
  finding->cause = "drawn_in_evaluations";
  return TellDrawnInEvaluations(event, finding);
}

}  // namespace luff::rules
