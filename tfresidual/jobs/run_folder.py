"""The folder of a run: records its settings and keeps runs with other settings out of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import platform
from importlib import metadata
from typing import TYPE_CHECKING

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.jobs.settings import SOURCES, Settings, check
from tfresidual.machine.backends import BACKEND, kernels
from tfresidual.machine.files import check_folder, read_json, replacing

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from typing import Any

    from tfresidual.definitions.types import StrPath

SETTINGS_FILE = "settings.json"
MODEL_FILE = "model.keras"
# What shows that a run has ended, and that one has begun.
RESULTS = ("frames", "report.html", "outcome.json")
TRAININGS = ("log.csv", MODEL_FILE, "checkpoints", "search")
REMEDY = "Put it back, or choose another folder"
# What the folder of a run holds that has a part beside its settings.
_KINDS = {"search": "a search", "pruning": "a pruned network"}
PACKAGES: tuple[str, ...] = (
    "tfresidual",
    "tensorflow",
    "keras",
    "keras-tuner",
    "tensorflow-datasets",
    "numpy",
    "pandas",
)
if BACKEND != "tensorflow":
    PACKAGES = (*PACKAGES, BACKEND)


def refuse_other_settings(
    folder: pathlib.Path, parts: Mapping[str, Any], free: Container[str] = ()
) -> None:
    """Raises an error unless a folder is new or holds a run with the same settings.

    `parts` are dataclasses of settings by name. Those in `free` may change, and so may the source
    of the images. A field that is no argument has in its metadata what it is called, as `shown`.
    Parts of a run without its settings are a `FileNotFoundError`.
    """
    check_folder("folder", folder)
    if not (folder / SETTINGS_FILE).exists():
        refuse_remains(folder, (*RESULTS, *TRAININGS), SETTINGS_FILE)
        return
    content = read_settings(folder)
    kinds, asked = ([name for name in _KINDS if name in of] for of in (content, parts))
    if kinds != asked:
        here = " and ".join(_KINDS[name] for name in kinds) or "a training"
        raise ArgumentError(
            "folder", f"be new, or hold a run of the same kind; this one holds {here}", str(folder)
        )
    changed, before = {}, {}
    for name, part in parts.items():
        shown = {
            field.name: field.metadata.get("shown", field.name)
            for field in dataclasses.fields(part)
        }
        for key, (earlier, now) in changed_settings(part, content[name]).items():
            if key not in free:
                before[shown[key]], changed[shown[key]] = earlier, now
    if changed:
        was = ", ".join(f"`{key}` was {before[key]!r}" for key in changed)
        raise ArgumentError(
            "folder",
            f"be new, or hold a run with the same settings: there, {was}",
            folder=str(folder),
            **changed,
        )


def refuse_remains(folder: pathlib.Path, names: Iterable[str], missing: str) -> None:
    """Raises a `FileNotFoundError` if a folder has any of `names`, parts of a run, alone."""
    if remains := [name for name in names if (folder / name).exists()]:
        raise FileNotFoundError(
            f"The folder holds parts of a run, {', '.join(remains)}, but not its {missing}. "
            f"{REMEDY}. Received: folder={str(folder)!r}"
        )


def changed_settings(part: Any, kept: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns settings that differ from an earlier run's: earlier and present value by name.

    Where the images are does not count: they are the same wherever they are. A setting that did not
    exist yet had its default value.
    """
    kept = {field.name: field.default for field in dataclasses.fields(part)} | {**kept}
    return {
        key: (kept[key], value)
        for key, value in _plain(part).items()
        if key not in SOURCES and kept[key] != value
    }


def refuse_other_backend(folder: pathlib.Path, done: int, epochs: int) -> None:
    """Raises a `ValueError` if a training that began on another backend is not finished.

    Another backend has other random numbers, and rounds in another way, as do other kernels.
    """
    if done >= epochs or not (folder / SETTINGS_FILE).exists():
        return
    machine = read_settings(folder)["machine"]
    if machine["backend"] != BACKEND:
        remedy = "KERAS_BACKEND={0} or `tfresidual train --backend {0}`".format(machine["backend"])
    elif machine["kernels"] != kernels():
        remedy = f"TF_ENABLE_ONEDNN_OPTS={int(machine['kernels'] == 'oneDNN')}"
    else:
        return
    raise ArgumentError(
        "folder",
        f"be new, or hold a training on {BACKEND} with kernels of {kernels()} or one that is "
        f"finished; this one began on {machine['backend']} with kernels of {machine['kernels']}, "
        f"and {done} of {epochs} epochs are complete. Finish it there, with {remedy}",
        received=f"folder={str(folder)!r}, KERAS_BACKEND={BACKEND}",
    )


def claim(folder: pathlib.Path, parts: Mapping[str, Any]) -> None:
    """Creates the folder of a run and writes its settings file.

    A new file also holds the versions of the packages and the machine, which a changed one keeps.
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
        for package in PACKAGES:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[package] = metadata.version(package)
        machine = {
            "system": platform.platform(),
            "processor": platform.machine(),
            "backend": BACKEND,
            "kernels": kernels(),
        }
        content = {**settings, "versions": versions, "machine": machine}
    with replacing(path) as written:
        written.write_text(json.dumps(content, indent=2) + "\n")


def read_settings(folder: StrPath) -> dict[str, Any]:
    """Returns the content of a run's settings file, a dict; damage is a `ValueError`."""
    return read_json(pathlib.Path(folder) / SETTINGS_FILE, REMEDY)


def settings_of(folder: StrPath) -> Settings:
    """Returns the `Settings` of a run; raises the errors of `read_settings`."""
    settings = Settings(**read_settings(folder)["settings"])
    check(settings)
    return settings


def _plain(part):
    """Returns the fields of a dataclass as a dict of what JSON can hold."""
    return json.loads(json.dumps(dataclasses.asdict(part)))
