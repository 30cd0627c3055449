"""The extensions in Cython and cffi; everything else is declared in pyproject.toml."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import Cython
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

# SEGSTORE_DEBUG=1 builds with line tracing and annotated HTML beside every .pyx file.
DEBUG = os.environ.get("SEGSTORE_DEBUG") == "1"
COMPILE_ARGS = ["-O0", "-g"] if DEBUG else ["-O3", "-g1"]
# SEGSTORE_SANITIZE=1 builds with gcc's checks of memory and arithmetic: .ci/sanitize runs that.
SANITIZE = os.environ.get("SEGSTORE_SANITIZE") == "1"
SANITIZE_ARGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
if SANITIZE:
    COMPILE_ARGS = ["-O1", "-g", "-fno-omit-frame-pointer", *SANITIZE_ARGS]
# SEGSTORE_COMPILED=1 installs with the extensions that lie in src: .ci/install has compiled them.
COMPILED = os.environ.get("SEGSTORE_COMPILED") == "1"
# SEGSTORE_SBOM=FILE puts this list of components into the wheel, as .ci/packages asks.
SBOM = os.environ.get("SEGSTORE_SBOM")
CORES = len(os.sched_getaffinity(0))
# Where processes are not forked, each of Cython's would run this file again.
TRANSLATORS = CORES if multiprocessing.get_start_method() == "fork" else 0
MACROS = [("CYTHON_TRACE", "1")] if DEBUG else []
# A build of another kind must not make the sources of this one look old.
BUILD_DIR = "build/sanitize" if SANITIZE else None
# What all modules need of Cython itself, such as its views of memory: compiled once.
SHARED = "_fast._shared"
COMPILING = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}


def check_compiler() -> None:
    """Say at once when there is no compiler: translating the modules takes long before it is
    missed."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if COMPILING & set(sys.argv) and not shutil.which(compiler):
        sys.exit(
            f"segstore: there is no C compiler {compiler}, which the sources need: install one, as"
            " by apt install gcc python3-dev, or install a wheel"
        )


def declare(source: Path) -> Extension:
    """Return the extension module that is made of a file below ``src``."""
    return Extension(
        ".".join(source.relative_to("src").with_suffix("").parts),
        [str(source)],
        include_dirs=["src/_fast"],
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=SANITIZE_ARGS if SANITIZE else [],
        define_macros=MACROS,
    )


def translated() -> list[Extension]:
    """Return the extension modules, translated to C."""
    shared = declare(Path("src", *SHARED.split(".")).with_suffix(".c"))
    written = Path(BUILD_DIR or ".", shared.sources[0])
    shared.sources = [str(written)]
    # What another Cython translated, or one without it, does not fit what this one writes.
    old = not written.exists() or written.stat().st_mtime < Path(Cython.__file__).stat().st_mtime
    if old:
        written.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "cython", f"--generate-shared={written}"]
        subprocess.run(command, check=True)
    found: list[Extension] = cythonize(
        [declare(source) for source in sorted(Path("src/_fast").rglob("*.pyx"))],
        include_path=["src"],
        build_dir=BUILD_DIR,
        annotate=DEBUG,
        force=old or None,
        nthreads=TRANSLATORS,
        shared_utility_qualified_name=SHARED,
        compiler_directives={
            "language_level": 3,
            "embedsignature": True,
            "boundscheck": False,
            "wraparound": False,
            "linetrace": DEBUG,
        },
    )
    return [shared, *found]


class Wheel(bdist_wheel):
    """A wheel with a list of components, where tools look for one."""

    def write_wheelfile(self, wheelfile_base: str, *rest: str) -> None:
        """Write what describes the wheel."""
        super().write_wheelfile(wheelfile_base, *rest)
        if SBOM:
            folder = Path(wheelfile_base, "sboms")
            folder.mkdir()
            shutil.copyfile(SBOM, folder / "segstore.cdx.json")


if not COMPILED:
    check_compiler()
setup(
    cmdclass={"bdist_wheel": Wheel},
    options={"build_ext": {"parallel": CORES}},
    cffi_modules=[] if COMPILED else ["src/segstore/runtime/kernel_build.py:builder"],
    ext_modules=[] if COMPILED else translated(),
)
