# SPDX-License-Identifier: MIT
"""scikit-build-core, but for one thing: what is made here has with it what lies outside this folder, the licence and, in a source
distribution, the C sources. They are here, or where this folder cannot be written in one in its place, as long as it is made; a source
distribution has them for good."""
import contextlib
import functools
import os
import pathlib
import shutil
import tempfile

import scikit_build_core.build as _build
from scikit_build_core.build import *  # noqa: F401,F403

HERE = pathlib.Path(__file__).resolve().parent
TREE = (HERE.parent / "src" / "chain").exists()  # not made from a source distribution
ENGINE = ("CMakeLists.txt", "LICENSE", "cmake", "include", "src")


@contextlib.contextmanager
def _licensed_folder():
    """This folder with the licence in it; where it cannot be written, one that has the licence, this one's files and links to its folders."""
    if os.access(HERE, os.W_OK):
        shutil.copy2(HERE.parent / "LICENSE", HERE / "LICENSE")
        try:
            yield HERE
        finally:
            (HERE / "LICENSE").unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory() as made:
        for entry in (HERE.parent / "LICENSE", *HERE.iterdir()):
            place = pathlib.Path(made) / entry.name
            place.symlink_to(entry) if entry.is_dir() else shutil.copy2(entry, place)
        os.environ.update(SKBUILD_CMAKE_SOURCE_DIR=str(HERE.parent), SKBUILD_WHEEL_PACKAGES=str(HERE / "src" / "deeppcr"))
        os.chdir(made)
        try:
            yield pathlib.Path(made)
        finally:
            os.chdir(HERE)


def _licensed(hook):
    @functools.wraps(hook)
    def run(*arguments, **options):
        if not TREE:
            return hook(*arguments, **options)
        with _licensed_folder():
            return hook(*arguments, **options)

    return run


for _name in ("build_wheel", "build_editable", "prepare_metadata_for_build_wheel", "prepare_metadata_for_build_editable"):
    if hasattr(_build, _name):
        globals()[_name] = _licensed(getattr(_build, _name))


def build_sdist(sdist_directory, config_settings=None):
    if not TREE:
        return _build.build_sdist(sdist_directory, config_settings)
    with _licensed_folder() as folder:
        engine = folder / "engine"
        shutil.rmtree(engine, ignore_errors=True)
        engine.mkdir()
        try:
            for name in ENGINE:
                source = HERE.parent / name
                (shutil.copytree if source.is_dir() else shutil.copy2)(source, engine / name)
            return _build.build_sdist(sdist_directory, config_settings)
        finally:
            shutil.rmtree(engine)
