"""Files that are there whole or not at all."""

import contextlib
import os
import pathlib
import tempfile


@contextlib.contextmanager
def replacing(path):
    """A path beside the target to write to; what stands there takes the target's place.

    The target changes in one step, when the block ends; if it raises, or the process dies, the
    target stays as it was.

    Args:
        path: the target. Its folder must exist.

    Yields:
        A `pathlib.Path` in the same folder and with the same ending.
    """
    path = pathlib.Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    written = pathlib.Path(name)
    try:
        yield written
        # mkstemp makes files for the owner alone.
        umask = os.umask(0)
        os.umask(umask)
        written.chmod(0o666 & ~umask)
        with written.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(written, path)
    finally:
        written.unlink(missing_ok=True)


@contextlib.contextmanager
def written(path):
    """`replacing`, in a folder that is made if it is not there."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        yield beside
