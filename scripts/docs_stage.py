#!/usr/bin/env python3
"""Prepares copied pages for mdbook: files of the sources that they link to come along, and README.md is index.md there.

    scripts/docs_stage.py COPY

From the project's folder.
"""

import os
import re
import shutil
import sys

LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def main(copy):
    for folder, _, names in os.walk(copy):
        for name in (name for name in names if name.endswith(".md")):
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            here = os.path.relpath(folder, copy)
            for target, _ in LINK.findall(text):
                inside = os.path.normpath(os.path.join(here, target))
                staged = os.path.join(copy, inside)
                if "://" in target or inside.startswith("..") or os.path.exists(staged) or not os.path.exists(inside):
                    continue
                os.makedirs(os.path.dirname(staged), exist_ok=True)
                (shutil.copytree if os.path.isdir(inside) else shutil.copy)(inside, staged)
            # mdbook calls these pages index.html, and does not change the links to them.
            if name != "SUMMARY.md":
                text = re.sub(r"(\]\((?:[^)#\s]*/)?)README\.md((?:#[^)\s]*)?\))", r"\1index.md\2", text)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
