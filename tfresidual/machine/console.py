"""Messages and progress bars on the terminal during long operations."""

import contextlib
import sys
import threading

from rich.console import Console
from rich.progress import Progress, TextColumn

# Seconds from which the remaining time is estimated; a step may take minutes.
ESTIMATED_FROM = 3600

# For each stream of `sys` that is redirected: itself, and the streams that took its place.
_STREAMS: dict[str, list] = {}
_LOCK = threading.Lock()


def terminal():
    """Returns the console for progress; it writes to stderr, so that stdout holds only results."""
    return Console(stderr=True)


def printable(text):
    """Returns text without control characters and bytes that are not UTF-8, which are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(console, text):
    """Prints lines as they are, without markup; nothing if there is no console."""
    if console is not None:
        lines = "\n".join(map(printable, text.split("\n")))
        console.print(lines, markup=False, emoji=False, highlight=False, soft_wrap=True)


class PlainColumn(TextColumn):
    """A column of a progress bar whose text is shown as it is, without markup."""

    def __init__(self, text_format):
        super().__init__(text_format, "progress.description", markup=False)

    def render(self, task):
        text = super().render(task)
        text.plain = printable(text.plain)
        return text


@contextlib.contextmanager
def progress_bar(description, total, console=None):
    """Shows a progress bar until the block ends; none without a description or a terminal.

    Yields a function `advance(amount=1, text=None)`; `text` replaces the description. The amounts
    add up to `total`, `None` if it is not known. By default, the console writes to stderr.
    """
    if description is None:
        yield lambda amount=1, text=None: None
        return
    console = terminal() if console is None else console
    _, *columns = Progress.get_default_columns()
    with Progress(
        PlainColumn("{task.description}"),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=ESTIMATED_FROM,
    ) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount=1, text=None: bar.update(task, advance=amount, description=text)


def followed(items, description, console):
    """Yields the items, with a progress bar if there is a console and it is a terminal."""
    with progress_bar(None if console is None else description, len(items), console) as advance:
        for item in items:
            yield item
            advance()


@contextlib.contextmanager
def redirected(stdout, stderr=None):
    """Writes what is printed in the block, by any thread, to other streams.

    Unlike with those of `contextlib`, the streams are as before when the last of several blocks
    ends, whichever thread enters and leaves its block first.
    """
    new = {"stdout": stdout} | ({} if stderr is None else {"stderr": stderr})
    with _LOCK:
        for name, stream in new.items():
            _STREAMS.setdefault(name, [getattr(sys, name)]).append(stream)
            setattr(sys, name, stream)
    try:
        yield
    finally:
        with _LOCK:
            for name, stream in new.items():
                first, *others = _STREAMS.pop(name)
                others.remove(stream)
                setattr(sys, name, others[-1] if others else first)
                if others:
                    _STREAMS[name] = [first, *others]
