# SPDX-License-Identifier: MIT
"""What is public says what it takes: each parameter by its name, in NumPy's form, and what is raised."""
import importlib
import importlib.metadata
import inspect
import pathlib
import re

import pytest

import deeppcr

PUBLIC = {
    "deeppcr": "linear_chain linear_chain_vjp linear_chain_jvp selective_scan selective_scan_vjp linear_attention linear_attention_vjp "
               "solve plan set_threads flush_denormals",
    "deeppcr.signal": "sosfilt lfilter sosfilt_vjp lfilter_vjp",
    "deeppcr.recurrent": "RNN RNNReLU GRU LSTM ParaGRU ParaLSTM MinGRU",
    "deeppcr.torch": "RNN GRU LSTM ParaGRU ParaLSTM MinGRU Chain linear_chain selective_scan mamba2_scan "
                     "linear_attention gated_delta_rule sosfilt lfilter from_torch replace_in",
    "deeppcr.jax": "linear_chain rnn gru lstm paragru paralstm mingru selective_scan linear_attention sosfilt lfilter",
}  # fmt: skip


@pytest.mark.parametrize("module, name", [(module, name) for module, names in PUBLIC.items() for name in names.split()])
def test_every_parameter_is_told_of(module, name):
    if module in ("deeppcr.torch", "deeppcr.jax"):
        pytest.importorskip(module.split(".")[1])
    thing = getattr(importlib.import_module(module), name)
    text, parameters = inspect.getdoc(thing) or "", inspect.signature(thing).parameters.values()
    section = text.split("Parameters\n----------\n")[1].split("\n\n")[0] if "Parameters\n----------\n" in text else ""
    told = set(re.findall(r"\w+", " ".join(line for line in section.splitlines() if not line.startswith(" "))))
    missing = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in told]
    assert not missing and "\nRaises\n------\n" in text, missing
    assert inspect.isclass(thing) or "\nReturns\n-------\n" in text
    assert name in importlib.import_module(module).__all__


def test_every_property_and_method_is_told_of():
    for thing in (deeppcr.Solution, deeppcr.Report, deeppcr.ChainReport, deeppcr.nonlinear.SolvePlan, deeppcr.linear.Plan):
        for name, member in vars(thing).items():
            if not name.startswith("_") and (isinstance(member, property) or inspect.isfunction(member)):
                assert inspect.getdoc(member), f"{thing.__name__}.{name}"
    torch = pytest.importorskip("torch")
    ours = importlib.import_module("deeppcr.torch")
    for thing in (ours.Chain, ours.GRU):
        for name, member in vars(thing).items():
            if not name.startswith("_") and not hasattr(torch.nn.Module, name) and callable(member):
                assert inspect.getdoc(member), f"{thing.__name__}.{name}"


def test_modules_take_their_own_words():
    """Not `*args`: a reader, and an editor, sees what there is."""
    torch = pytest.importorskip("torch")
    ours = importlib.import_module("deeppcr.torch")
    for name, first in (("RNN", "nonlinearity"), ("GRU", "bias"), ("LSTM", "bias")):
        own = inspect.signature(getattr(ours, name)).parameters
        assert {"num_layers", first, "batch_first", "dropout", "bidirectional", "device", "dtype", "method", "fallback"} <= set(own)
        assert list(own).index(first) == 3 and not any(p.kind is p.VAR_POSITIONAL for p in own.values())
        assert list(own)[-5:-2] == ["proj_size", "device", "dtype"]
    module = ours.GRU(2, 3, 1, True, False, 0.0, True, 0, "cpu", torch.float64)
    assert module.bidirectional and module.weight_ih_l0.dtype == torch.float64
    assert ours.RNN(2, 3, 1, "relu", True, False, 0.0, False, 0).mode == "RNN_RELU"
    for kind in (ours.RNN, ours.GRU):
        with pytest.raises(ValueError, match="proj_size is 2"):
            kind(2, 3, proj_size=2)


def test_what_is_installed_has_its_licence():
    try:
        installed = importlib.metadata.distribution("deeppcr")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed")
    if not any(installed.locate_file("deeppcr").samefile(folder) for folder in deeppcr.__path__ if pathlib.Path(folder).exists()):
        pytest.skip("another one is installed")
    (name,) = set(installed.metadata.get_all("License-File")) & {"LICENSE"}
    (file,) = (file for file in installed.files if file.match(f"*.dist-info/licenses/{name}"))
    assert file.read_text().startswith("MIT License")
