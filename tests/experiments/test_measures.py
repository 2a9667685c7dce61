"""The measures of the catalogue, on a network that was trained for them."""

import catalogue
import clock
import keras
import measures
import numpy as np
import papers
import pytest
import statements

from tfresidual import probes
from tfresidual.jobs.settings import Settings

pytestmark = pytest.mark.system

papers.load()
SETTINGS = Settings(
    network="resnet",
    depth=20,
    width=4,
    recurrent=True,
    coupling=0.5,
    coupling_from=1,
    epochs=3,
    batch_size=16,
    train_size=800,
    validation=70,
    test_size=90,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A network of three blocks per stage, trained for three epochs, which are watched."""
    network = catalogue.Network("tiny", SETTINGS, {"seed": 0}, clock.clocked)
    return network.train(tmp_path_factory.mktemp("runs") / "tiny")


def errors(trained, split, count=None):
    """The share of images of a split whose digits are not all found, by `predict` and NumPy."""
    images = trained.images({split: count})[split]
    x, z = (np.concatenate(part) for part in zip(*images.as_numpy_iterator(), strict=True))
    found = keras.saving.load_model(trained.folder / "model.keras").predict(x, verbose=0)
    chosen = np.argsort(-found, axis=1)[:, : SETTINGS.digits]
    wrong = [set(one) != set(np.flatnonzero(is_on)) for one, is_on in zip(chosen, z, strict=True)]
    return np.mean(wrong), len(x)


@pytest.mark.nightly
def test_errors_of_a_trained_network(trained):
    summary, history = measures.summary(trained).iloc[0], measures.history(trained)
    assert len(history) == summary["epochs"] == SETTINGS.epochs
    error, count = errors(trained, "test")
    assert count == SETTINGS.test_size
    assert summary["error"] == pytest.approx(error)
    # The first images of the training, whole batches of them.
    error, count = errors(trained, "train", measures.IMAGES)
    assert count == SETTINGS.train_size
    assert summary["train_error"] == pytest.approx(error)
    # The network that is measured is that of the epoch with the lowest validation error.
    best = history.loc[summary["best_epoch"]]
    error, _ = errors(trained, "validation")
    assert best["error"] == history["error"].min() == pytest.approx(error)
    error, count = errors(trained, "train", measures.IMAGES_PER_EPOCH)
    assert count == 512
    assert best["train_error"] == pytest.approx(error)


def norms_of_states(trained, images, training):
    """Norms of the states of the network as it is built, by Keras and NumPy, one per block."""
    network = trained.untrained()
    units = [unit for _, stage in network.sections()[1] for unit in stage]
    states = keras.Model(network.inputs, [unit.output for unit in units])
    x = np.concatenate([x for x, _ in images.as_numpy_iterator()])
    found = states([x], training=training)
    return [np.linalg.norm(np.reshape(state, [len(x), -1]), axis=1).mean() for state in found]


@pytest.mark.parametrize(
    ("measure", "training", "tolerance"),
    [
        # Normalized by means of 0 and variances of 1.
        (measures.initial_signal, False, 1e-4),
        # By those of the same images; the last one of 60 updates has them to 0.9 ** 60.
        pytest.param(measures.first_signal, True, 0.01, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.nightly
def test_signal_before_training(measure, training, tolerance, trained):
    frame = measure(trained)
    assert list(dict.fromkeys(frame["split"])) == ["train", "validation"]
    images = trained.images({"train": measures.WARMUP})["train"]
    expected = norms_of_states(trained, images, training)
    found = frame[frame["split"] == "train"]["state_norm"]
    np.testing.assert_allclose(found, expected, rtol=tolerance)
    other = norms_of_states(trained, images, not training)
    assert not np.allclose(found, other, rtol=0.1)
    # r compares the first block of the network with every block.
    assert frame.groupby("split")["gradient_ratio"].first().to_list() == [1, 1]


def test_weights_of_late_coupling(trained):
    found = measures.weights(trained).iloc[0]
    late, all_blocks = (
        probes.effective_parameters(trained.chain, first_block=first).iloc[-1] for first in (1, 0)
    )
    assert late["effective"] != all_blocks["effective"]
    assert found["effective_parameters"] == pytest.approx(late["effective"])
    # Blocks that are not coupled are counted one by one.
    assert found["recurrent_parameters"] > all_blocks["recurrent"]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"test": None}, "90 test images"),
        ({"train": 100, "validation": 10}, "112 training and 16 validation images"),
        ({"train": 2000, "test": 85}, "800 training and 90 test images"),
    ],
)
def test_the_page_says_on_how_many_images(counts, words, trained):
    assert statements.images_in_words(counts, SETTINGS) == words
    found = {
        split: sum(len(z) for _, z in images.as_numpy_iterator())
        for split, images in trained.images(counts).items()
    }
    assert [str(count) for count in found.values()] == [
        word for word in words.split() if word.isdigit()
    ]
