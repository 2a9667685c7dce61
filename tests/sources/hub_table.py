"""What `tfr.chain` finds in every backbone and task of keras-hub: the table in docs/keras_hub.md.

    PYTHONPATH=tests python -m sources.hub_table

writes keras_hub.csv beside this file, and the page. With names of classes as arguments, only their
rows are made anew.
"""

import csv
import os
import pathlib
import re
import sys
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import keras_hub
import numpy as np
from sources import zoo

import tfresidual as tfr

TABLE = pathlib.Path(__file__).with_name("keras_hub.csv")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "keras_hub.md"
# A test makes the rows anew and compares these columns; the last two are for reading.
STABLE = ("class", "output", "blocks", "found", "first", "last", "equal")
COLUMNS = (*STABLE, "beside", "reason")
# The largest difference from `predict`, as a share of the largest output, that rounding explains.
ROUNDING = 1e-4
OPENED, WHOLE = "opened layers: ", "layers are whole blocks, not opened"
BESIDE = "computed from the inputs beside the blocks, and never perturbed: "


def row_of(name):
    """Returns what is found in a class, as a dict of str."""
    row = dict.fromkeys(COLUMNS, "") | {"class": name}
    if name in zoo.LEFT_OUT:
        return row | {"found": "left out", "reason": zoo.LEFT_OUT[name]}
    # Names of layers are counted from the beginning.
    keras.backend.clear_session()
    with warnings.catch_warnings():
        # keras-hub's layers drop masks, of which Keras warns.
        warnings.simplefilter("ignore")
        model = zoo.build(name)
        inputs = zoo.inputs_of(name, model)
        model, row["output"] = zoo.with_one_output(model)
        try:
            chain = tfr.chain(model, inputs=inputs)
        except ValueError as error:
            return row | {"found": "refused", "reason": _plain(str(error).split("Received: ")[-1])}
        expected = np.asarray(model.predict(inputs, verbose=0))
        difference = np.abs(np.asarray(chain(inputs)) - expected).max() / np.abs(expected).max()
    notes = {
        kind: note.removeprefix(kind)
        for kind in (OPENED, WHOLE, BESIDE)
        for note in chain.notes
        if note.startswith(kind)
    }
    found = "opened layers" if OPENED in notes else "whole layers"
    blocks = [block.name for block in chain.blocks]
    return row | {
        "blocks": str(len(blocks)),
        "found": found if notes.keys() & {OPENED, WHOLE} else "additions",
        "first": blocks[0],
        "last": blocks[-1],
        "equal": "yes" if difference <= ROUNDING else "no",
        "beside": ", ".join(f"{n} {kind}" for kind, n in _counts(notes.get(BESIDE, ""))),
        "reason": _plain(notes.get(WHOLE, "").removeprefix(": ")),
    }


def _counts(note):
    return re.findall(r"(\w+) \((\d+):", note)


def _plain(text):
    """Returns a text in one line, without what differs from run to run."""
    text = " ".join(text.split())
    text = re.sub(r", by up to [\d.e+-]+", "", text)
    return re.sub(r"\b([a-z_]+?)_\d+\b", r"\1", text).strip()


def read():
    """Returns the rows of the committed table by class."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {row["class"]: row for row in csv.DictReader(file)}


def write(rows):
    """Writes the table and the page."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(r"(?<=version\n)\S+", f"{keras_hub.__version__}.", text, count=1)
    PAGE.write_text(page(rows, text), encoding="utf-8")


def page(rows, text):
    """Returns the text of docs/keras_hub.md, with the words of an earlier one above the tables."""
    counts = {
        found: sum(row["found"] == found for row in rows.values())
        for found in ("additions", "opened layers", "whole layers", "refused", "left out")
    }
    summary = ", ".join(f"{found} {count}" for found, count in counts.items())
    head = re.sub(r"the \d+ backbones", f"the {len(rows)} backbones", text.split("\n## ")[0])
    parts = [re.sub(r"Found: [^.]+", f"Found: {summary}", head)]
    for title in ("Backbones", "Tasks"):
        parts.append(f"\n## {title}\n\n")
        parts.append("| class | blocks | found | first | last | beside | equal |\n")
        parts.append("|---|---|---|---|---|---|---|\n")
        for name, row in rows.items():
            if name.endswith(("Backbone", "Encoder")) == (title == "Backbones"):
                cells = [f"`{name}`" + (f" ({row['output']})" if row["output"] else "")]
                cells += [row["blocks"], row["found"], *map(_code, (row["first"], row["last"]))]
                parts.append("| " + " | ".join([*cells, row["beside"], row["equal"]]) + " |\n")
    parts.append("\n## Reasons\n\nWhy there is no chain, or why layers are not opened:\n\n")
    for name, row in rows.items():
        if row["reason"]:
            # Brackets before parentheses would be links.
            reason = row["reason"].replace("[", r"\[")
            parts.append(f"- `{name}`: {reason}\n")
    return "".join(parts)


def _code(text):
    return f"`{text}`" if text else ""


def main(names):
    known = read() if TABLE.exists() else {}
    classes = zoo.classes()
    for name in names or classes:
        start = time.perf_counter()
        known[name] = row_of(name)
        print(f"{time.perf_counter() - start:5.1f} s", *known[name].values(), sep="  ", flush=True)
        keras.backend.clear_session()
        write({name: known[name] for name in classes if name in known})


if __name__ == "__main__":
    main(sys.argv[1:])
