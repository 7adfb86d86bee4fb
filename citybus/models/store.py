"""The models directory: one folder a model, in Hugging Face layout, with a manifest of what was put there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from citybus.failure import Failure
from citybus.models.folder import check_folder

DEFAULT_ALIAS = "default"
DEFAULT_NAME = "SmolLM2-135M-Instruct"
MANIFEST = "citybus.json"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Size in bytes and SHA-256 (hexadecimal) of a file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Where a model came from, and its files by name."""

    source: str
    files: dict[str, FileFacts]

    def to_json(self) -> str:
        """The manifest as it is written."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest at `path`. Raises `OSError`, or `ValueError` where it is not one."""
        content = json.loads(path.read_text(encoding="utf-8"))
        try:
            return cls(content["source"], {name: FileFacts(**facts) for name, facts in content["files"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a manifest: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in the directory; `size` is in bytes, `fault` says what is wrong with its files, where something is."""

    name: str
    path: Path
    source: str
    size: int
    fault: str | None


class ModelStore:
    """The models under `root`, a folder that need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entries(self) -> list[Entry]:
        """Every model, by name. Sizes are checked, checksums are not: this is quick."""
        manifests = sorted(self.root.glob(f"*/{MANIFEST}"))
        return [self._entry(path.parent) for path in manifests if _NAME.fullmatch(path.parent.name)]

    def get(self, name: str) -> Entry | None:
        """The model of this name ("default" is one)."""
        name = resolve_name(name)
        path = self.root / name
        return self._entry(path) if (path / MANIFEST).is_file() else None

    def path(self, name: str) -> Path:
        """Folder of the model of this name. Raises `Failure` where it is not there or damaged."""
        entry = self.get(name)
        if entry is None:
            raise Failure(f"no model {resolve_name(name)!r} in {self.root}: {_how_to_add(name, self)}")
        if entry.fault:
            raise Failure(
                f"model {entry.name!r} is damaged ({entry.fault}): remove {entry.path} and add the model again"
            )
        return entry.path

    def find(self, model: str) -> Path:
        """Folder of a model to serve: a path (with a slash in it), or a name as in `path`. Raises `Failure`."""
        if "/" not in model:
            return self.path(model)
        folder = Path(model).expanduser().resolve()
        check_folder(folder)
        return folder

    def _entry(self, path: Path) -> Entry:
        try:
            manifest = Manifest.read(path / MANIFEST)
        except (OSError, ValueError) as error:
            return Entry(path.name, path, "?", 0, f"{MANIFEST}: {error}")
        size = sum(facts.size for facts in manifest.files.values())
        return Entry(path.name, path, manifest.source, size, _fault(path, manifest))


def models_dir(option: str | None, environ: Mapping[str, str]) -> Path:
    """The models directory: `option`, CITYBUS_MODELS_DIR, or citybus/models in the user's data directory."""
    if chosen := option or environ.get("CITYBUS_MODELS_DIR"):
        return Path(chosen).expanduser().absolute()
    data = environ.get("XDG_DATA_HOME", "")
    base = Path(data) if os.path.isabs(data) else Path("~/.local/share").expanduser()  # noqa: PTH117
    return base / "citybus" / "models"


def resolve_name(name: str) -> str:
    """The folder's name for `name`. Raises `Failure` for one that no folder here can have."""
    name = DEFAULT_NAME if name == DEFAULT_ALIAS else name
    if not _NAME.fullmatch(name):
        raise Failure(f"{name!r} is not a model's name: use letters, digits, '.', '_' and '-', up to 128")
    return name


def _fault(path: Path, manifest: Manifest) -> str | None:
    for name, facts in manifest.files.items():
        try:
            size = (path / name).stat().st_size
        except OSError as error:
            return f"{name}: {error.strerror}"
        if size != facts.size:
            return f"{name} has {size} bytes, {facts.size} expected"
    return None


def _how_to_add(name: str, store: ModelStore) -> str:
    if resolve_name(name) == DEFAULT_NAME:
        return "get it with 'citybus model add default'"
    if Path(name).is_dir():
        return f"for the folder here, write ./{name}"
    known = ", ".join(entry.name for entry in store.entries())
    return f"add it with 'citybus model add FOLDER'{f', or choose one of {known}' if known else ''}"
