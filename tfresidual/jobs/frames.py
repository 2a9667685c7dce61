"""What probes measured, as files: frames, figures, and what they were measured on."""

import json

from tfresidual.console import followed
from tfresidual.files import read_json, written

# What frames were measured on, by their name.
RECORD = "probes.json"


def write_frames_and_figures(folder, frames, figures, flat=False, console=None):
    """Writes frames as CSV and figures as PNG; what stands there is replaced file by file.

    Args:
        folder: where to write, made if it is not there.
        frames: `pandas.DataFrame`s by name.
        figures: `matplotlib.figure.Figure`s by name.
        flat: whether all files are put into the folder itself, not into `frames` and `figures`.
        console: a `rich.console.Console` for a progress bar, or `None` for silence.

    Returns:
        The list of the `pathlib.Path`s written.
    """
    paths = []
    for name, frame in frames.items():
        paths.append(folder / ("" if flat else "frames") / f"{name}.csv")
        with written(paths[-1]) as path:
            frame.to_csv(path, index=False)
    for name, figure in followed(figures.items(), "writing the figures", console):
        paths.append(folder / ("" if flat else "figures") / f"{name}.png")
        with written(paths[-1]) as path:
            figure.savefig(path, dpi=160)
    return paths


def known_records(folder):
    """What an earlier probe wrote down, a dict by the names of its frames."""
    path = folder / RECORD
    return read_json(path, "Remove it, to probe anew") if path.exists() else {}


def record(folder, known, frames, what):
    """Writes down what frames were measured on, and leaves what is known of others; the path."""
    known |= dict.fromkeys(frames, what)
    path = folder / RECORD
    with written(path) as beside:
        beside.write_text(json.dumps(known, indent=2) + "\n", "utf-8")
    return path
