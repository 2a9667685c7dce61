"""How much of the labels a linear classifier reads from the state after every block."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError, check_choice, check_int
from tfresidual.definitions.averages import standard_error, weighted_mean
from tfresidual.probes.measure import block_places, joined_splits
from tfresidual.probes.pooled import added, pooled, saved_states
from tfresidual.probes.predictions import label_check, labels_of, logits_of, scored_chain
from tfresidual.probes.readout import rows_of
from tfresidual.probes.untrained import initial_weights, weights_replaced
from tfresidual.routing import evaluate
from tfresidual.routing.data import BATCH_SIZE, batches_of, check_data, shape_of_outputs
from tfresidual.routing.positions import fits
from tfresidual.routing.runs import WEIGHTS, batches_over
from tfresidual.routing.scores import check_labels

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    from tfresidual.definitions.types import ChainSource, Frame, Images
    from tfresidual.probes.states import States
    from tfresidual.routing import Chain

RIDGE, LOGISTIC = "ridge", "logistic"
TRAIN = "train"
# Every so many training images choose the penalty, and are not fitted until it is chosen.
HELD_OUT = 5
# Penalties of ridge regression, as multiples of the mean variance of a feature.
PENALTIES = 10.0 ** np.arange(-6, 3)
# Those of logistic regression: 1 / C, for features of variance 1.
LOGISTIC_PENALTIES = 10.0 ** np.arange(-2, 4)
# The output of a class that no training image has.
_NEVER = -1e3


def linear_probe(
    chain: Chain | ChainSource | Mapping[str, States],
    data: Mapping[str, Images] | None = None,
    *,
    kind: Literal["ridge", "logistic"] = "ridge",
    control: bool = True,
    seed: int | None = 0,
    progress: bool = False,
) -> Frame:
    """Fits a linear classifier to the state after every block, and measures it on other images.

    The features of an image are the means of the channels over all positions (of a sequence, over
    those that are not padding). For outputs per position, every position that counts is an example
    with the features of the state there. A classifier is fitted to the images of the split
    `"train"`, with a penalty that is chosen on every fifth of them, and measured on the other
    splits.

    - `accuracy`: the share of images whose highest output is the label, in [0, 1]; with n labels
      per image, whose n highest outputs are exactly the labels.
    - `squared_error`: the mean squared distance between prediction and label, a vector of 0 and 1
      for the classes: of ridge regression the outputs, of logistic regression the probabilities
      (Brier score); 0 or more.
    - `control`: the accuracy of a classifier fitted to the same images with permuted labels, which
      knows no more than how common the classes are. (A control task of Hewitt and Liang has labels
      that a classifier with enough parameters can learn by heart; on other images, these cannot.)
    - `selectivity`: `accuracy` minus `control`, in [-1, 1].
    - `untrained`: the accuracy on the states of the same network with new initial weights.
    - `head`: the accuracy of the network when the stage is left after the block, see `readout`.
    - `penalty`: the one chosen; for ridge regression as a multiple of the mean variance of a
      feature, for logistic regression that of features of variance 1, `1 / C` of scikit-learn.

    Example:

    >>> frame = linear_probe(tfresidual.chain(net), {"train": train, "test": test})
    >>> frame[["stage", "block", "accuracy", "untrained"]].to_string()
    '...'

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts, for a network that predicts
            classes; or the dict of states that `load_states` returns, with labels that are one
            index of a class per image or rows of 0 and 1.
        data: a dict of images and labels, see `tfresidual.definitions.types.Data`: `"train"` and
            at least one other split, unless states have these. It is read several times.
        kind: `"ridge"`, one pass over the training images, which keeps sums of products of the
            channels of every block; or `"logistic"`, by scikit-learn (`pip install
            tfresidual[states]`), which keeps the features of all training images in memory.
        control: whether the controls are measured too: permuted labels, and the untrained network.
        seed: int, 0 or more, of the permutation and of the new initial weights, or `None` for
            others in every call.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `split`, `stage` (from 1), `block` (from 0) and the
        metrics, without `control`, `selectivity` and `untrained` if they are not measured. Those of
        accuracies have standard errors over the images of the split in columns `..._se`.
        `untrained` is NaN if the network cannot be made from its configuration, such as that of a
        SavedModel, `head` where the stage cannot be left, both for states, and all are NaN for a
        state that is not finite or, for outputs per position, has other positions.

    Raises:
        ValueError: if an argument cannot be used, all training images have the same labels, or the
            outputs of the network are not classes.

    Reference:
        Alain and Bengio 2016, "Understanding intermediate layers using linear classifier probes",
        section 3; Hewitt and Liang 2019, "Designing and interpreting probes with control tasks",
        section 2, for the selectivity.
    """
    check_choice("kind", kind, (RIDGE, LOGISTIC))
    check_int("seed", seed, at_least=0, or_none=True)
    source: _Network | _Saved
    if isinstance(chain, Mapping):
        if data is not None:
            raise ArgumentError("data", "be left out: states have labels", data)
        network, parts = None, _checked_splits("chain", chain)
        source = _Saved(parts)
    else:
        network, parts = scored_chain(chain), _checked_splits("data", data)
        for part in parts.values():
            check_data(part, again=True)
        source = _Network(network, progress)
    labels = source.labels(parts[TRAIN])
    if len(labels) < HELD_OUT or (labels == labels[0]).all():
        raise ArgumentError(
            "data",
            f"hold at least {HELD_OUT} training images, of two classes or more",
            received=f"{len(labels)} of {len(np.unique(labels, axis=0))}",
        )
    permuted = np.random.default_rng(seed).permutation(labels) if control else None
    of_network = _measured(source, parts, kind, permuted)
    weights, of_untrained = initial_weights(network, seed) if control and network else None, {}
    if weights is not None:
        with weights_replaced(network, weights):
            of_untrained = _measured(source, parts, kind, None)
    frames = {}
    for split, scores in of_network.items():
        columns = _with_error("accuracy", scores.right, scores.weights)
        columns["squared_error"] = weighted_mean(scores.squares, scores.weights)
        if control:
            columns |= _with_error("control", scores.control, scores.weights)
            difference = scores.right - scores.control
            columns |= _with_error("selectivity", difference, scores.weights)
            columns |= dict.fromkeys(("untrained", "untrained_se"), np.nan)
        if of_untrained:
            other = of_untrained[split]
            columns |= _with_error("untrained", other.right, other.weights)
        columns |= source.of_head(parts[split])
        frames[split] = source.places.assign(**columns, penalty=scores.penalties)
    return joined_splits(frames)


def _checked_splits(name: str, data: Any) -> Mapping[str, Any]:
    is_split = isinstance(data, Mapping) and TRAIN in data and len(data) > 1
    if not is_split:
        kind = type(data).__name__
        raise ArgumentError(
            name,
            f"be a dict with the split {TRAIN!r}, which is fitted, and at least one other",
            received=f"splits {', '.join(map(str, data))}" if isinstance(data, dict) else kind,
        )
    return data


@dataclasses.dataclass
class _Scores:
    """Scores of the images of a split, `(images, blocks)`, and their weights.

    For outputs per position, they are means over the positions, and weighted by their number.
    """

    right: np.ndarray
    control: np.ndarray
    squares: np.ndarray
    weights: np.ndarray
    penalties: list[float]


def _with_error(name, values, weights):
    """Returns the mean of a score and its standard error, as columns."""
    return {name: weighted_mean(values, weights), f"{name}_se": standard_error(values, weights)}


def _measured(source, data, kind, permuted):
    """Returns the `_Scores` of every split, given permuted labels, if a control is measured."""
    fit = (_Ridge if kind == RIDGE else _Logistic)(len(source.places))
    seen = 0
    for states, labels, weights, _ in source.examples(data[TRAIN]):
        rows, order = labels, np.arange(seen, seen + len(labels))
        if permuted is not None:
            rows = np.concatenate([labels, permuted[order]], axis=1)
        fit.add(states, rows.astype(float), weights, order % HELD_OUT == HELD_OUT - 1)
        seen += len(labels)
    classifiers = fit.classifiers(1 if permuted is None else 2)
    return {
        split: _scores(source.examples(part), classifiers)
        for split, part in data.items()
        if split != TRAIN
    }


def _scores(batches, classifiers):
    """Returns the `_Scores` of the batches of a split."""
    parts, all_weights, images = [], [], []
    for states, labels, weights, image in batches:
        found = np.full((3, len(labels), len(states)), np.nan)
        for place, (state, (own, *control)) in enumerate(zip(states, classifiers, strict=True)):
            if state is None or own is None:
                continue
            outputs = own.outputs(state)
            found[0, :, place] = _are_right(outputs, labels)
            found[2, :, place] = ((own.prediction(outputs) - labels) ** 2).sum(axis=1)
            for other in control:
                found[1, :, place] = _are_right(other.outputs(state), labels)
        parts.append(found)
        all_weights.append(weights)
        images.append(image)
    scores = np.concatenate(parts, axis=1)
    weights, image = np.concatenate(all_weights), np.concatenate(images)
    (right, control, squares), weights = _by_image(scores, weights, image)
    penalties = [own.penalty if own else np.nan for own, *_ in classifiers]
    return _Scores(right, control, squares, weights, penalties)


def _by_image(scores, weights, image):
    """Returns means over the examples of an image, and weights that count these."""
    _, places, counts = np.unique(image, return_inverse=True, return_counts=True)
    if (counts == 1).all():
        return scores, weights
    sums = np.zeros((len(scores), len(counts), scores[0].shape[1]))
    for total, score in zip(sums, scores, strict=True):
        np.add.at(total, places, score)
    first = np.zeros(len(counts))
    first[places] = weights
    return sums / counts[:, None], first * counts


def _are_right(outputs, labels):
    """Returns whether the n highest outputs are the n labels; of equal ones, the lower classes."""
    ranks = np.argsort(np.argsort(-outputs, axis=1, kind="stable"), axis=1)
    is_right = ((ranks < labels.sum(axis=1, keepdims=True)) == labels).all(axis=1)
    return is_right & np.isfinite(outputs).all(axis=1)


class _Network:
    """The examples of data as a network sees them: images, or positions that count."""

    def __init__(self, chain, progress):
        self.chain, self.progress, self.places = chain, progress, block_places(chain)

    def labels(self, part):
        """Returns the labels of all examples of a split, bool, `(examples, classes)`."""
        chain, check, parts = self.chain, label_check(self.chain), []
        for images, labels, _ in batches_of(part, chain):
            check(images, labels)
            outputs = tf.zeros((len(labels), *shape_of_outputs(chain, images)))
            logits, has_several = logits_of(chain.outputs, outputs)
            read = labels_of(chain.with_context(images), labels, outputs, logits, has_several)
            parts.append(read.sets.numpy()[read.counted.numpy()])
        return np.concatenate(parts)

    def examples(self, part):
        """Yields `(states, labels, weights, image)` of every batch.

        These are lists of the states after every block, float64 `(examples, channels)`, or `None`
        where a state has other positions than the outputs; labels, bool, `(examples, classes)`; and
        the weights and the numbers of the images of the examples, counted from 0 in the data.
        """
        function, before = functools.partial(_batch_values, self.chain), 0
        settings = {"check": label_check(self.chain), "with_losses": False}
        for found in batches_over(
            self.chain, "linear probe", function, part, self.progress, **settings
        ):
            values = {name: value.numpy() for name, value in found.items()}
            is_counted = values["counted"]
            image = np.nonzero(is_counted)[0]
            states = [values.get(str(place)) for place in range(len(self.places))]
            states = [None if state is None else state[is_counted] for state in states]
            yield states, values["sets"][is_counted], values[WEIGHTS][image], image + before
            before += len(is_counted)

    def of_head(self, part):
        """Returns the accuracy of the network when its stages are left, as columns."""
        routes = [route for _, route in rows_of(self.chain)]
        known = [place for place, route in enumerate(routes) if route is not None]
        chosen = [routes[place] for place in known]
        values = evaluate(self.chain, part, chosen, progress=self.progress)
        right = np.full((len(values.image), len(routes)), np.nan)
        right[:, known] = 1 - values.wrong.T
        (right,), weights = _by_image([right], values.weights, values.image)
        return _with_error("head", right, weights)


class _Saved:
    """The examples of states on disk, see `_Network`."""

    def __init__(self, splits):
        self.places = splits[TRAIN].index[["stage", "block"]]
        for split, states in splits.items():
            if states.labels is None:
                raise ArgumentError("chain", "hold states with labels", received=f"{split!r}")
        labels = [states.labels for states in splits.values()]
        self.is_row = labels[0].ndim == 2 and labels[0].shape[1] > 1
        most = max(part.max(initial=0) for part in labels)
        self.classes = labels[0].shape[1] if self.is_row else int(np.nan_to_num(most)) + 1
        for part in labels:
            check_labels("logits", part, max(self.classes, 2))

    def labels(self, states):
        if self.is_row:
            return states.labels > 0.5
        return np.arange(self.classes) == states.labels.reshape(-1, 1)

    def examples(self, states):
        labels = self.labels(states)
        for rows, is_counted, part in saved_states(states, BATCH_SIZE):
            image = np.flatnonzero(is_counted)
            rows = [row[is_counted] for row in rows]
            yield rows, labels[part][is_counted], states.weights[part][image], image + part.start

    def of_head(self, states):
        del states
        return dict.fromkeys(("head", "head_se"), np.nan)


def _batch_values(chain, images, labels):
    """Returns the states after all blocks by their number, labels, and which examples count."""
    chain = chain.with_context(images)
    pairs, last = chain.walk(chain.stem(images))
    outputs = chain.head(last)
    logits, has_several = logits_of(chain.outputs, outputs)
    read = labels_of(chain, labels, outputs, logits, has_several)
    states = {}
    for place, (_, after) in enumerate(pairs):
        if len(outputs.shape) == 2:
            states[str(place)] = pooled(chain, after, "float64")
        elif chain.outputs_at_positions and len(after.shape) == 3 and fits(after, outputs):
            states[str(place)] = tf.cast(after, tf.float64)
    return states | {"sets": read.sets, "counted": read.counted}


# Classifiers


@dataclasses.dataclass
class _Classifier:
    """A linear classifier: `outputs = (state - center) @ weights + biases`."""

    center: np.ndarray
    weights: np.ndarray
    biases: np.ndarray
    penalty: float
    prediction: Callable[[np.ndarray], np.ndarray] = lambda outputs: outputs

    def outputs(self, state):
        with np.errstate(invalid="ignore", over="ignore"):
            return (state - self.center) @ self.weights + self.biases


class _Ridge:
    """Ridge regression of labels, numbers 0 and 1, with an intercept, from sums over the images."""

    def __init__(self, blocks):
        # Of every block, the state that is the origin, and the sums to fit and to choose with.
        self.origins, self.sums = [None] * blocks, [[None, None] for _ in range(blocks)]

    def add(self, states, labels, weights, is_held_out):
        for place, state in enumerate(states):
            if state is None or not len(state):
                continue
            if self.origins[place] is None:
                # Small differences keep their digits in sums of squares.
                self.origins[place] = state[0]
            with np.errstate(invalid="ignore", over="ignore"):
                state = state - self.origins[place]
                for part, chosen in enumerate((~is_held_out, is_held_out)):
                    sums = _sums(state[chosen], labels[chosen], weights[chosen])
                    self.sums[place][part] = added(self.sums[place][part], sums)

    def classifiers(self, parts):
        """Returns the classifiers of every block, one for each of so many parts of the labels."""
        return [
            [None] * parts
            if origin is None or not np.isfinite(sums[0]["xx"] + sums[1]["xx"]).all()
            else _ridge(origin, *sums, parts)
            for origin, sums in zip(self.origins, self.sums, strict=True)
        ]


def _sums(x, y, weights):
    """Returns weighted sums of products of states and labels, by name."""
    weighted = x * weights[:, None]
    return {
        "count": weights.sum(),
        "x": weighted.sum(axis=0),
        "y": weights @ y,
        "xx": weighted.T @ x,
        "xy": weighted.T @ y,
    }


def _centred(sums, x, y):
    """Returns the sums of products of states less `x` with themselves and labels less `y`."""
    xx = sums["xx"] - np.outer(sums["x"], x) - np.outer(x, sums["x"])
    xy = sums["xy"] - np.outer(sums["x"], y) - np.outer(x, sums["y"])
    return xx + sums["count"] * np.outer(x, x), xy + sums["count"] * np.outer(x, y)


def _ridge(origin, fitted, held_out, parts):
    """Returns the classifiers of one block."""
    whole, penalties = added(fitted, held_out), _chosen(fitted, held_out, parts)
    x, y = whole["x"] / whole["count"], whole["y"] / whole["count"]
    xx, xy = _centred(whole, x, y)
    solve = _solver(xx)
    return [
        _Classifier(origin + x, solve(xy[:, columns], penalty), y[columns], penalty)
        for columns, penalty in zip(np.split(np.arange(len(y)), parts), penalties, strict=True)
    ]


def _solver(xx):
    """Returns the function `(xy, penalty)` of the coefficients of ridge regression."""
    values, vectors = np.linalg.eigh(xx)
    values = np.maximum(values, 0)
    # Without any variance, all coefficients are 0.
    mean = values.mean() or 1.0

    def solve(xy, penalty):
        return vectors @ ((vectors.T @ xy) / (values + penalty * mean)[:, None])

    return solve


def _chosen(fitted, held_out, parts):
    """Returns the penalty with the lowest squared error on the images held out, for every part."""
    x, y = fitted["x"] / fitted["count"], fitted["y"] / fitted["count"]
    xx, xy = _centred(fitted, x, y)
    solve, (other_xx, other_xy) = _solver(xx), _centred(held_out, x, y)
    errors = []
    for penalty in PENALTIES:
        w = solve(xy, penalty)
        # Without the sum of squares of the labels, which no penalty changes.
        errors.append(((other_xx @ w - 2 * other_xy) * w).sum(axis=0))
    errors = np.array(errors).reshape(len(PENALTIES), parts, -1).sum(axis=2)
    return PENALTIES[np.argmin(errors, axis=0)]


class _Logistic:
    """Logistic regression by scikit-learn, from the states of all images."""

    def __init__(self, blocks):
        self.batches = []

    def add(self, states, labels, weights, is_held_out):
        kept = [None if state is None else state.astype(np.float32) for state in states]
        self.batches.append((kept, labels > 0, weights, is_held_out))

    def classifiers(self, parts):
        """Returns the classifiers of every block, one for each of so many parts of the labels."""
        from threadpoolctl import threadpool_limits

        by_block, *others = zip(*self.batches, strict=True)
        labels, weights, is_held_out = map(np.concatenate, others)
        found = []
        for states in zip(*by_block, strict=True):
            x = None if states[0] is None else np.concatenate(states).astype(float)
            if x is None or not np.isfinite(x).all():
                found.append([None] * parts)
                continue
            center, scale = x.mean(axis=0), x.std(axis=0)
            x = (x - center) / np.where(scale > 0, scale, 1)
            found.append([])
            for rows in np.split(labels, parts, axis=1):
                # Threads that share small products spend their time on waiting for one another.
                with threadpool_limits(1):
                    one = _logistic(x, rows, weights, is_held_out)
                scaled = one.weights / np.where(scale > 0, scale, 1)[:, None]
                found[-1].append(dataclasses.replace(one, center=center, weights=scaled))
        return found


def _logistic(x, labels, weights, is_held_out):
    """Returns the classifier of features with mean 0 and variance 1."""
    from scipy.special import expit, softmax

    has_one = (labels.sum(axis=1) == 1).all()
    predict = functools.partial(softmax, axis=1) if has_one else expit

    def fitted(penalty, chosen):
        images = x[chosen], labels[chosen], weights[chosen], penalty
        maps = _of_classes(*images) if has_one else _of_labels(*images)
        return _Classifier(np.zeros(x.shape[1]), *maps, penalty, predict)

    def error(one):
        squares = (predict(one.outputs(x[is_held_out])) - labels[is_held_out]) ** 2
        return weights[is_held_out] @ squares.sum(axis=1)

    best = min((fitted(penalty, ~is_held_out) for penalty in LOGISTIC_PENALTIES), key=error)
    return fitted(best.penalty, np.ones(len(x), bool))


def _of_classes(x, labels, weights, penalty):
    """Returns coefficients `(features, classes)` and biases of classes that exclude one another."""
    from sklearn.linear_model import LogisticRegression

    answers, classes = labels.argmax(axis=1), labels.shape[1]
    present = np.unique(answers)
    found, biases = np.zeros((x.shape[1], classes)), np.full(classes, _NEVER)
    biases[present] = 0
    if len(present) > 1:
        model = LogisticRegression(C=1 / penalty, max_iter=1000)
        model.fit(x, answers, sample_weight=weights)
        # One row of two classes: that of the second.
        is_pair = len(present) == 2
        halves = np.array([[-0.5], [0.5]])
        found[:, present] = (halves * model.coef_ if is_pair else model.coef_).T
        biases[present] = halves[:, 0] * model.intercept_ if is_pair else model.intercept_
    return found, biases


def _of_labels(x, labels, weights, penalty):
    """Returns coefficients and biases of several labels, each of which is there or not."""
    maps = []
    for column in labels.T:
        found, biases = _of_classes(x, np.stack([~column, column], axis=1), weights, penalty)
        maps.append((found[:, 1] - found[:, 0], biases[1] - biases[0]))
    found, biases = zip(*maps, strict=True)
    return np.stack(found, axis=1), np.array(biases)
