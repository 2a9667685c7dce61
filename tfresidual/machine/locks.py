"""Folders that one process at a time writes to."""

import contextlib
import pathlib

import filelock

from tfresidual.machine.files import check_folder, folders_above

# The locked file in the folder. It is removed when the folder is released; a process that is killed
# leaves it behind, unlocked.
LOCK = ".lock"
# Seconds to wait for a process that is just releasing a folder.
PATIENCE = 0.5


class FolderInUseError(OSError):
    """Another process, or another thread of this one, is writing to a folder."""


@contextlib.contextmanager
def locked(folder, argument="folder", beside=False, wait=False):
    """Holds a folder for this thread while the block runs.

    The operating system releases the folder when the process dies, even if it is killed. A thread
    that holds a folder may lock it again. A folder that does not exist is created, and removed
    again if the block fails and leaves it empty.

    Args:
        folder: the folder.
        argument: its name, for errors.
        beside: whether the locked file is in the parent folder, as `.NAME.lock`; for a folder that
            is replaced as a whole.
        wait: whether to wait for another holder instead of raising a `FolderInUseError`.
    """
    folder = pathlib.Path(folder)
    check_folder(argument, folder.parent if beside else folder)
    whole = folder.resolve()
    path = whole.parent / f".{whole.name}{LOCK}" if beside else whole / LOCK
    with folders_above(path):
        lock = filelock.FileLock(path, is_singleton=True, fallback_to_soft=False)
        is_first = not lock.is_locked
        try:
            lock.acquire(timeout=-1 if wait else PATIENCE)
        except (filelock.Timeout, FileNotFoundError):
            # Another process may have created the folder, failed, and removed it just now.
            raise FolderInUseError(
                "Another process is writing to this folder. Wait until it has ended, or choose "
                f"another `{argument}`. Received: {argument}={str(folder)!r}"
            ) from None
        try:
            yield
        finally:
            if is_first:
                # A process that opened the file and waits for it notices that it is gone, and
                # creates another. On Windows, releasing the lock removes the file.
                with contextlib.suppress(OSError):
                    path.unlink()
            lock.release()
