# SPDX-License-Identifier: MIT
"""What the binding believes of the C interface, against the headers, by the compiler."""
import ctypes
import shutil
import subprocess

import pytest

import deeppcr
from deeppcr import _abi

BY_NAME = {made.__name__: made for made in vars(_abi).values() if isinstance(made, type(ctypes.Structure))}
# Structures that say their size may grow at the end: the library reads and writes no more of the shorter than that.
GROWS = {name for name, text in _abi.STRUCTURES.items() if text.lstrip().startswith("size_t size;")}


def program():
    lines = ["#include <stddef.h>", "#include <deeppcr/deeppcr.h>"]
    for name, value in _abi.CONSTANTS.items():
        lines.append(f'_Static_assert({name} == {value}, "{name}");')
    for name in _abi.STRUCTURES:
        size = ctypes.sizeof(BY_NAME[name])
        lines.append(f'_Static_assert(sizeof({name}) {">=" if name in GROWS else "=="} {size}, "sizeof {name}");')
        for kind, field, length in _abi.fields(name):
            offset = getattr(BY_NAME[name], field).offset
            place = f"{name}.{field}"
            lines.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "offset of {place}");')
            if kind == "void *" and not length:  # any pointer: an address
                lines.append(f'_Static_assert(sizeof((({name} *)0)->{field}) == sizeof(void *), "{place}");')
                lines.append(f"const void *pointer_{name}_{field}({name} *s) {{ return (const void *)s->{field}; }}")
            else:
                declared = f"{kind}[{length}]" if length else kind
                lines.append(f"_Static_assert(__builtin_types_compatible_p(__typeof__((({name} *)0)->{field}), {declared}), "
                             f'"type of {place}");')  # fmt: skip
    # Declared again: a prototype that differs is an error.
    lines += [f"{result} {name}({', '.join(arguments) or 'void'});" for name, (result, arguments) in _abi.prototypes().items()]
    callbacks = {
        "int (*)(void *, const dpcr_span *, const dpcr_array *, const dpcr_array *, const dpcr_array *, const dpcr_array *)":
            "((dpcr_steps *)0)->advance",
        "int (*)(void *, const dpcr_span *, const dpcr_array *, const dpcr_array *, const dpcr_array *)":
            "((dpcr_steps *)0)->linearise",
        "int (*)(void *)": "((dpcr_context_options *)0)->cancel",
        "void (*)(void *, dpcr_xla_call *, dpcr_status, dpcr_xla_answer *)": "(dpcr_xla_host *)0",
    }  # fmt: skip
    for kind, place in callbacks.items():
        lines.append(f'_Static_assert(__builtin_types_compatible_p(__typeof__({place}), {kind}), "{place}");')
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang")), reason="no C compiler")
@pytest.mark.parametrize("change", [None, ("offsetof(dpcr_steps, lanes) == ", "offsetof(dpcr_steps, lanes) == 8 + "),
                                    ("sizeof(dpcr_array) == ", "sizeof(dpcr_array) == 8 + "),
                                    ("int dpcr_context_threads(", "long dpcr_context_threads("),
                                    ("void dpcr_recurrent_zero_gradients(", "void dpcr_recurrent_zero_gradients(int, ")])
def test_declarations_are_those_of_the_headers(headers, tmp_path, change):
    source = program()
    if change:  # a binding that is wrong is found
        assert source.count(change[0]) == 1
        source = source.replace(*change)
    file = tmp_path / "abi.c"
    file.write_text(source)
    compiler = shutil.which("gcc") or shutil.which("clang")
    done = subprocess.run([compiler, "-std=gnu17", "-fsyntax-only", "-Wno-pedantic", "-Werror=incompatible-pointer-types",
                           f"-I{headers}", str(file)], capture_output=True, text=True)  # fmt: skip
    assert (done.returncode == 0) == (change is None), done.stderr


def test_callbacks_have_as_many_arguments():
    assert len(_abi.STEP._argtypes_) == 6 and len(_abi.LINEARISE._argtypes_) == 5
    assert len(_abi.XLA_HOST._argtypes_) == 4


def test_version_is_the_headers(headers):
    text = (headers / "deeppcr" / "export.h").read_text()
    assert f'#define DPCR_VERSION_STRING "{deeppcr.__version__}"' in text
    assert f'version = "{deeppcr.__version__}"' in (headers.parent / "python" / "pyproject.toml").read_text()
