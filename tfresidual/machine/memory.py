"""Checks that something fits into the machine's memory before it is created."""

import pathlib

import psutil

from tfresidual.machine.backends import count_of_gpus

# Files in which Linux gives the memory limit of a container.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# An upper bound on the memory of a GPU, which cannot be queried without allocating it.
GPU_BYTES = 512 * 2**30


class TooLargeError(ValueError):
    """Something needs more memory, in `amounts` as text, than the machine has."""

    def __init__(self, what, amounts, received):
        super().__init__(f"{what} {amounts}. Received: {received}")
        self.amounts = amounts


def check_fits(needed, what, received):
    """Raises a `TooLargeError` if `needed` bytes are more than all memory of the machine."""
    limit = _limit()
    if needed <= limit or needed <= limit + GPU_BYTES * count_of_gpus():
        return
    shown, has = (f"{size / 2**30:,.1f} GiB" for size in (needed, limit))
    raise TooLargeError(
        what, f"would take at least {shown} of memory; this machine has {has}", received
    )


def _limit():
    """Returns the memory of the machine with its swap, or the container's limit if it is lower."""
    limits = [psutil.virtual_memory().total + psutil.swap_memory().total]
    for path in CONTAINER_LIMITS:
        try:
            limits.append(int(pathlib.Path(path).read_text()))
        except (OSError, ValueError):
            # This is not a container, or it has no limit.
            continue
    return min(limits)
