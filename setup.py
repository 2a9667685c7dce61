"""Turns the links of README, which are those of the repository, into ones that work elsewhere.

Everything else is in setup.cfg.
"""

import configparser
import pathlib
import re

from setuptools import setup

HERE = pathlib.Path(__file__).parent
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def described():
    """Returns README with absolute links, for package indexes."""
    metadata = configparser.ConfigParser()
    metadata.read(HERE / "setup.cfg", encoding="utf-8")
    urls = metadata["metadata"]["project_urls"].strip().splitlines()
    source = dict(url.split(" = ") for url in urls)["Source"]

    def absolute(match):
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}{match[2]}({source}/{kind}/main/{match[3]})"

    return LINK.sub(absolute, (HERE / "README.md").read_text(encoding="utf-8"))


setup(long_description=described())
