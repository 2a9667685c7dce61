"""A chain that does not compute what its network does is refused, by probes and by `export`.

Not covered: networks so deep that rounding alone changes what they answer.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from refusals import refused

import tfresidual as tfr
from tfresidual import networks, probes
from tfresidual.routing import agreement, evaluate
from tfresidual.routing.routes import follow, repeat_last_block, unperturbed

pytestmark = pytest.mark.eager

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(6, 8, 8, 1)).astype("float32"), RNG.integers(0, 5, 6)
DATA = IMAGES, LABELS


def functional(body=lambda state: state, activation="softmax"):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 1))
    state = layers.Conv2D(4, 3, padding="same")(inputs)
    state = state + layers.Conv2D(4, 3, padding="same", activation="relu")(body(state))
    state = layers.GlobalAveragePooling2D()(state)
    return keras.Model(inputs, layers.Dense(5, activation)(state))


def small_network(**settings):
    keras.utils.set_random_seed(3)
    return networks.ResidualNetwork((8, 8, 1), 5, blocks=1, widths=(4,), **settings)


def routed(chain):
    return evaluate(chain, DATA, [unperturbed(chain)])


def of_gradients(chain):
    return probes.block_metrics(chain, DATA)


def broken(chain, changed=1e-2):
    """The chain with a head that returns something else."""
    return dataclasses.replace(
        chain,
        head=lambda state: chain.head(state * (1 + changed)),
    )


@pytest.mark.parametrize(
    "source", ["network", "functional", pytest.param("saved", marks=pytest.mark.nightly)]
)
def test_another_function_than_the_network_is_refused(source, tmp_path):
    net = functional() if source == "functional" else small_network()
    if source == "saved":
        tfr.export(net, tmp_path / "net")
        net = tmp_path / "net"
    chain = tfr.chain(net)
    of_gradients(chain)
    for probe, change in ((routed, 1e-2), (routed, np.nan), (of_gradients, 1e-2)):
        with refused("chain"):
            probe(broken(chain, change))
    # On purpose, or by less than rounding explains.
    routed(dataclasses.replace(broken(chain), reference=None))
    routed(broken(chain, 1e-6))


@pytest.mark.parametrize("probing", [True, False])
def test_export_refuses_it_and_leaves_what_is_there(probing, tmp_path):
    chain = tfr.chain(functional())
    tfr.export(chain, tmp_path / "net", probing=probing)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    wrong = broken(chain)
    for target, overwrite in (("net", True), ("new", False)):
        with refused("chain"):
            tfr.export(wrong, tmp_path / target, probing=probing, overwrite=overwrite)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not (tmp_path / "new").exists()


class Noise(layers.Layer):
    """Draws without training, too."""

    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs))


@pytest.mark.parametrize("use", [routed, of_gradients, lambda c: tfr.export(c, "never/written")])
def test_a_network_that_draws_at_random_is_told_so(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chain = tfr.chain(functional(Noise()))
    with refused("chain") as caught:
        use(chain)
    assert "random" in str(caught.value) and not any(tmp_path.iterdir())


def test_outputs_that_are_not_finite_agree(tmp_path):
    net = functional(activation=None)
    kernel = net.layers[-1].kernel
    for value in (np.inf, 1e38, np.nan):
        kernel.assign(np.full(kernel.shape, value, "float32"))
        routed(tfr.chain(net))
    tfr.export(net, tmp_path / "net")
    routed(tfr.chain(tmp_path / "net"))


@pytest.mark.compiled
@pytest.mark.parametrize(
    "policy", [pytest.param("mixed_bfloat16", marks=pytest.mark.nightly), "mixed_float16"]
)
def test_rounding_is_no_difference(policy, tmp_path):
    net = small_network(dtype=policy)
    net.layers[-1].kernel.assign(net.layers[-1].kernel * 1e4)
    routed(tfr.chain(net))
    tfr.export(net, tmp_path / "net")
    routed(tfr.chain(tmp_path / "net"))


@pytest.mark.compiled
def test_bounded_networks_and_routes_of_their_own_agree():
    net = small_network(lipschitz=0.9)
    chain = tfr.chain(net)
    routed(chain)
    for weight in net.trainable_weights:
        weight.assign(weight * 1.5)
    routed(chain)
    changed = follow(chain, repeat_last_block(chain, 1, 2))
    assert changed.reference is None
    routed(changed)


@pytest.mark.parametrize(
    ("found", "expected", "share"),
    [
        ([[1.0, 0.0]], [[1.0, 0.0]], 0),
        ([[1.0, 0.1]], [[1.0, 0.0]], 0.1),
        ([[np.nan, 1.0]], [[np.inf, 1.0]], 0),
        ([[np.nan, 1.0]], [[2.0, 1.0]], np.inf),
        # A number close to zero may be a difference of large ones.
        ([[2.0], [1e-9], [1.0]], [[2.0], [3e-9], [1.0]], 2e-9),
        # One image that explodes does not hide the others.
        ([[1e20], [1.0], [1.5]], [[1e20], [1.0], [1.0]], 0.5 / 1.5),
        ([[1e300]], [[-1e300]], 2),
        ([1.0, 2.0], [[1.0, 2.0]], np.inf),
    ],
)
def test_differences_by_hand(found, expected, share):
    found, expected = ({"outputs": np.array(values)} for values in (found, expected))
    np.testing.assert_allclose(agreement.difference(found, expected)[0], share)


@pytest.mark.parametrize(
    "use",
    [of_gradients, lambda chain: evaluate(chain, DATA, [unperturbed(chain)], with_losses=True)],
    ids=["gradients", "routes"],
)
def test_another_loss_than_that_of_the_network_is_refused(use):
    """Weights of losses and regularization are no difference; another loss is one."""
    net = functional(activation=None)
    sparse = keras.losses.SparseCategoricalCrossentropy
    net.layers[-1].kernel_regularizer = keras.regularizers.L2(1.0)
    net.compile("sgd", sparse(from_logits=True), loss_weights=[0.3])
    chain = tfr.chain(net)
    use(chain)
    net.compile("sgd", sparse(from_logits=True), loss_weights=[3.0])
    with refused("chain"):
        use(chain)
    assert len(probes.perturbation(chain, DATA)) == 1
    use(tfr.chain(net))
    use(dataclasses.replace(chain, reference_loss=None))
