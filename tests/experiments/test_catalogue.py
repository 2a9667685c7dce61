"""The catalogue: which networks it trains, what it says of them, and the page of statements."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import catalogue
import judging
import numpy as np
import papers
import processes
import pytest
import statements
from reference.random_frames import frames_of

from tfresidual.jobs.building import build
from tfresidual.jobs.settings import Settings, check

papers.load()
EXPERIMENTS = pathlib.Path(papers.__file__).parent
SIZES = papers.SIZES
# The figures and tables that are drawn.
DRAWN = {
    f"{paper}-{number}"
    for paper, numbers in {
        "II": "2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 T1 E A1 M",
        "IC": "1 2 3a 3b 3c 4 5 6 6b 7 8 9 10 11 12 13 A4",
        "PI": "1 2 3 4 5 6 7 R M",
        "IM": "1 3 6 T1 T2 E",
    }.items()
    for number in numbers.split()
}
# Entries without networks at the size `small`: CIFAR-100 has to be downloaded.
NOT_SMALL = {f"II-{figure}" for figure in (10, 11, 12, 15, 16, 17)}


# Few networks, which not every entry has.
FEW = ("trained", "untrained")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", catalogue.ENTRIES)
def test_networks_can_be_trained_and_have_names_of_their_own(name, size):
    networks, measures = papers.networks_of([catalogue.ENTRIES[name]], size)
    if size not in FEW:
        assert bool(networks) == ("small" not in size or name not in NOT_SMALL)
    assert all(measures.values())
    for network in networks.values():
        if isinstance(network.settings, Settings):
            check(network.settings)
        # 0 for those whose training takes seconds, or that are not trained.
        assert network.operations() >= 0


@pytest.mark.nightly
def test_untrained_networks_are_those_of_the_size_trained(tmp_path):
    """Without what is read from the log of a training, and with statistics of images."""
    everything = list(catalogue.ENTRIES.values())
    (trained, measures), (untrained, fewer) = (papers.networks_of(everything, n) for n in FEW)
    assert {k: one.settings for k, one in trained.items()} == {
        k: one.settings for k, one in untrained.items()
    }
    key = ("II", "ResNet-56-seed0")
    assert measures[key].keys() - fewer[key].keys() == {"by_epoch"}
    small = next(one for one in catalogue.ENTRIES["II-4"].networks("smoke"))
    control = catalogue.Untrained(small.name, small.settings, small.labels).train(tmp_path)
    built, settled = control.untrained(), control.settled()
    for one, other in zip(built.weights, settled.weights, strict=True):
        assert np.array_equal(one, other) == ("moving" not in one.path)
    assert list(measures[key]["summary"](control)["error"].between(0, 1)) == [True]


PUBLISHED = {
    "II": {
        "ResNet-110-seed0": 1_742_762,
        "single_representation-seed0": 1_829_210,
        "avg_pooling-seed0": 12_201_310,
        "wide-seed0": 45_732_842,
        "max_pooling-seed0": 12_201_310,
        # The published 1,740,516 that are trained, and the moving statistics.
        "ResNet-110-cifar100-seed0": 1_740_516 + 4 * 2024,
    },
    "IM": {"110_layers-full_preactivation-seed0": 1_742_762},
}


@pytest.mark.parametrize(
    ("paper", "name"),
    [
        pytest.param(
            *(paper, name),
            marks=pytest.mark.system if name.startswith(("single", "avg")) else pytest.mark.nightly,
        )
        for paper, of in PUBLISHED.items()
        for name in of
    ],
)
def test_networks_of_the_size_paper_have_the_published_counts(paper, name):
    networks, _ = papers.networks_of(catalogue.entries_of(paper), "paper")
    assert build(networks[paper, name].settings).count_params() == PUBLISHED[paper][name]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("II-4", ["II-4"]),
        # Figures that are drawn beside another, and statements.
        ("II-19", ["II-18"]),
        ("IC-12", ["IC-11"]),
        ("IM-6", ["IM-1"]),
        ("IC-2b1", ["IC-2"]),
        ("II-7c1", ["II-20"]),
        ("II-C", ["II-10"]),
    ],
)
def test_names_of_figures_and_statements(name, found):
    assert [one.id for one in papers.chosen(catalogue, [name, *found])] == found


def test_every_name_is_that_of_one_entry():
    names = [name for one in catalogue.ENTRIES.values() for name in one.names - {one.paper}]
    assert len(names) == len(set(names))


def test_every_figure_and_table_has_an_entry():
    assert {name for one in catalogue.ENTRIES.values() for name in (one.id, *one.also)} == DRAWN


def random(paper, size="small"):
    """Random frames of the networks of a paper."""
    networks, measures = papers.networks_of(catalogue.entries_of(paper), size)
    return frames_of(networks.values(), {name for of in measures.values() for name in of})


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "size", ["smoke", "trained", pytest.param("small", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("paper", catalogue.PAPERS)
def test_every_statement_is_decided_by_the_networks_that_it_is_about(paper, size):
    """And by their controls; rows of other networks change nothing."""
    frames = random(paper, size)
    before = random(paper, catalogue.CONTROLS[size]) if size in catalogue.CONTROLS else None
    for statement in catalogue.STATEMENTS.values():
        if statement.paper != paper:
            continue
        found = statement.judged(frames, size, before)
        assert (found.kind == judging.NOT_RUN) == (not statement.networks(size)), statement.id
        needs_control = statement.is_learnt and found.kind != judging.NOT_RUN
        assert not before or bool(found.untrained) == needs_control, statement.id
        names = {network.name for network in statement.networks(size)}
        alone = {name: frame[frame["name"].isin(names)] for name, frame in frames.items()}
        # Compared as texts, in which NaN is NaN.
        assert str(statement.judged(alone, size, before)) == str(found), statement.id


@pytest.mark.sampled(2)
@pytest.mark.system
@pytest.mark.parametrize("paper", catalogue.PAPERS)
def test_every_entry_is_drawn(paper):
    """From random frames: networks of the smallest size may be no better than chance."""
    frames = random(paper, "smoke")
    for one in catalogue.entries_of(paper):
        # Frames of other columns than those of networks.
        if one.id not in ("IC-1", "PI-M"):
            assert one.pictures(frames, "smoke"), one.id


def test_the_page_names_the_judgement_that_counts(monkeypatch):
    """That of the best trained networks that can decide, with the cases of the other size."""
    frames = {"small": random("IM"), "trained": random("IM", "trained")}
    monkeypatch.setattr(statements, "read_frames", lambda size, paper: frames.get(size, {}))
    kinds = judging.CONFIRMED, judging.UNDECIDABLE, judging.NOT_RUN
    one, gate, none = (judging.Judged(kind, size) for kind, size in zip(kinds, "abc", strict=True))
    assert statements.deciding([gate, one]) is one
    assert statements.deciding([none, gate]) is gate
    assert statements.deciding([none, none]) is none
    statement = catalogue.STATEMENTS["IM-3"]
    found = statements.judgements(statement, statements.read_frames)
    assert [judged.size for judged in found] == ["trained", "small"]
    lines = statements.details_of(statement, found)
    assert [line.split("**")[0] for line in lines if line.startswith("- ")] == [
        "- `trained`: ",
        "- `small`: ",
    ]


@pytest.mark.system
def test_the_page_is_what_the_frames_say():
    page = (EXPERIMENTS / "STATEMENTS.md").read_text()
    assert page == statements.page_of()
    # Every id leads to its criterion, and sentences say no more than the classes allow.
    for name in catalogue.STATEMENTS:
        assert page.count(f"](#{name.lower()})") >= 2
        assert page.count(f'<a id="{name.lower()}"></a>') == 1
    assert all(f"- {text} *(" in page for of in statements.SENTENCES.values() for text, _ in of)


# The settings as they stand in the folders of networks that are trained already.
KEPT = (
    "Settings(data='cifar10', digits=3, data_dir=None, data_file=None, network='hauser_resnet', "
    "depth=24, width=8, stages=None, transition=None, layout='full_preactivation', "
    "shortcut='identity', "
    "gate_bias=None, shortcut_scale=None, branch_scale=None, gamma=None, share_from=None, "
    "batch_norm='shared', recurrent=False, coupling=None, kernel='uniform', coupling_from=0, "
    "lipschitz=None, anchor='previous', epochs=5, batch_size=64, recipe=None, train_size=12000, "
    "validation=2000, test_size=5000, epsilon=0.1, dtype='float32', seed=0)"
)
OF_POINTS = "Training(kind=None, seed=0, epochs=20)"


def others(text, name=("PI", "cifar10-24_blocks-seed0")):
    """The settings in which a network of the size `small` differs from a kept text."""
    networks, _ = papers.networks_of(list(catalogue.ENTRIES.values()), "small")
    return papers.other_settings(text, networks[name].settings)


def test_trained_networks_stay_when_settings_are_added():
    """A setting that the kept text lacks had its default; where the images are does not matter."""
    assert others(KEPT) == []
    lacking = KEPT.replace("gate_bias=None, ", "").replace("epsilon=0.1, ", "")
    assert lacking.count("=") == KEPT.count("=") - 2
    assert others(lacking) == []
    moved = KEPT.replace("data_dir=None, data_file=None", "data_dir='/data', data_file='a.npz'")
    assert moved != KEPT
    assert others(moved) == []
    assert others(OF_POINTS, ("IC", "inverse_problem-algorithm-seed0")) == []


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("epochs=5", "epochs=6", "epochs"),
        # The default is 4, which is not what the network has.
        ("epochs=5, ", "", "epochs"),
        ("recipe=None", "recipe='cifar10'", "recipe"),
        ("seed=0", "seed=0, breadth=3", "breadth"),
    ],
)
def test_other_settings_are_named(old, new, name):
    assert old in KEPT
    assert others(KEPT.replace(old, new)) == [name]


def test_a_network_with_other_settings_is_not_overwritten(tmp_path):
    networks, measures = papers.networks_of([catalogue.ENTRIES["PI-3"]], "small")
    frames = tmp_path / "small" / "PI" / "cifar10-24_blocks-seed0" / "frames"
    frames.mkdir(parents=True)
    (frames / "settings.txt").write_text(KEPT)

    def missing():
        return papers.missing(networks, measures, tmp_path, "small", anew=True)

    assert len(missing()) == len(networks)
    for measure in measures["PI", "cifar10-24_blocks-seed0"]:
        (frames / f"{measure}.csv").touch()
    assert len(missing()) == len(networks)
    counts = {"perturbation": {"test": 2000}, "summary": {"train": 2000, "test": None}}
    (frames / "images.json").write_text(json.dumps(counts))
    assert len(missing()) == len(networks) - 1
    # Measured on fewer images than today.
    (frames / "images.json").write_text(json.dumps(counts | {"perturbation": {"test": 100}}))
    assert len(missing()) == len(networks)
    (frames / "images.json").write_text(json.dumps(counts))
    (frames / "settings.txt").write_text(KEPT.replace("depth=24", "depth=20"))
    with pytest.raises(SystemExit, match=r"24_blocks-seed0 holds .* other settings \(depth\)"):
        missing()


def test_a_network_whose_frames_are_kept_needs_no_training(tmp_path, monkeypatch):
    """Frames are put together as networks end; later, no folder of a network is needed."""
    monkeypatch.setattr(catalogue, "FRAMES", tmp_path / "frames")
    networks, measures = papers.networks_of([catalogue.ENTRIES["PI-3"]], "small")
    key = "PI", "cifar10-24_blocks-seed0"

    def missing(out, anew=False):
        return papers.missing(networks, measures, out, "small", anew)

    frames = tmp_path / "runs" / "small" / "PI" / key[1] / "frames"
    frames.mkdir(parents=True)
    (frames / "settings.txt").write_text(KEPT)
    first, *others = measures[key]
    counts = {name: catalogue.counts_of(measure) for name, measure in measures[key].items()}
    (frames / "images.json").write_text(json.dumps(counts))
    for measure in others:
        (frames / f"{measure}.csv").write_text("block,x\n0,1\n")
    catalogue.collect(tmp_path / "runs", "small", networks)
    assert key in missing(tmp_path / "elsewhere")
    (frames / f"{first}.csv").write_text("block,x\n0,1\n")
    (frames / "images.json").write_text(json.dumps(counts | {first: {"test": 10}}))
    catalogue.collect(tmp_path / "runs", "small", networks)
    assert key in missing(tmp_path / "elsewhere")
    (frames / "images.json").write_text(json.dumps(counts))
    catalogue.collect(tmp_path / "runs", "small", networks)
    assert set(networks) - set(missing(tmp_path / "elsewhere")) == {key}
    assert key in missing(tmp_path / "elsewhere", anew=True)
    kept = tmp_path / "frames" / "PI" / "settings.csv"
    kept.write_text(kept.read_text().replace("epochs=5", "epochs=6"))
    assert key in missing(tmp_path / "elsewhere")


def test_a_figure_of_kept_frames(monkeypatch, capsys, tmp_path):
    """Nothing is trained; it is drawn, with how many networks and images it is of."""
    monkeypatch.setattr(catalogue, "FRAMES", shutil.copytree(catalogue.FRAMES, tmp_path / "frames"))
    arguments = ["run", "PI-3", "--size", "small", "--out", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", ["papers.py", *arguments])
    papers.main()
    counted, measured, drawn = capsys.readouterr().out.splitlines()
    assert counted.startswith("20 networks, 0 of them to be trained")
    assert measured.startswith("PI-3: 20 networks, 2 seeds; ")
    assert re.search(r"on [\d,]+ .*images", measured)
    assert "test error of CIFAR-10" in measured
    assert pathlib.Path(drawn).stat().st_size > 10_000


@pytest.mark.system
@pytest.mark.nightly
def test_a_figure_from_one_command(tmp_path):
    """What was trained and measured is not trained again; a lost frame is measured again."""

    def run():
        command = ["run", "IC-1", "--out", "runs"]
        done = processes.run(EXPERIMENTS / "papers.py", *command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run()
    assert "4 networks, 4 of them" in first
    # A line as each of them ends, and no bar, since this is no terminal.
    assert first.count("done; ") == 4
    assert "0/" not in first
    folder = tmp_path / "runs" / "smoke"
    assert (folder / "IC" / "IC-1-trajectories.png").stat().st_size > 10_000
    models = sorted(folder.glob("IC/*/model.keras"))
    before = [path.stat().st_mtime_ns for path in models]
    lost = next(folder.glob("IC/*/frames/trajectories.csv"))
    content = lost.read_text()
    lost.unlink()
    assert "4 networks, 1 of them" in run()
    assert lost.read_text() == content
    assert [path.stat().st_mtime_ns for path in models] == before
    assert len(models) == 4


@pytest.mark.nightly
@pytest.mark.parametrize("paper", catalogue.PAPERS)
def test_every_figure_of_a_paper_at_the_smallest_size(paper, tmp_path):
    """Every entry is drawn, and every statement has cases."""
    command = [sys.executable, str(EXPERIMENTS / "papers.py"), "run", paper, "--out", "runs"]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [*command, "--data-dir", "data"],
        cwd=tmp_path,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ": no `" not in done.stdout
    frames = catalogue.read_frames("smoke", paper, tmp_path / "runs")
    for statement in catalogue.STATEMENTS.values():
        if statement.paper == paper:
            found = statement.judged(frames, "smoke")
            assert found.kind != judging.NOT_RUN, statement.id
