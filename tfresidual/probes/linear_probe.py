"""How much of the labels a linear classifier reads from the state after every block."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError, check_choice, check_int
from tfresidual.definitions.averages import standard_error, weighted_mean
from tfresidual.probes.measure import block_places, joined_splits
from tfresidual.probes.pooled import pooled, saved_states
from tfresidual.probes.predictions import label_check, labels_of, logits_of, scored_chain
from tfresidual.probes.readout import rows_of
from tfresidual.probes.untrained import initial_weights, weights_replaced
from tfresidual.routing import evaluate
from tfresidual.routing.data import BATCH_SIZE, check_data
from tfresidual.routing.positions import fits
from tfresidual.routing.runs import WEIGHTS, batches_over
from tfresidual.routing.scores import check_labels

if TYPE_CHECKING:
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
    if isinstance(chain, Mapping):
        if data is not None:
            raise ArgumentError("data", "be left out: states have labels", data)
        network, parts = None, _checked_splits("chain", chain)
        places = parts[TRAIN].index[["stage", "block"]]
        examples = functools.partial(_saved_examples, _classes_of(parts))
    else:
        network, parts = scored_chain(chain), _checked_splits("data", data)
        for part in parts.values():
            check_data(part, again=True)
        places, examples = block_places(network), functools.partial(_examples, network, progress)
    labels = np.concatenate([part for _, part, *_ in examples(parts[TRAIN], with_states=False)])
    if len(labels) < HELD_OUT or (labels == labels[0]).all():
        raise ArgumentError(
            "data",
            f"hold at least {HELD_OUT} training images, of two classes or more",
            received=f"{len(labels)} of {len(np.unique(labels, axis=0))}",
        )
    permuted = [np.random.default_rng(seed).permutation(labels)] if control else []
    of_network = _measured(examples, parts, kind, permuted)
    weights, of_untrained = initial_weights(network, seed) if control and network else None, {}
    if weights is not None:
        with weights_replaced(network, weights):
            of_untrained = _measured(examples, parts, kind, [])
    frames = {}
    for split, (scores, squares, weights, penalties) in of_network.items():
        columns = _with_error("accuracy", scores[0], weights)
        columns["squared_error"] = weighted_mean(squares, weights)
        if control:
            columns |= _with_error("control", scores[1], weights)
            columns |= _with_error("selectivity", scores[0] - scores[1], weights)
            columns |= dict.fromkeys(("untrained", "untrained_se"), np.nan)
        if of_untrained:
            (right,), _, weights, _ = of_untrained[split]
            columns |= _with_error("untrained", right, weights)
        columns |= dict.fromkeys(("head", "head_se"), np.nan)
        if network:
            columns |= _of_head(network, parts[split], progress)
        frames[split] = places.assign(**columns, penalty=places.index.map(penalties))
    return joined_splits(frames)


def _checked_splits(name: str, data: Any) -> Mapping[str, Any]:
    if not (isinstance(data, Mapping) and TRAIN in data and len(data) > 1):
        raise ArgumentError(
            name,
            f"be a dict with the split {TRAIN!r}, which is fitted, and at least one other",
            received=f"{[*data] if isinstance(data, dict) else type(data)}",
        )
    return data


def _with_error(name, values, weights):
    """Returns the mean of a score and its standard error, as columns."""
    return {name: weighted_mean(values, weights), f"{name}_se": standard_error(values, weights)}


@np.errstate(invalid="ignore", over="ignore")
def _measured(examples, data, kind, permuted):
    """Returns the scores of every split, see `_scores`, those of a control from permuted labels."""

    def batches():
        seen = 0
        for states, labels, weights, _ in examples(data[TRAIN]):
            order = np.arange(seen, seen + len(labels))
            rows = np.stack([labels, *(one[order] for one in permuted)])
            yield states, rows, weights, order % HELD_OUT == HELD_OUT - 1
            seen += len(labels)

    classifiers = (_ridge if kind == RIDGE else _logistic)(batches())
    return {
        split: _scores(examples(part), classifiers, 1 + len(permuted))
        for split, part in data.items()
        if split != TRAIN
    }


def _scores(batches, classifiers, count):
    """Returns scores of a split, given so many classifiers each by number of the block.

    These are which images are right, `(classifiers, images, blocks)`; the squared errors of the
    first classifiers, `(images, blocks)`; the weights of images; and the penalties by block. For
    outputs per position, they are means over the positions, and weighted by their number.
    """
    parts = []
    for states, labels, weights, image in batches:
        found = np.full((len(labels), len(states), count + 1), np.nan)
        for place, of_block in classifiers.items():
            outputs = [predict(states[place]) for predict, _ in of_block]
            squares = ((outputs[0] - labels) ** 2).sum(axis=1)
            right = [_are_right(one, labels) for one in outputs]
            found[:, place] = np.stack([*right, squares], axis=1)
        parts.append((found, weights, image))
    scores, weights = _by_image(*map(np.concatenate, zip(*parts, strict=True)))
    *right, squares = np.moveaxis(scores, -1, 0)
    return right, squares, weights, {place: own[1] for place, (own, *_) in classifiers.items()}


def _by_image(scores, weights, image):
    """Returns means over the examples of an image, and weights that count these."""
    _, first, places, counts = np.unique(image, True, True, True)
    sums = np.zeros((len(counts), *scores.shape[1:]))
    np.add.at(sums, places, scores)
    return (sums.T / counts).T, weights[first] * counts


def _are_right(outputs, labels):
    """Returns whether the n highest outputs are the n labels; of equal ones, the lower classes."""
    ranks = np.argsort(np.argsort(-outputs, axis=1, kind="stable"), axis=1)
    is_right = ((ranks < labels.sum(axis=1, keepdims=True)) == labels).all(axis=1)
    return is_right & np.isfinite(outputs).all(axis=1)


def _examples(chain, progress, part, with_states=True):
    """Yields `(states, labels, weights, image)` of every batch, of images or positions that count.

    These are a list of the states after every block, float64 `(examples, channels)`, NaN if they
    have other positions than the outputs; labels, bool, `(examples, classes)`; and the weights and
    the numbers of the images of the examples, counted from 0 in the data.
    """
    name = "linear probe" if with_states else "labels"
    function, before = functools.partial(_batch_values, chain, with_states), 0
    settings = {"check": label_check(chain), "with_losses": False}
    for found in batches_over(chain, name, function, part, progress, **settings):
        values = {name: value.numpy() for name, value in found.items()}
        labels, is_counted, weights = map(values.pop, ("sets", "counted", WEIGHTS))
        image = np.nonzero(is_counted)[0]
        states = [values[str(place)][is_counted] for place in range(len(values))]
        yield states, labels[is_counted], weights[image], image + before
        before += len(is_counted)


def _of_head(chain, part, progress):
    """Returns the accuracy of the network when its stages are left, as columns."""
    routes = [route for _, route in rows_of(chain)]
    known = [place for place, route in enumerate(routes) if route is not None]
    values = evaluate(chain, part, [routes[place] for place in known], progress=progress)
    right = np.full((len(values.image), len(routes)), np.nan)
    right[:, known] = 1 - values.wrong.T
    return _with_error("head", *_by_image(right, values.weights, values.image))


def _classes_of(splits):
    """Returns the number of classes of the labels of states on disk."""
    for split, states in splits.items():
        if states.labels is None:
            raise ArgumentError("chain", "hold states with labels", received=f"{split!r}")
    labels = [states.labels for states in splits.values()]
    is_row = labels[0].ndim == 2 and labels[0].shape[1] > 1
    most = max(part.max(initial=0) for part in labels)
    classes = labels[0].shape[1] if is_row else int(np.nan_to_num(most)) + 1
    for part in labels:
        check_labels("logits", part, max(classes, 2))
    return classes


def _saved_examples(classes, states, with_states=True):
    """Yields what `_examples` does of states on disk."""
    labels = states.labels.reshape(len(states.labels), -1)
    labels = labels > 0.5 if labels.shape[1] > 1 else np.arange(classes) == labels
    for rows, is_counted, part in saved_states(states, BATCH_SIZE):
        image = np.flatnonzero(is_counted)
        rows = [row[is_counted] for row in rows]
        yield rows, labels[part][is_counted], states.weights[part][image], image + part.start


def _batch_values(chain, with_states, images, labels):
    """Returns labels, which examples count, and the states after all blocks by their number."""
    chain = chain.with_context(images)
    pairs, last = chain.walk(chain.stem(images))
    outputs = chain.head(last)
    logits, has_several = logits_of(chain.outputs, outputs)
    read = labels_of(chain, labels, outputs, logits, has_several)
    states = {}
    for place, (_, after) in enumerate(pairs if with_states else ()):
        if len(outputs.shape) == 2:
            states[str(place)] = pooled(chain, after, "float64")
        elif chain.outputs_at_positions and len(after.shape) == 3 and fits(after, outputs):
            states[str(place)] = tf.cast(after, tf.float64)
        else:
            states[str(place)] = tf.fill([*tf.unstack(tf.shape(logits)[:-1]), 1], np.nan)
    return states | {"sets": read.sets, "counted": read.counted}


# Classifiers. Functions take batches of states after all blocks, labels, `(parts, examples,
# classes)`, weights, and which examples choose the penalty. They return a dict by number of the
# block, without those whose states are not finite: for every part of the labels, a function of a
# state and the penalty.


def _ridge(batches):
    """Fits ridge regression of labels, 0 and 1, with an intercept, from sums over the examples."""
    origins, sums = {}, {}
    for states, labels, weights, is_held_out in batches:
        for place, state in enumerate(states if len(weights) else ()):
            # Small differences keep their digits in sums of squares.
            state = state - origins.setdefault(place, state[0])
            rows = np.concatenate([np.ones((len(state), 1)), state, *labels], axis=1)
            for part in (False, True):
                chosen = rows[is_held_out == part] * np.sqrt(weights[is_held_out == part, None])
                sums[place, part] = sums.get((place, part), 0) + chosen.T @ chosen
    return {
        place: _ridge_of(origin, sums[place, False], sums[place, True], len(labels))
        for place, origin in origins.items()
        if np.isfinite(sums[place, False] + sums[place, True]).all()
    }


def _ridge_of(origin, fitted, held_out, parts):
    """Returns the classifiers of one block, given sums of products of (1, state, labels)."""
    found, whole = (_coefficients(sums, len(origin)) for sums in (fitted, fitted + held_out))
    # What is predicted less the labels, as coefficients of (1, state, labels).
    labels = found.shape[-1]
    rest = np.concatenate([found, [-np.eye(labels)] * len(PENALTIES)], axis=1)
    errors = ((held_out @ rest) * rest).sum(axis=1).reshape(len(PENALTIES), parts, -1)
    classifiers = []
    for part, best in enumerate(errors.sum(axis=2).argmin(axis=0)):
        own = np.split(whole[best], parts, axis=1)[part]
        predict = lambda state, own=own: (state - origin) @ own[1:] + own[0]  # noqa: E731
        classifiers.append((predict, PENALTIES[best]))
    return classifiers


def _coefficients(sums, width):
    """Returns intercepts and coefficients of ridge regression, `(penalties, 1 + width, labels)`."""
    mean = sums[0] / sums[0, 0]
    states, labels = slice(1, width + 1), slice(width + 1, None)
    sums = sums - np.outer(sums[0], mean)
    values, vectors = np.linalg.eigh(sums[states, states])
    values = np.maximum(values, 0)
    # Without any variance, all coefficients are 0.
    values = values + PENALTIES[:, None] * (values.mean() or 1.0)
    weights = vectors @ ((vectors.T @ sums[states, labels]) / values[..., None])
    return np.concatenate([(mean[labels] - mean[states] @ weights)[:, None], weights], axis=1)


def _logistic(batches):
    """Fits logistic regression by scikit-learn, from the states of all images."""
    from threadpoolctl import threadpool_limits

    kept = [([one.astype(np.float32) for one in states], *others) for states, *others in batches]
    by_block, labels, *others = zip(*kept, strict=True)
    labels, others = np.concatenate(labels, axis=1), [*map(np.concatenate, others)]
    found = {}
    for place, states in enumerate(zip(*by_block, strict=True)):
        x = np.concatenate(states).astype(float)
        if np.isfinite(x).all():
            # Threads that share small products spend their time on waiting for one another.
            with threadpool_limits(1):
                found[place] = [_logistic_of(x, rows, *others) for rows in labels]
    return found


def _logistic_of(x, labels, weights, is_held_out):
    """Returns the classifier of one block for some labels."""
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler, has_one = StandardScaler().fit(x), (labels.sum(axis=1) == 1).all()
    # The class, or for each of several labels whether it is there.
    answers = [labels.argmax(axis=1)] if has_one else labels.T

    def fitted(penalty, chosen):
        rows, models = scaler.transform(x[chosen]), []
        for answer in answers:
            one = LogisticRegression(C=1 / penalty, max_iter=1000)
            one = DummyClassifier() if len(np.unique(answer[chosen])) == 1 else one
            models.append(one.fit(rows, answer[chosen], weights[chosen]))
        return functools.partial(outputs, models), penalty

    def outputs(models, state):
        """Returns probabilities; 0 for classes that no training image has."""
        p, is_finite = np.zeros((len(state), labels.shape[1])), np.isfinite(state).all(axis=1)
        for place, model in enumerate(models if len(state) else ()):
            found = model.predict_proba(scaler.transform(np.where(is_finite[:, None], state, 0)))
            for answer, column in zip(model.classes_, found.T, strict=True):
                if has_one or answer:
                    p[:, answer if has_one else place] = column
        return np.where(is_finite[:, None], p, np.nan)

    def error(classifier):
        squares = (classifier[0](x[is_held_out]) - labels[is_held_out]) ** 2
        return weights[is_held_out] @ squares.sum(axis=1)

    _, best = min((fitted(penalty, ~is_held_out) for penalty in LOGISTIC_PENALTIES), key=error)
    return fitted(best, slice(None))
