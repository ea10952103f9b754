# SPDX-License-Identifier: MIT
"""scikit-build-core, but for one thing: what is made here has with it what lies outside this folder, the licence and, in a source
distribution, the C sources. They are here as long as it is made; a source distribution has them for good."""
import functools
import pathlib
import shutil

import scikit_build_core.build as _build
from scikit_build_core.build import *  # noqa: F401,F403

HERE = pathlib.Path(__file__).resolve().parent
TREE = (HERE.parent / "src" / "chain").exists()  # not made from a source distribution
ENGINE = ("CMakeLists.txt", "LICENSE", "cmake", "include", "src")


def _licensed(hook):
    @functools.wraps(hook)
    def run(*arguments, **options):
        if not TREE:
            return hook(*arguments, **options)
        shutil.copy2(HERE.parent / "LICENSE", HERE / "LICENSE")
        try:
            return hook(*arguments, **options)
        finally:
            (HERE / "LICENSE").unlink(missing_ok=True)

    return run


for _name in ("build_wheel", "build_editable", "prepare_metadata_for_build_wheel", "prepare_metadata_for_build_editable"):
    if hasattr(_build, _name):
        globals()[_name] = _licensed(getattr(_build, _name))


@_licensed
def build_sdist(sdist_directory, config_settings=None):
    if not TREE:
        return _build.build_sdist(sdist_directory, config_settings)
    engine = HERE / "engine"
    shutil.rmtree(engine, ignore_errors=True)
    engine.mkdir()
    try:
        for name in ENGINE:
            source = HERE.parent / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, engine / name)
        return _build.build_sdist(sdist_directory, config_settings)
    finally:
        shutil.rmtree(engine)
