"""What takes more memory than the machine has is refused before it is made."""

import pytest

from tfresidual import networks
from tfresidual.jobs import training
from tfresidual.jobs.settings import Settings
from tfresidual.machine import memory
from tfresidual.networks import specification

GIB = 2**30
BUILDERS = {
    "resnet": lambda: networks.resnet(20),
    "bottlenecks": lambda: networks.resnet(29, bottleneck=True),
    "wide": lambda: networks.resnet(20, widths=(64, 128, 256)),
    "shared": lambda: networks.resnet(50, share_from=2),
    "shared after all of a stage": lambda: networks.ResidualNetwork(
        (32, 32, 3), 10, blocks=(2, 6), widths=(16, 32), share_from=3
    ),
    "hauser": lambda: networks.hauser_resnet(3),
}


@pytest.fixture
def machine(monkeypatch):
    """A function that gives the machine some memory."""

    def give(size):
        monkeypatch.setattr(memory, "_limit", lambda: size)

    return give


@pytest.mark.parametrize("name", BUILDERS)
def test_the_estimate_is_close_and_never_above(name, monkeypatch):
    estimates = []
    monkeypatch.setattr(specification, "check_fits", lambda size, *_: estimates.append(size))
    network = BUILDERS[name]()
    (estimate,) = estimates
    assert 0.8 * 4 * network.count_params() <= estimate <= 4 * network.count_params()


def test_a_network_that_fits_is_built(machine):
    count = networks.resnet(8).count_params()
    machine(4 * count)
    networks.resnet(8)
    machine(2 * count)
    with pytest.raises(memory.TooLargeError):
        networks.resnet(8)


def test_the_limit_of_a_container(tmp_path, monkeypatch):
    files = [tmp_path / "memory.max", tmp_path / "missing"]
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", files)
    files[0].write_text("max\n")
    whole = memory._limit()
    assert whole >= GIB
    files[0].write_text("1000000\n")
    assert memory._limit() == 1_000_000


TOO_LARGE = {
    "width": ({"width": 10**8}, r"`blocks` and `widths`.*GiB.*Received: "),
    "images": (
        {"train_size": 10**9},
        r"`train_size`, `validation` and `test_size` .*GiB.*Received: train_size=1000000000",
    ),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_study_that_is_too_large_writes_nothing(tmp_path, name):
    changes, message = TOO_LARGE[name]
    with pytest.raises(ValueError, match=message):
        training.train(tmp_path / "run", Settings(data_dir=str(tmp_path / "data"), **changes))
    assert list(tmp_path.iterdir()) == []
