"""Runs the pages of the tutorial when the site is built, and shows what they print and draw.

A page is Markdown; its Python blocks run one after the other in one process. What the last
expression of a block returns is shown below it: a figure, a table, text. `alt` beside the language
of a block describes its figure. Every page is also a notebook, with the same results, next to it on
the site.

    python docs/hooks/tutorials.py FOLDER

writes the notebooks, which have not been run, to a folder.
"""

import base64
import hashlib
import io
import pathlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = "tutorial"
# What a block may take, in seconds, before it counts as hung.
MOST_SECONDS = 1200
# Much of a page is tracing, which keeps one core busy.
AT_ONCE = 2
# So that building twice runs once.
CACHE = ROOT / ".cache" / "tutorial"


# For services that open notebooks; .github/workflows/notebooks.yml puts them there.
REPOSITORY = "github.com/tfresidual/tfresidual"
PUBLISHED = "blob/notebooks/{}.ipynb"
SERVICES = {
    "Colab": "https://colab.research.google.com/github/tfresidual/tfresidual/" + PUBLISHED,
    "Kaggle": f"https://kaggle.com/kernels/welcome?src=https://{REPOSITORY}/{PUBLISHED}",
}


def with_install(notebook):
    """Returns a notebook whose first block installs the package, for where it is not."""
    cell = nbformat.v4.new_code_cell(f"%pip install --quiet git+https://{REPOSITORY}")
    cell.id = "install"
    cells = [*notebook.cells[:1], cell, *notebook.cells[1:]]
    return nbformat.from_dict({**notebook, "cells": cells})


def notebook_of(path):
    """Returns a page as a notebook that has not been run."""
    notebook = jupytext.read(path, fmt="md")
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        # Otherwise they are random, and so is the file.
        cell.id = f"cell-{number}"
    nbformat.validate(notebook)
    return notebook


def run(notebook):
    """Runs a notebook in a folder of its own; an error ends the build."""
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=MOST_SECONDS, resources=resources).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _printed(cell.outputs)


def _printed(outputs):
    """Returns outputs without what went to the log, and what was printed in pieces in one."""
    kept = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output.get("name") == "stdout" and kept and kept[-1].get("name") == "stdout":
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def markdown_of(notebook, name):
    """Returns a notebook that has been run as Markdown, and its pictures by name."""
    parts, pictures = [], {}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            parts.append(_output(output, cell.metadata.get("alt"), name, pictures))
    return "\n\n".join(parts) + "\n", pictures


def _output(output, alt, name, pictures):
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    if "image/png" in output.data:
        if not alt:
            raise ValueError(f"a figure of {name} has no `alt` in the fence of its block")
        picture = f"{name}-{len(pictures) + 1}.png"
        pictures[picture] = base64.b64decode(output.data["image/png"])
        return f"![{alt}]({picture})"
    if "text/html" in output.data:
        return f'<div class="frame">{output.data["text/html"]}</div>'
    return f"```text\n{output.data['text/plain']}\n```"


def _finished(path):
    """Returns a page's notebook after it was run, now or before with the same package."""
    import tfresidual

    notebook = notebook_of(path)
    package = pathlib.Path(tfresidual.__file__).parent
    key = hashlib.sha256(path.read_bytes())
    for source in sorted(package.rglob("*.py")):
        key.update(source.read_bytes())
    kept = CACHE / f"{path.stem}-{key.hexdigest()[:16]}.ipynb"
    if kept.exists():
        return nbformat.read(kept, as_version=4)
    run(notebook)
    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.glob(f"{path.stem}-*.ipynb"):
        old.unlink()
    nbformat.write(notebook, kept)
    return notebook


def on_files(files, config):
    """Runs the pages and adds notebooks and pictures to the site."""
    from mkdocs.structure.files import File

    paths = sorted((ROOT / "docs" / FOLDER).glob("*.md"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        notebooks = list(pool.map(_finished, paths))
    for path, notebook in zip(paths, notebooks, strict=True):
        text, pictures = markdown_of(notebook, path.stem)
        page = files.get_file_from_path(f"{FOLDER}/{path.name}")
        links = [f"[This page as a notebook]({path.stem}.ipynb)"]
        links += [f"[in {name}]({link.format(path.stem)})" for name, link in SERVICES.items()]
        title, _, rest = text.partition("\n\n")
        page.content_string = f"{title}\n\n{' · '.join(links)}\n\n{rest}"
        written = io.StringIO()
        nbformat.write(with_install(notebook), written)
        for name, content in {f"{path.stem}.ipynb": written.getvalue(), **pictures}.items():
            files.append(File.generated(config, f"{FOLDER}/{name}", content=content))
    return files


def main(folder):
    """Writes the notebooks of the tutorials into a folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((ROOT / "docs" / FOLDER).glob("*.md")):
        nbformat.write(with_install(notebook_of(path)), folder / f"{path.stem}.ipynb")


if __name__ == "__main__":
    main(*sys.argv[1:])
