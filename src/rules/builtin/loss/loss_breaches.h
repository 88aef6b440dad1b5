#pragma once
#include <string_view>

/// What can be wrong with the input of a loss, in the words of LossInputContract's findings.
namespace luff::rules::loss_input_contract {

/// One of these; without a cause, nothing is wrong.
struct Breach {
  const char* cause = nullptr;  // null: nothing
  const char* what = "";
  const char* why = "";
  const char* remedy = "";
  bool stop = false;
};

constexpr Breach kSoftmaxFirst = {
    "softmax_before_cross_entropy", "gets probabilities, but applies log-softmax itself",
    "after a second softmax over numbers between 0 and 1 the loss cannot come near 0 and gradients are small",
    "remove the softmax from the model: this loss takes raw scores", false};
constexpr Breach kSigmoidFirst = {
    "sigmoid_before_logits", "gets outputs of a sigmoid, but applies a sigmoid or softmax itself",
    "squashed twice, predictions stay near even and gradients are small",
    "remove the sigmoid from the model, or take the loss for probabilities", false};
constexpr Breach kBatchAxis = {
    "softmax_over_batch",
    "gets outputs that are normalised over the samples of the batch, not over the classes",
    "the softmax runs along axis 0: the answer for a sample depends on the others in its batch",
    "give the softmax the axis of the classes (dim=1 or dim=-1)", false};
constexpr Breach kLogitsIntoNll = {"logits_into_nll", "gets raw scores where it needs log-probabilities",
                                   "rows are not normalised (the logarithm of the sum of their exponentials "
                                   "is not 0): the loss falls without "
                                   "bound",
                                   "end the model with log_softmax, or use cross entropy, which applies it",
                                   true};
constexpr Breach kLogitsIntoShares = {
    "logits_into_categorical", "gets values below 0 where it needs probabilities",
    "Keras divides each row by its sum and cuts off what is below 0: such scores get no gradient, and the "
    "sum "
    "may be next to 0",
    "pass from_logits=True to the loss, or end the model with a softmax", false};
constexpr Breach kReluIntoShares = {
    "relu_into_probabilities", "gets what a ReLU has made where it needs probabilities",
    "a class that the ReLU has silenced has probability 0 and gets no gradient, and what is larger than 1 is "
    "no "
    "probability",
    "end the model with a softmax (one unit: a sigmoid) in place of the ReLU", false};
constexpr Breach kSigmoidIntoShares = {
    "sigmoid_into_categorical",
    "gets a sigmoid of each class where it needs shares of a row, as a softmax gives",
    "Keras divides each row by its sum: what is said of one class depends on all others, and all of them may "
    "sink toward 0 without a change of the loss",
    "end the model with a softmax in place of the sigmoid; where a row has several labels, keep the sigmoid "
    "and take binary_crossentropy",
    false};
constexpr Breach kOneClass = {
    "one_class", "gets one score for each row, and shares 1 among a single class",
    "the share of the only class is 1, whatever the model says: the loss has no gradient, and nothing is "
    "learnt",
    "of two classes, end the model with one sigmoid and take binary_crossentropy (or BCEWithLogitsLoss); of "
    "more, give it one unit for each class; for numbers take a squared error",
    true};
constexpr Breach kDeadClasses = {
    "activation_before_scores",
    "gets a softmax of what is pooled from a ReLU that gives 0 for some classes in every row",
    "the score of such a class is 0, the least there is, in each row: it is dead, gets no gradient, and is "
    "never answered",
    "leave out the activation of the last convolution: scores need both signs", false};
constexpr Breach kSharesIntoNll = {
    "probabilities_into_nll", "gets probabilities where it needs log-probabilities",
    "the logarithm is missing: the loss only reaches -1 and weighs mistakes wrongly",
    "use log_softmax instead of softmax, or cross entropy on raw scores", false};
constexpr Breach kSharesIntoKl = {
    "no_log_probabilities_into_kl", "gets values above 0 where it needs log-probabilities",
    "a logarithm of a probability is never above 0: the divergence means nothing",
    "give the logarithm (log_softmax) of the prediction as the first argument", false};
constexpr Breach kSwappedKl = {
    "arguments_of_kl_swapped", "gets its arguments in the other order",
    "the first holds probabilities and the second log-probabilities: the divergence means nothing",
    "swap them: the log-probabilities of the prediction first, then the probabilities of the target", false};
constexpr Breach kKlTarget = {
    "probabilities_as_log_target", "gets probabilities as targets where log_target=True asks for logarithms",
    "it takes the exponential of each target: the shares of a row then sum to more than 1, and the "
    "divergence is least somewhere else",
    "leave out log_target=True, or give the logarithm (log_softmax) of the target", false};
constexpr Breach kLogitsIntoBce = {"logits_into_bce",
                                   "gets values outside of [0, 1] where it needs probabilities",
                                   "the logarithm of such a value is none",
                                   "apply a sigmoid, or use the loss for raw scores (WithLogits)", true};

constexpr Breach kSoftmaxOfOne = {
    "softmax_of_one", "gets the softmax of a single score",
    "it is 1 for every row, whatever the score is, and has no gradient: nothing is learnt",
    "leave the softmax out: end the model with a sigmoid (yes or no), with nothing (a number), or with one "
    "score "
    "for each class",
    true};

constexpr Breach kActivationFirst = {
    "activation_before_scores", "gets scores that an activation has limited",
    "scores need both signs and any size: what the activation cuts off cannot be said, and units that it "
    "has silenced get no gradient",
    "leave out the activation behind the last layer: this loss takes raw scores", false};

constexpr Breach kSquashedTwice = {
    "squashed_twice", "gets what two softmaxes or sigmoids have made, one after the other",
    "the second works on numbers between 0 and 1: its results stay near even, the loss cannot come near its "
    "least "
    "value, and gradients are small",
    "remove one of the two: the one at the end of the model, or the one before the loss", false};

constexpr Breach kLimitedFirst = {
    "activation_before_scores",
    "gets what a softmax or sigmoid has made of numbers that an activation has limited",
    "scores need both signs and any size: what the activation cuts off cannot be said (of a ReLU: no "
    "probability "
    "below even), and units that it has silenced get no gradient",
    "leave out the activation between the last layer and the softmax or sigmoid", false};

constexpr Breach kSmoothedAway = {"smoothed_away", "smooths its labels away",
                                  "the target of a row keeps less than half of its weight: the loss asks for "
                                  "nearly the same score of every class",
                                  "lower label_smoothing: 0.1 is usual", false};
constexpr Breach kDropped = {
    "dropout_before_scores", "gets scores of which dropout has set some to 0",
    "a score of 0 is an answer, too: which classes get it is drawn anew at each step, and "
    "the others are scaled up",
    "put the dropout before the last layer, not behind it", false};
/// What CTC loss is given and cannot learn from, by the word of the event `loss_ctc`.
[[nodiscard]] constexpr Breach CtcBreach(std::string_view word) {
  if (word == "scores")
    return {
        "logits_into_ctc", "gets raw scores where it needs log-probabilities",
        "no row at the first step is normalised (the logarithm of the sum of its exponentials is not 0): the "
        "loss falls without bound as scores grow",
        "apply log_softmax(dim=-1) over the classes before the loss", true};
  if (word == "probabilities")
    return {"probabilities_into_ctc", "gets probabilities where it needs log-probabilities",
            "the logarithm is missing: the loss weighs mistakes wrongly and cannot come near its least value",
            "use log_softmax instead of softmax", false};
  if (word == "blank")
    return {"blank_in_ctc_targets", "gets targets that hold the blank",
            "the blank stands for no label, so no answer spells such a target: labels are counted from the "
            "number "
            "that is the blank, or the lengths of targets count their padding",
            "number the labels from 1 if blank is 0 (or give the last class as blank), and give each target "
            "its own "
            "length, without padding",
            false};
  if (word == "short")
    return {"too_few_steps_for_ctc", "gets fewer steps than most of the targets need",
            "each label takes one step, and one more between two that are equal: the loss of these rows is "
            "infinite, and zero_infinity=True makes it 0, so that nothing is learnt from them",
            "shorten the sequences less before the loss (smaller strides or pooling), or give input_lengths "
            "in steps "
            "of the output",
            false};
  return {};
}

constexpr Breach kDroppedNumbers = {
    "dropout_before_scores", "gets predictions of which dropout has set some to 0",
    "0 is an answer, too: which rows get it is drawn anew at each step, and the others are scaled up",
    "put the dropout before the last layer, not behind it", false};
constexpr Breach kBounded = {
    "bounded_scores", "gets cosines that hardly differ from each other",
    "cosines lie between -1 and 1, and with the constant that they are multiplied by even the best answer "
    "leaves most of the loss that an ignorant one has",
    "divide the cosines by a temperature of 0.05 to 0.5 in the place of multiplying by it, or multiply them "
    "by 10 or more",
    false};

}  // namespace luff::rules::loss_input_contract
