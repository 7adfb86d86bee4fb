"""Make the generated stubs from the .proto files: the one way they are made.

`python protos/generate.py` writes them into the `citybus` package, where the proto packages put them;
`--check` writes nothing and fails where what is there differs from what would be made.
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent
STUB_ROOT = PROTO_ROOT.parent
SCRIPTS = sysconfig.get_path("scripts")  # an environment that was not activated is not on the PATH
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def generate(destination: Path) -> None:
    """Write the stubs under `destination`."""
    sources = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.rglob("*.proto"))
    outputs = [f"--{kind}_out={destination}" for kind in ("python", "grpc_python")]
    for kind in ("mypy", "mypy_grpc"):
        outputs += [f"--plugin=protoc-gen-{kind}={SCRIPTS}/protoc-gen-{kind}", f"--{kind}_out=quiet:{destination}"]
    if protoc.main(["protoc", f"-I{PROTO_ROOT}", f"-I{WELL_KNOWN}", *outputs, *sources]) != 0:
        raise SystemExit("protoc failed; its message is above")


def stubs(root: Path) -> set[Path]:
    """The stubs in the `citybus` package under `root`, relative to it."""
    found = (root / "citybus").rglob("*_pb2*.py*")
    return {path.relative_to(root) for path in found if path.suffix in (".py", ".pyi")}


def stale(made: Path) -> list[Path]:
    """The stubs of the tree that are missing, different from those in `made`, or made by no proto any more."""
    common = stubs(made) & stubs(STUB_ROOT)
    same = {stub for stub in common if filecmp.cmp(made / stub, STUB_ROOT / stub, shallow=False)}
    return sorted((stubs(made) | stubs(STUB_ROOT)) - same)


def main() -> int:
    """The command. Returns its exit status: 1 where `--check` finds a stale stub."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the stubs in the tree are current")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        old = stale(Path(scratch))
        if not check:
            for stub in old:
                _replace(STUB_ROOT / stub, Path(scratch) / stub)
            return 0
    for stub in old:
        print(f"{stub} is stale: run 'make protos' and commit the result", file=sys.stderr)
    return 1 if old else 0


def _replace(stub: Path, made: Path) -> None:
    """Put the stub that was made, or none where none was, into the tree."""
    if made.exists():
        stub.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, stub)
    else:
        stub.unlink()


if __name__ == "__main__":
    raise SystemExit(main())
