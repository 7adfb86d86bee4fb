"""The native library of kernels/cpu; everything else about the package is in pyproject.toml.

It is optional: without a C++ compiler, or on another processor, the package is installed without it.
"""

from __future__ import annotations

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("kernels/cpu")
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-ffp-contract=off", "-pthread"]
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"]
AVX512 += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # thousands of lines about GCC's own headers
INSTRUCTION_SETS = {
    "isa_avx2.cpp": AVX2,
    "isa_avx512.cpp": AVX512,
    "isa_amx.cpp": [*AVX512, "-mamx-tile", "-mamx-bf16"],
}


class BuildNative(build_ext):
    """Compiles each file for its own instruction set: the library chooses among them when it is loaded."""

    def build_extension(self, ext: Extension) -> None:
        objects: list[str] = []
        for source in ext.sources:
            flags = [*FLAGS, *INSTRUCTION_SETS.get(Path(source).name, [])]
            objects += self.compiler.compile([source], output_dir=self.build_temp, extra_postargs=flags)
        target = self.get_ext_fullpath(ext.name)
        self.compiler.link_shared_object(objects, target, extra_postargs=["-pthread"], target_lang="c++")


def native() -> list[Extension]:
    """The library, where the processor is one it is written for."""
    if platform.machine().lower() not in ("x86_64", "amd64") or platform.system() == "Windows":
        return []
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    headers = [str(path) for path in sorted(SOURCES.glob("*.h"))]
    return [Extension("kernels.cpu._native", sources, depends=headers, optional=True)]


setup(ext_modules=native(), cmdclass={"build_ext": BuildNative})
