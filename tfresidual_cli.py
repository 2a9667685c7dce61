"""The command line `tfresidual`.

Keras with its backend takes seconds to load, which `tfresidual --help` should not need: only the
settings and declarations are imported here, and each command imports what it runs.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import sys
import warnings

import click

from tfresidual.definitions import settings as SETTINGS
from tfresidual.definitions.probes import PROBES

# The backends of Keras that train.
BACKENDS = ("tensorflow", "jax", "torch")
# The options of probes that a command takes.
OF_PROBES = ("times", "scale", "chance", "epsilon", "memory_limit")
# The settings that say what the images are.
DATA = ("digits", "data_dir", "data_file", "train_size", "validation", "test_size", "batch_size")


class Depths(click.ParamType):
    """Number of blocks of the stages: one number for all, or one per stage, as in 4,4,6."""

    name = "depths"

    def convert(self, value, param, ctx):
        try:
            depths = tuple(int(part) for part in value.split(","))
        except ValueError:
            depths = ()
        if not depths or min(depths) < 1 or max(depths) > SETTINGS.MOST_BLOCKS:
            self.fail(
                f"{value!r} is not a number from 1 to {SETTINGS.MOST_BLOCKS}, or one per stage, as "
                "in 4,4,6",
                param,
                ctx,
            )
        return depths[0] if len(depths) == 1 else depths


def option(flag, meaning, default, **kwargs):
    """Returns an option with a default that is only shown here; whoever is called has it."""
    return click.option(flag, help=f"{meaning}  [default: {default}]", default=None, **kwargs)


def options_of(kind, names=None, without=(), default=None):
    """Returns a decorator: options for fields of a class of settings, all with one `default`."""
    fields = dataclasses.fields(getattr(SETTINGS, kind))
    return options(
        *(
            _option_of(field, default)
            for field in fields
            if field.name not in without and (names is None or field.name in names)
        )
    )


def _option_of(field, default):
    setting = SETTINGS.of(field)
    meaning, offered = setting.meaning, setting.offered or setting.choices
    more = {"metavar": setting.metavar} if setting.metavar else {}
    least, most = setting.at_least, setting.at_most
    if setting.kind is bool:
        more["is_flag"] = True
    elif setting.kind is tuple:
        more["type"] = Depths()
    elif setting.kind is int:
        more["type"] = click.IntRange(least, most)
    elif setting.kind is float and "uniform" not in offered:
        # The package says what no sensible value exceeds.
        least, most = (None if b is None or abs(b) >= 1e9 else b for b in (least, most))
        is_open = setting.over is not None
        least = setting.over if is_open else least
        is_bounded = least is not None or most is not None
        more["type"] = click.FloatRange(least, most, is_open) if is_bounded else click.FLOAT
    elif setting.kind is os.PathLike:
        more["type"] = click.Path(dir_okay=setting.metavar == "DIR")
    elif setting.kind is str:
        more["type"] = click.Choice(offered)
        if len("|".join(offered)) > 35:
            meaning = f"{meaning.rstrip('.')}: {', '.join(offered)}."
        else:
            more.pop("metavar", None)
    flag = f"--{field.name.replace('_', '-')}"
    if field.default is True:
        flag += f"/--no-{flag.removeprefix('--')}"
    return option(flag, meaning, default or setting.shown or field.default, **more)


def folder_option(default):
    """Returns the option for the folder to write."""
    kind = click.Path(file_okay=False)
    return option("--out", "Folder to write.", default, type=kind, metavar="DIR")


def count_option(flag, meaning, default):
    """Returns an option for a number of things, 1 or more."""
    kind = click.IntRange(1, SETTINGS.LARGEST_COUNT)
    return option(flag, meaning, default, type=kind, metavar="N")


PIXELS = option(
    "--pixels",
    "Range of the pixels. Networks trained elsewhere may expect another one than those trained "
    "here.",
    "that of the run, otherwise standardized",
    type=click.Choice(["standardized", "0-1", "0-255"]),
)


def options(*chosen):
    """Returns a decorator that adds options to a command, in the order given."""

    def add(command):
        for option in reversed(chosen):
            command = option(command)
        return command

    return add


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tfresidual", message="%(package)s %(version)s")
def cli():
    """Train residual networks and see what every block does.

    \b
    Examples:
      tfresidual study
      tfresidual study --data cifar10 --data-dir ~/tensorflow_datasets --epochs 5
      tfresidual train --network hauser_resnet --depth 10 --out runs/hauser10
      tfresidual probe runs/hauser10 --probe drop_blocks
      tfresidual compare runs/hauser10 runs/hauser20
      tfresidual tune --data mnist --epsilon 0.2 --workers 2
      tfresidual prune --model runs/hauser10 --blocks 6
      tfresidual data digitclutter --digits 5
    """


@cli.command()
@options(options_of("Settings"), folder_option("runs/NETWORK-DATA"))
def study(out, **given):
    """Train a network, run every probe on it, and write one folder with a report.

    The folder holds report.html, the network (model.keras), what the probes measured (frames/),
    the figures, the log of every epoch and the settings. An interrupted study resumes after its
    last complete epoch when the same command is given again.

    \b
    Examples:
      tfresidual study
      tfresidual study --data mnist --data-dir ~/tensorflow_datasets --epochs 2 --depth 8
      tfresidual study --layout original --shortcut exclusive_gate --out runs/gated
      tfresidual study --depth 38 --share-from 2 --batch-norm unshared --out runs/shared
      tfresidual study --recurrent --coupling 0.9 --out runs/coupled
      tfresidual study --recurrent --coupling 1 --lipschitz 0.95 --anchor input --out runs/pcr
    """
    with _running() as console:
        from tfresidual.jobs import study

        settings, out = _settings(given, out)
        report = study.run(out, settings, console)
    click.echo(f"report: {report}")


@cli.command()
@options(options_of("Settings"), folder_option("runs/NETWORK-DATA"))
@option(
    "--backend",
    f"Backend of Keras: {', '.join(BACKENDS)}.",
    "that of Keras, from KERAS_BACKEND or its configuration",
    type=click.Choice(BACKENDS),
    metavar="NAME",
)
def train(out, backend, **given):
    """Train a network into a folder, without probing it.

    The folder holds the network of the best epoch (model.keras), the log of every epoch, on
    TensorFlow with the metrics of every block, and the settings. An interrupted training resumes
    after its last complete epoch when the same command is given again; `tfresidual study` with the
    same options adds the probes and the report, on TensorFlow.

    \b
    Examples:
      tfresidual train --epochs 10
      tfresidual train --data cifar10 --network resnet110 --recipe resnet110 --epochs 300
      tfresidual train --data mnist --network resnet101 --stages 1
      tfresidual train --backend jax --data-file cifar10.npz --epochs 300
    """
    with _running(backend) as console:
        from tfresidual.jobs import training

        settings, out = _settings(given, out)
        result = training.train(out, settings, console)
    best = result.log[f"val_{result.metric}"].max()
    click.echo(f"network: {os.path.join(out, 'model.keras')}")
    click.echo(f"best epoch: {result.best_epoch + 1}, validation {result.metric} {best:.4f}")


@cli.command()
@click.argument("target", metavar="NETWORK", type=click.Path())
@click.option(
    "--probe",
    "names",
    multiple=True,
    type=click.Choice(sorted(PROBES)),
    metavar="NAME",
    help=f"May be given several times: {', '.join(sorted(PROBES))}. The indices come with the "
    "read-outs, drops and repetitions they are taken from.  [default: all that the network has "
    "blocks for, except line_element and patching, which take long, block_importance, which "
    "measures drops anew, and linear_probe and similarity, which also measure untrained networks]",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    type=click.Choice(["train", "test"]),
    help="May be given twice.  [default: test]",
)
@count_option("--images", "Images of each split, in whole batches.", "all test images")
@options_of("ProbeOptions", OF_PROBES)
@options_of("Settings", ("data", *DATA), default="that of the run")
@PIXELS
@folder_option(
    "probes/ in the folder of the run or of the series, probes/NAME next to another network"
)
def probe(target, names, splits, images, pixels, out, **given):
    """Run probes on a saved network.

    NETWORK is the folder of a run, a .keras file (of this package, or any functional Keras model
    with residual blocks), a SavedModel that `export` wrote, or the folder of a series of them,
    whose results are drawn over the epochs. Writes the measurements as CSV, and the figures;
    probes.json records the network and the images. A network outside the folder of a run needs
    --data.

    \b
    Examples:
      tfresidual probe runs/resnet-digitclutter --probe drop_blocks
      tfresidual probe runs/series --data digitclutter --probe readout
      tfresidual probe net.keras --data cifar10 --probe readout --probe borderline --split train
      tfresidual probe resnet50.keras --data cifar10 --pixels 0-255
      tfresidual probe runs/resnet-digitclutter --probe repeat_last_block --times 20 --scale 0.3
    """
    chosen = {name: given.pop(name) for name in OF_PROBES}
    with contextlib.suppress(TypeError, ValueError):
        chosen["chance"] = float(chosen["chance"])
    with _running() as console:
        from tfresidual.jobs import probing

        frames, paths = probing.probe(
            target,
            list(names) or None,
            out,
            splits or ("test",),
            images,
            _without_none(given),
            SETTINGS.ProbeOptions(**_without_none(chosen)),
            console,
            **_without_none({"pixels": pixels}),
        )
    for name, frame in frames.items():
        click.echo(f"{name}:")
        click.echo(frame.to_string(index=False, float_format="{:.4g}".format))
    for path in paths:
        _note(f"wrote {path}")


@cli.command()
@click.argument("source", metavar="NETWORK", type=click.Path())
@click.argument("path", metavar="DIR", type=click.Path())
@click.option("--serving-only", is_flag=True, help="Leave out the functions for probing.")
@click.option("--overwrite", is_flag=True, help="Replace an existing SavedModel.")
def export(source, path, serving_only, overwrite):
    """Write a network as one SavedModel that can be served, and probed without its code.

    NETWORK is the folder of a run, a .keras file, or a SavedModel that `export` wrote.
    `tfresidual probe DIR` probes the SavedModel; TensorFlow Serving serves it as it is.

    \b
    Examples:
      tfresidual export runs/resnet-digitclutter saved/net
      tfresidual export net.keras saved/net --serving-only
    """
    with _running():
        from tfresidual.jobs import probing
        from tfresidual.sources import exporting

        network = probing.network_of(source)
        exporting.export(network, path, probing=not serving_only, overwrite=overwrite)
    _note(f"wrote {path}")


@cli.command()
@click.option(
    "--model",
    "target",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="A .keras file, or the folder of a run.",
)
@options_of("PruningSettings")
@options_of("Settings", ("data", *DATA), default="that of the run")
@PIXELS
@folder_option("pruned/NAME beside the network")
def prune(target, pixels, out, **given):
    """Take blocks out of a saved network, and keep the smaller one.

    Give --blocks, --speed or --most-error. Blocks are chosen on the validation images, one after
    the other, and judged on the test images. The folder holds the smaller network (model.keras),
    what each block costs (frames/) and report.html with the curves of all criteria. An interrupted
    run resumes when the same command is given again. A network that was trained elsewhere needs
    --data, and --pixels, the range of the pixels that it was trained on.

    \b
    Examples:
      tfresidual prune --model runs/resnet-digitclutter --blocks 2
      tfresidual prune --model net.keras --data cifar10 --pixels 0-255 --blocks 2 --no-compare
      tfresidual prune --model net.keras --data cifar10 --pixels 0-1 --speed 1.5 --tuning-epochs 3
    """
    fields = dataclasses.fields(SETTINGS.PruningSettings)
    chosen = {field.name: given.pop(field.name) for field in fields}
    with _running() as console:
        from tfresidual.jobs import pruning

        path = pathlib.Path(target)
        if out is None:
            folder = path if path.is_dir() else path.parent
            out = folder / "pruned" / ("" if path.is_dir() else path.stem)
        pruning.run(
            target,
            out,
            SETTINGS.PruningSettings(**_without_none(chosen)),
            _without_none(given),
            console,
            **_without_none({"pixels": pixels}),
        )
    click.echo(f"report: {os.path.join(out, 'report.html')}")
    click.echo(f"network: {os.path.join(out, 'model.keras')}")


@cli.command()
@options_of("Settings", without=("depth",))
@options_of("SearchSettings")
@count_option("--workers", "Networks trained at the same time, each in its own process.", 1)
@folder_option("runs/depth-NETWORK-DATA")
def tune(out, workers, **given):
    """Search for the depth of a network: the fewest blocks per stage that are all small steps.

    Trains networks until the mean scaled perturbation of every stage is epsilon or less, and more
    with one block less. The folder holds report.html, the trials (frames/trace.csv), the network
    that was found (model.keras) and the project of keras-tuner. An interrupted search resumes
    when the same command is given again; --max-blocks, --max-trials and --tolerance may change.
    The exit code is 1 if the search ends without a depth that meets the rule, or with a network
    that is no better than chance.

    Several machines: run the same command on all of them, with one folder that all see, and
    KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT set to where the chief listens;
    KERASTUNER_TUNER_ID is chief on one, worker0, worker1 and so on on the others.

    \b
    Examples:
      tfresidual tune --width 8 --epochs 2 --epsilon 0.4
      tfresidual tune --data mnist --network hauser_resnet --epsilon 0.2 --epochs 5 --workers 2
      tfresidual tune --start 8,8,8 --max-blocks 40 --executions 3 --tolerance 1
    """
    fields = dataclasses.fields(SETTINGS.SearchSettings)
    chosen = {field.name: given.pop(field.name) for field in fields}
    with _running() as console:
        from tfresidual import tuning
        from tfresidual.jobs import depth_study

        settings, out = _settings(given, out, "depth-")
        search = SETTINGS.SearchSettings(**_without_none(chosen))
        try:
            outcome = depth_study.run(out, settings, search, console, workers or 1)
        except tuning.SearchError as error:
            _fail(_with_options(str(error)), 1)
    if outcome is None:
        return
    click.echo(f"report: {os.path.join(out, 'report.html')}")
    click.echo(f"{outcome.status}: {outcome.message}")
    if outcome.blocks is None or outcome.is_better_than_chance is False:
        sys.exit(1)


@cli.command()
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, type=click.Path())
@option(
    "--out",
    "HTML file to write; an existing file is only replaced if this command wrote it.",
    "compare-NAME-NAME.html beside the first run",
    type=click.Path(),
    metavar="FILE",
)
def compare(runs, out):
    """Compare two or more runs on one page, each figure with all of them on the same axes.

    RUN is a folder that `study` or `train` wrote. The page shows the settings that differ, the
    trainings, and for every probe that was run on all networks the figures and the blocks that
    differ the most. It says what was measured on other images or with other options; `probe` with
    the same options on each run measures them alike.

    \b
    Examples:
      tfresidual compare runs/resnet-digitclutter runs/gated
      tfresidual compare runs/seed0 runs/seed1 runs/seed2 --out seeds.html
    """
    with _running() as console:
        from tfresidual.jobs import comparison

        page = comparison.compare(runs, out, console)
    click.echo(f"page: {page}")


@cli.command(epilog=f"Datasets: {', '.join(SETTINGS.DATASETS)}.")
@click.argument("data", metavar="NAME", type=click.Choice(SETTINGS.DATASETS))
@options_of("Settings", [name for name in DATA if name != "data_file"])
@click.option("--download", is_flag=True, help="Let tensorflow-datasets download what is missing.")
@click.option(
    "--to",
    type=click.Path(dir_okay=False),
    metavar="FILE.npz",
    help="Also write the images into one file, for machines without TensorFlow.",
)
def data(download, to, **given):
    """Prepare a dataset.

    Digitclutter is generated on this machine, without any download. The others must be on disk, or
    can be downloaded with --download.

    \b
    Examples:
      tfresidual data digitclutter --digits 5 --train-size 100000
      tfresidual data cifar10 --download
      tfresidual data cifar10 --to cifar10.npz
    """
    with _running() as console:
        from tfresidual.jobs import data as images
        from tfresidual.jobs.settings import describe

        settings, _ = _settings(given, None)
        if to is not None:
            images.write_file(settings, to, console, download=download)
        parts = images.prepare(settings, console, download=download)
        description = describe(settings)
    size = "x".join(map(str, description.input_shape))
    for name, part in zip(("train", "validation", "test"), parts, strict=True):
        click.echo(f"{name}: {len(part)} batches of {settings.batch_size}, images {size}")
    click.echo(f"classes: {description.classes}, chance error {description.chance_error:.1%}")
    if to is not None:
        _note(f"wrote {to}")


def main(arguments=None):
    """Runs the command line; errors become one line on stderr and an exit code."""
    with contextlib.suppress(AttributeError):
        # Not all terminals have all letters.
        sys.stdout.reconfigure(errors="backslashreplace")
    usual, warnings.showwarning = warnings.showwarning, _show_warning
    try:
        cli.main(args=arguments, prog_name="tfresidual", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "tfresidual"
        _fail(f"{error.format_message()} (see '{command} --help')", error.exit_code)
    except click.Abort:
        _fail("interrupted", 130)
    finally:
        warnings.showwarning = usual


def _show_warning(message, *place):
    del place
    _note(f"tfresidual: warning: {_with_options(' '.join(str(message).split()))}")


def _note(line):
    click.echo(line, err=True)


def _fail(message, code):
    _note(f"tfresidual: {' '.join(message.split())}")
    sys.exit(code)


@contextlib.contextmanager
def _running(backend=None):
    """Loads Keras and provides a console for progress; errors and Ctrl-C end the command."""
    if backend is not None:
        os.environ["KERAS_BACKEND"] = backend
    _note("loading Keras")
    try:
        from tfresidual.machine.quiet import quietly

        with quietly():
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            # Without AVX-512, TensorFlow leaves oneDNN off, whose convolutions are faster.
            os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
            import keras  # noqa: F401
        from tfresidual.machine.console import terminal
        from tfresidual.machine.locks import FolderInUseError

        yield terminal()
    except KeyboardInterrupt:
        _fail("interrupted. What is complete is kept; give the same command again", 130)
    except (ValueError, OSError, ImportError) as error:
        # Messages of the package about arguments end with the values received.
        if "Received: " not in str(error) and not isinstance(error, OSError):
            raise
        _fail(_with_options(str(error)), 1 if isinstance(error, FolderInUseError) else 2)


def _without_none(values):
    """Returns the values that were given."""
    return {name: value for name, value in values.items() if value is not None}


def _settings(given, out, prefix=""):
    """Returns the settings from the options that were given, and the folder to write."""
    from tfresidual.jobs.settings import with_data_of_file

    settings = SETTINGS.Settings(**with_data_of_file(_without_none(given)))
    if out is None:
        out = os.path.join("runs", f"{prefix}{settings.network}-{settings.data}")
    return settings, out


# Names of arguments of the package, and of the parameters of commands that they come from.
OTHER_NAMES = {
    "data_file": "to",
    "folder": "out",
    "name": "data",
    "net": "source",
    "page": "out",
    "source": "target",
    "target": "source",
}


def _with_options(message):
    """Returns a message of the package with options of the command in place of arguments."""
    context = click.get_current_context(silent=True)
    if context is None:
        # In a thread of its own.
        return message
    names = {
        parameter.name: parameter.opts[0]
        if isinstance(parameter, click.Option)
        else parameter.make_metavar(context)
        for parameter in context.command.params
    }
    names = {other: names[own] for other, own in OTHER_NAMES.items() if own in names} | names
    for name, shown in names.items():
        message = re.sub(f"`{name}(=True)?`", f"`{shown}`", message)
        message = re.sub(f"(?<=[ (]){name}=", f"{shown}=", message)
    return re.sub("Argument(s?) `--", r"Option\1 `--", message)
