"""Plans that round blocks or take them out, against calls of probes on networks rounded by hand."""

import numpy as np
import pytest
from reference.random_network import random_batch, random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import probes, surgery
from tfresidual.routing.rounding import bytes_of, kernels_of, rounded

pytestmark = [pytest.mark.eager, pytest.mark.filterwarnings("ignore::UserWarning")]

BITS = (8, 3)


@pytest.fixture
def net():
    """Its second stage begins with a block that changes the shape, which can only be rounded."""
    net = random_network(blocks=(3, 2), widths=(4, 8), seed=2)
    net.compile("sgd", "sparse_categorical_crossentropy")
    return net


def by_hand(net, bits_of, data):
    """Loss, error and bytes of the network with units, by place, of so many bits; 0 is gone."""
    chain, kept = tfr.chain(net), net.get_weights()
    _, sections, _ = net.sections()
    units = {
        (s, b): unit
        for s, (_, units) in enumerate(sections, start=1)
        for b, unit in enumerate(units)
    }
    size = sum(4 * weight.numpy().size for weight in net.weights)
    for place, bits in bits_of.items():
        if bits == 0:
            size -= sum(4 * weight.numpy().size for weight in units[place].weights)
            continue
        for kernel, axes in kernels_of([units[place]]):
            size -= bytes_of(kernel) - bytes_of(kernel, bits, axes=axes)
            kernel.assign(rounded(kernel, bits, axes=axes))
    gone = [place for place, bits in bits_of.items() if bits == 0]
    route = tfr.routes.drop(chain, *gone) if gone else tfr.routes.unperturbed(chain)
    frame = probes.evaluate_routes(chain, data, [route])
    net.set_weights(kept)
    return frame["cross_entropy"][0], frame["error"][0], size


def test_in_every_step_the_loss_rises_least_per_byte(net):
    data, test = random_batch(net, images=12), random_batch(net, images=9, seed=5)
    whole = sum(bytes_of(weight) for weight in net.weights)
    goal = {"most_bytes": whole // 3, "bits": BITS, "test": test, "batch_sizes": ()}
    plan = surgery.plan(net, data, **goal)
    blocks = {(b.stage, b.index): b for b in tfr.chain(net).blocks}
    done = {}
    for row in plan.to_dict("records"):
        if row["step"]:
            loss, _, size = by_hand(net, done, data)
            values = {}
            for place, block in blocks.items():
                for bits in (*BITS, 0) if block.keeps_shape else BITS:
                    if bits < done.get(place, 32):
                        other, _, left = by_hand(net, done | {place: bits}, data)
                        values[place, bits] = (other - loss) / (size - left) * 2**20
            step = (row["stage"], row["block"]), row["bits"]
            assert row["value"] == pytest.approx(values[step], rel=1e-3, abs=1e-2)
            assert values[step] == pytest.approx(min(values.values()), rel=1e-3, abs=1e-2)
            done[step[0]] = step[1]
        loss, error, size = by_hand(net, done, test)
        assert row["bytes"] == size
        assert (row["error"], row["cross_entropy"]) == pytest.approx((error, loss), rel=1e-4)
    assert plan["bytes"].iloc[-1] <= whole // 3 < plan["bytes"].iloc[-2]
    assert plan["bits"][0] == 32 and plan["bytes"][0] == whole
    # What is rounded stays in the network, and what goes is what the rows with 0 bits say.
    left = plan["blocks_left"].iloc[-1]
    assert left == len(blocks) - (plan["bits"] == 0).sum() < len(blocks)
    smaller = surgery.quantized(net, plan)
    assert len(tfr.chain(smaller).blocks) == left
    loss = smaller.evaluate(*test, verbose=0)
    assert loss == pytest.approx(plan["cross_entropy"].iloc[-1], rel=1e-4)


def test_a_plan_ends_before_the_error_rises(net):
    images, _ = random_batch(net, images=30)
    data = images, np.argmax(net(images, training=False), axis=-1)
    plan = surgery.plan(net, data, most_error=0.2, bits=BITS, test=data, batch_sizes=(1,))
    assert (plan["error_selection"] <= 0.2).all() and len(plan) > 1
    assert (plan["bytes"].diff().dropna() < 0).all()
    assert plan["milliseconds_1"].notna().all()


@pytest.mark.parametrize(
    ("names", "given"),
    [
        (["bits"], {"bits": (8,), "blocks": 1}),
        (["bits"], {"bits": (8,), "speed": 2.0}),
        (["bits"], {"bits": (32,), "most_error": 0.1}),
        (["bits"], {"bits": (8,), "most_error": 0.1, "by": "influence"}),
        (["bits"], {"most_bytes": 10}),
        (["bits"], {"bits": (), "most_bytes": 10}),
        (["most_bytes"], {"bits": (8,), "most_bytes": 10**9}),
        (["most_bytes"], {"bits": (8,), "most_bytes": 10}),
        (["most_bytes"], {"bits": (8,), "most_bytes": 0}),
        (["most_bytes", "most_error"], {"bits": (8,), "most_bytes": 9, "most_error": 0.1}),
    ],
)
def test_what_is_refused(net, names, given):
    data = random_batch(net)
    with refused(*names):
        surgery.plan(net, data, test=data, batch_sizes=(), **given)
