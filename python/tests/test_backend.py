# SPDX-License-Identifier: MIT
"""What the package is made from, with a stand-in for scikit-build-core."""
import importlib.util
import os
import pathlib
import shutil
import sys
import types

import pytest
from conftest import ROOT


@pytest.fixture
def backend(tmp_path, monkeypatch):
    """backend.py in a small tree of its own; its hooks answer with their folder, and what can be read there."""
    if not (ROOT / "python" / "backend.py").exists():
        pytest.skip("no tree around the package")
    here = tmp_path / "python"
    for folder in ("cmake", "include", "src/chain", "python/src/deeppcr"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("CMakeLists.txt", "LICENSE", "python/pyproject.toml", "python/src/deeppcr/__init__.py"):
        (tmp_path / name).write_text(name)
    shutil.copy2(ROOT / "python" / "backend.py", here)

    def hook(_directory, _settings=None):
        folder = pathlib.Path.cwd()
        return folder, [n for n in ("LICENSE", "pyproject.toml", "src/deeppcr/__init__.py", "engine/CMakeLists.txt") if (folder / n).is_file()]

    build = types.ModuleType("scikit_build_core.build")
    build.build_wheel = build.build_editable = build.build_sdist = hook
    monkeypatch.setitem(sys.modules, "scikit_build_core", types.ModuleType("scikit_build_core"))
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", build)
    sys.modules["scikit_build_core"].build = build
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.chdir(here)
    spec = importlib.util.spec_from_file_location("backend", here / "backend.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("writable", [True, False])
def test_the_licence_is_there_and_the_tree_as_before(backend, tmp_path, monkeypatch, writable):
    before = sorted(tmp_path.rglob("*"))
    if not writable:
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: False if mode == os.W_OK else access(path, mode))
        for folder in ("python", "."):  # what is written there all the same fails, but for root
            (tmp_path / folder).chmod(0o555)
    try:
        for make, found in ((backend.build_wheel, 3), (backend.build_editable, 3), (backend.build_sdist, 4)):
            folder, files = make("dist")
            assert len(files) == found, files
            assert (folder == tmp_path / "python") == writable
            assert pathlib.Path.cwd() == tmp_path / "python"
            assert writable or (os.environ["SKBUILD_CMAKE_SOURCE_DIR"], os.environ["SKBUILD_WHEEL_PACKAGES"]) == (str(tmp_path), str(tmp_path / "python/src/deeppcr"))
    finally:
        for folder in (".", "python"):
            (tmp_path / folder).chmod(0o755)
    assert sorted(tmp_path.rglob("*")) == before
