"""Make the generated stubs from the .proto files: the one way they are made.

`python protos/generate.py` writes them into the `citybus` package, where the proto packages put them;
`--check` writes nothing and fails where what is there differs from what would be made.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent
STUB_ROOT = PROTO_ROOT.parent
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def generate(destination: Path) -> list[Path]:
    """Write the stubs under `destination`; returns their paths relative to it."""
    sources = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.rglob("*.proto"))
    outputs = [f"--{kind}_out={destination}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    if protoc.main(["protoc", f"-I{PROTO_ROOT}", f"-I{WELL_KNOWN}", *outputs, *sources]) != 0:
        raise SystemExit("protoc failed; its message is above")
    return sorted(path.relative_to(destination) for path in destination.rglob("*_pb2*.py*") if path.suffix != ".pyc")


def stale(made: Path, stubs: list[Path]) -> list[Path]:
    """The stubs that are missing or different in the tree."""
    return [
        stub
        for stub in stubs
        if not (STUB_ROOT / stub).is_file() or not filecmp.cmp(made / stub, STUB_ROOT / stub, shallow=False)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the stubs in the tree are current")
    if not parser.parse_args().check:
        generate(STUB_ROOT)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        old = stale(Path(scratch), generate(Path(scratch)))
    for stub in old:
        print(f"{stub} is stale: run 'make protos' and commit the result", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    raise SystemExit(main())
