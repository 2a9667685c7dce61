"""The folder of a run: what it was made with, and that nothing else is written into it."""

import dataclasses
import json
import pathlib
import platform
from importlib import metadata

from tfresidual.files import check_folder, replacing
from tfresidual.settings import Settings

SETTINGS_FILE = "settings.json"
MODEL_FILE = "model.keras"
PACKAGES = (
    "tfresidual",
    "tensorflow",
    "keras",
    "keras-tuner",
    "tensorflow-datasets",
    "numpy",
    "pandas",
)


def refuse_other_settings(folder, parts, free=()):
    """Raises an error unless a folder is new, or holds a run of the same settings.

    Args:
        folder: `pathlib.Path` of the folder.
        parts: dict of dataclasses by name, the settings in groups.
        free: names of settings that may change from one start of the run to the next.

    Raises:
        NotADirectoryError: if it cannot be a folder.
        ValueError: if other settings made it.
    """
    check_folder("folder", folder)
    if not (folder / SETTINGS_FILE).exists():
        return
    content = read_settings(folder)
    if set(parts) - set(content):
        raise ValueError(
            "Argument `folder` must be new, or hold a run of the same kind; this one holds a "
            f"training, not a search. Received: folder={str(folder)!r}"
        )
    changed, before = {}, {}
    for name, part in parts.items():
        # A setting that the run does not know had its default.
        earlier = _plain(type(part)()) | content[name]
        for key, value in _plain(part).items():
            if key not in free and earlier[key] != value:
                before[key], changed[key] = earlier[key], value
    if "search" in content and "search" not in parts:
        raise ValueError(
            "Argument `folder` must be new, or hold a run of the same kind; this one holds a "
            f"search. Received: folder={str(folder)!r}"
        )
    if changed:
        raise ValueError(
            "Argument `folder` must be new, or hold a run of the same settings. "
            + ", ".join(f"{key} was {before[key]!r}" for key in changed)
            + f". Received: folder={str(folder)!r} with "
            + ", ".join(f"{key}={changed[key]!r}" for key in changed)
        )


def claim(folder, parts):
    """Makes the folder, and writes the settings, with versions and machine, where they changed.

    Args:
        folder: `pathlib.Path` of the folder.
        parts: dict of dataclasses by name, the settings in groups.
    """
    path = folder / SETTINGS_FILE
    settings = {name: _plain(part) for name, part in parts.items()}
    if path.exists():
        content = read_settings(folder)
        if all(content[name] == part for name, part in settings.items()):
            return
        content |= settings
    else:
        folder.mkdir(parents=True, exist_ok=True)
        versions = {"python": platform.python_version()}
        versions |= {package: metadata.version(package) for package in PACKAGES}
        machine = {"system": platform.platform(), "processor": platform.machine()}
        content = {**settings, "versions": versions, "machine": machine}
    with replacing(path) as written:
        written.write_text(json.dumps(content, indent=2) + "\n")


def read_settings(folder):
    """The content of a run's settings file, a dict."""
    return json.loads((pathlib.Path(folder) / SETTINGS_FILE).read_text())


def settings_of(folder):
    """The `Settings` of a run."""
    return Settings(**read_settings(folder)["settings"])


def _plain(part):
    """A dataclass as JSON gives it back."""
    return json.loads(json.dumps(dataclasses.asdict(part)))
