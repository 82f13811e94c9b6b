"""The commands systems and presets."""

from __future__ import annotations

import argparse

from arcvq.cli.command import Commands, print_json


def add_systems(commands: Commands) -> None:
    """Add the command `arcvq systems`."""
    sub = commands.add("systems", systems, "list the systems that can be trained", "  arcvq systems --json")
    sub.add_argument("--json", action="store_true", help="print as JSON")


def systems(arguments: argparse.Namespace) -> int:
    """Print all systems with summary and citation."""
    from arcvq.systems import SYSTEMS

    rows = {name: {"summary": cls.summary, "citation": cls.citation} for name, cls in sorted(SYSTEMS.items())}
    if arguments.json:
        print_json(rows)
    else:
        for name, row in rows.items():
            print(f"{name:20} {row['summary']}\n{'':20} {row['citation']}")
    return 0


def add_presets(commands: Commands) -> None:
    """Add the command `arcvq presets`, which lists the presets or shows one."""
    sub = commands.add(
        "presets", presets, "list the presets, or show one", "  arcvq presets\n  arcvq presets cifar10/arcvq-vae"
    )
    sub.add_argument("preset", nargs="?", metavar="PRESET", help="show this one")
    sub.add_argument("--json", action="store_true", help="print as JSON")


def presets(arguments: argparse.Namespace) -> int:
    """Print the titles of all presets, or one preset in full."""
    from arcvq.config import read_yaml
    from arcvq.systems import preset_names, preset_path, preset_title

    if arguments.preset:
        path = preset_path(arguments.preset)
        print_json(read_yaml(path)) if arguments.json else print(path.read_text("utf-8", "replace"), end="")
        return 0
    rows = {name: preset_title(name) for name in preset_names()}
    if arguments.json:
        print_json(rows)
    else:
        for name, title in rows.items():
            print(f"{name:36} {title}")
    return 0
