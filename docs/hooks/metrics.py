"""The table of metrics in docs/concepts/metrics.md, from what the probes declare.

    python docs/hooks/metrics.py

writes it. A test compares it.
"""

import pathlib

from tfresidual.definitions.probes import PROBES

PAGE = pathlib.Path(__file__).parents[1] / "concepts" / "metrics.md"
BEGIN, END = "<!-- the metrics of all probes -->\n", "<!-- end -->\n"


def pages():
    """Returns the text of the page with the table as it is now, by its path."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return {PAGE: before + BEGIN + table() + END + rest.partition(END)[2]}


def table():
    """Returns the rows of the table, and its head."""
    rows = [("metric", "in", "definition", "range", "low", "high", "paper"), ("---",) * 7]
    for probe in PROBES.values():
        for name, column in probe.columns.items():
            of = (f"`{name}`", f"`{column.of or probe.name}`", column.meaning, _range(column))
            rows.append((*of, column.low, column.high, column.paper))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _range(column):
    least, most = column.at_least, column.at_most
    if least is None:
        return "any" if most is None else f"{most} or less"
    return f"{least} or more" if most is None else f"{least} to {most}"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
