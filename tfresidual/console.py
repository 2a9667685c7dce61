"""Messages and progress bars on the terminal during long operations."""

from rich.console import Console
from rich.progress import track


def terminal():
    """Returns the console for progress; it writes to stderr, so that stdout holds only results."""
    return Console(stderr=True)


def say(console, text):
    """Prints a line, or nothing if there is no console."""
    if console is not None:
        console.print(text, highlight=False, soft_wrap=True)


def followed(items, text, console):
    """Returns the items, with a progress bar during the iteration if the console is a terminal."""
    if console is None or not console.is_terminal:
        return items
    return track(items, text, len(items), console=console, transient=True)
