"""What is said on the terminal while something takes long."""

from rich.console import Console
from rich.progress import track


def terminal():
    """The console for progress: on stderr, so that stdout holds results alone."""
    return Console(stderr=True)


def say(console, text):
    """Prints a line, or nothing where there is no console."""
    if console is not None:
        console.print(text, highlight=False, soft_wrap=True)


def followed(items, text, console):
    """The items, with a bar as long as they are gone through; it is not drawn into a log."""
    if console is None or not console.is_terminal:
        return items
    return track(items, text, len(items), console=console, transient=True)
