"""Searches that are forked, for the tests of kills and of workers."""

import pytest
from tuning.forked_search import Cluster, Launcher


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("launcher") / "log")
    yield launcher
    launcher.close()


@pytest.fixture
def cluster(tmp_path, launcher):
    cluster = Cluster(launcher, tmp_path / "search")
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory, launcher):
    """A function from the size of a search to the folder of one that nobody disturbed."""
    folders = {}

    def search(size):
        if size not in folders:
            cluster = Cluster(launcher, tmp_path_factory.mktemp("alone") / size)
            cluster.start("alone", size=size, sleep=0)
            cluster.wait("alone")
            folders[size] = cluster.folder
        return folders[size]

    return search
