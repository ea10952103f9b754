# SPDX-License-Identifier: MIT
"""scikit-build-core, but for one thing: a source distribution takes the C sources along, which lie outside this folder."""
import pathlib
import shutil

from scikit_build_core.build import *  # noqa: F401,F403
from scikit_build_core.build import build_sdist as _build_sdist

HERE = pathlib.Path(__file__).resolve().parent
ENGINE = ("CMakeLists.txt", "LICENSE", "cmake", "include", "src")


def build_sdist(sdist_directory, config_settings=None):
    engine = HERE / "engine"
    if not (HERE.parent / "src" / "chain").exists():  # made from a source distribution
        return _build_sdist(sdist_directory, config_settings)
    shutil.rmtree(engine, ignore_errors=True)
    engine.mkdir()
    try:
        for name in ENGINE:
            source = HERE.parent / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, engine / name)
        return _build_sdist(sdist_directory, config_settings)
    finally:
        shutil.rmtree(engine)
