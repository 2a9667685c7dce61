"""The tables on the pages of the reference: every name and what it is in one sentence.

    python docs/hooks/reference.py

writes them, so that the pages can be read where docstrings are not shown. A test compares them.
"""

import importlib
import inspect
import pathlib
import re

FOLDER = pathlib.Path(__file__).parents[1] / "reference"
BEGIN, END = "<!-- all names -->\n", "<!-- end -->\n"
# What a page shows: an object, or members of a module.
SHOWN = re.compile(
    r"^::: (tfresidual[\w.]*)$(?:\n    options:\n      members:\n((?:        - \w+\n)+))?",
    re.MULTILINE,
)


def pages():
    """Returns the pages with their tables as they are now, by path."""
    found = {}
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if SHOWN.search(text):
            found[path] = page(text)
    return found


def page(text):
    """Returns the text of a page with its table."""
    before, _, rest = text.partition(BEGIN)
    if rest:
        rest = rest.partition(END)[2]
    else:
        start = text.index("\n::: ") + 1
        before, rest = text[:start], "\n" + text[start:]
    rows = [("name in `tfresidual`", "what it is"), ("---", "---")]
    rows += [row for name, members in SHOWN.findall(text) for row in rows_of(name, members)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return before + BEGIN + table + END + rest


def rows_of(path, members):
    """Returns the rows of an object, or those of members of a module."""
    parent, _, name = path.rpartition(".")
    if not members:
        found = getattr(importlib.import_module(parent), name)
        return [(f"`{public_name(found, path)}`", first_sentence(found))]
    module = importlib.import_module(path)
    return [
        (f"`{public_name(module, path)}.{member}`", first_sentence(getattr(module, member)))
        for member in re.findall(r"\w+", members)
    ]


def public_name(found, path):
    """Returns the shortest name under which an object can be imported, from the package on."""
    *parents, name = path.split(".")
    for count in range(1, len(parents) + 1):
        package = ".".join(parents[:count])
        if getattr(importlib.import_module(package), name, None) is found:
            return f"{package}.{name}".removeprefix("tfresidual.")
    return path.removeprefix("tfresidual.")


def first_sentence(found):
    """Returns the first sentence of a docstring."""
    text = " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
