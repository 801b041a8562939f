#!/usr/bin/env python3
"""Prints the licences of every crate that the Linux binary contains, each text once.

Licences such as MIT and BSD ask that their text goes with the binary.
"""

import json
import pathlib
import subprocess

TARGET = "x86_64-unknown-linux-gnu"
NAMES = ("license", "licence", "copying", "notice", "copyright", "unlicense")


def read_metadata():
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version=1", "--filter-platform", TARGET]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def find_linked(metadata):
    """Returns the packages that `ringfence` links: not those that only build it or test it."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    [start] = [package["id"] for package in metadata["packages"] if package["name"] == "ringfence"]
    found, waiting = set(), [start]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        for dependency in nodes[current]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return [package for package in metadata["packages"] if package["id"] in found and package["source"]]


def find_texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(NAMES))
    return [path.read_text(encoding="utf-8", errors="replace").strip() for path in files]


def main():
    packages = sorted(find_linked(read_metadata()), key=lambda package: (package["name"], package["version"]))
    print("Ringfence contains these packages, under the licences that follow.\n")
    owners = {}
    for package in packages:
        title = f"{package['name']} {package['version']}"
        print(f"{title}: {package['license'] or 'see its text'}")
        for text in find_texts(package):
            owners.setdefault(text, []).append(title)
    for text, titles in owners.items():
        print(f"\n{'=' * 100}\n{', '.join(titles)}\n{'=' * 100}\n\n{text}")


main()
