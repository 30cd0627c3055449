"""The Cython extensions of the distribution; everything else is declared in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# SEGSTORE_DEBUG=1 builds with line tracing and annotated HTML beside every .pyx file.
DEBUG = os.environ.get("SEGSTORE_DEBUG") == "1"
COMPILE_ARGS = ["-O0", "-g"] if DEBUG else ["-O3", "-g1"]
MACROS = [("CYTHON_TRACE", "1")] if DEBUG else []


def extensions() -> list[Extension]:
    """One extension module for each ``src/_fast/*.pyx``."""
    sources = sorted(Path("src/_fast").glob("*.pyx"))
    return [
        Extension(
            f"_fast.{source.stem}",
            [str(source)],
            include_dirs=["src/_fast"],
            extra_compile_args=COMPILE_ARGS,
            define_macros=MACROS,
        )
        for source in sources
    ]


setup(
    ext_modules=cythonize(
        extensions(),
        include_path=["src"],
        annotate=DEBUG,
        compiler_directives={
            "language_level": 3,
            "embedsignature": True,
            "boundscheck": False,
            "wraparound": False,
            "linetrace": DEBUG,
        },
    )
)
