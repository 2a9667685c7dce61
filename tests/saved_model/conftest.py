"""A network and its SavedModel, for several files of tests."""

import types

import pytest
from saved_model import cases

import tfresidual as tfr
from tfresidual.sources.exporting import export


@pytest.fixture(
    scope="module",
    params=cases.params(
        "ordinary", "shared", "several labels", "any size", "masked", "per position"
    ),
    ids=str,
)
def case(request, tmp_path_factory):
    """A network or chain by hand, its chain, data, and the folder of its SavedModel."""
    kind, dtype = request.param
    net, path = cases.network_of(kind, dtype), tmp_path_factory.mktemp("case") / "net"
    export(net, path, inputs=cases.data_of(kind)[0])
    return types.SimpleNamespace(
        kind=kind,
        is_exact=dtype == "float32",
        net=net,
        chain=tfr.chain(net),
        data=cases.data_of(kind),
        path=path,
    )
