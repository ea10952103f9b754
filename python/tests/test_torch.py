# SPDX-License-Identifier: MIT
"""deeppcr.torch against torch.nn."""
import copy
import gc
import io
import math
import os
import pickle
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")

import deeppcr  # noqa: E402
import deeppcr.recurrent  # noqa: E402
import deeppcr.torch as ours  # noqa: E402
from deeppcr.torch._registry import REGISTERS, looks  # noqa: E402
from torch.nn.utils import rnn  # noqa: E402

NAMES = ["RNN", "GRU", "LSTM"]
FORWARD, BACKWARD = {torch.float32: 1e-5, torch.float64: 1e-10}, {torch.float32: 1e-4, torch.float64: 1e-9}


def pair(name, *sizes, dtype=torch.float64, **options):
    theirs = getattr(torch.nn, name)(*sizes, dtype=dtype, **options)
    return theirs, ours.from_torch(theirs)


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, rnn.PackedSequence):
        return [value.data]
    return [t for part in value for t in flat(part)]


def states(theirs, batch, dtype, requires_grad=True):
    N = theirs.num_layers * (2 if theirs.bidirectional else 1)
    made = []
    for width in (theirs.proj_size or theirs.hidden_size, theirs.hidden_size):
        shape = (N, width) if batch is None else (N, batch, width)
        made.append(torch.randn(shape, dtype=dtype, requires_grad=requires_grad))
    return tuple(made) if isinstance(theirs, torch.nn.LSTM) else made[0]


def compare(theirs, mine, x, hx, leaves, seed=0):
    """Outputs and every gradient of both."""
    results = []
    for module in (theirs, mine):
        torch.manual_seed(seed)
        out = flat(module(x, hx) if hx is not None else module(x))
        torch.manual_seed(seed + 1)
        loss = sum((o * torch.randn_like(o)).sum() for o in out)
        wanted = [*leaves, *(p for p in module.parameters())]
        results.append((out, torch.autograd.grad(loss, wanted, retain_graph=True)))
    (out, gradients), (mine_out, mine_gradients) = results
    dtype = out[0].dtype
    assert len(out) == len(mine_out)
    for a, b in zip(out, mine_out):
        assert a.shape == b.shape and a.dtype == b.dtype and (a - b).abs().max() < FORWARD[dtype]
    for a, b in zip(gradients, mine_gradients):
        assert a.shape == b.shape and (a - b).abs().max() < BACKWARD[dtype] * max(1, float(a.abs().max()))


OPTIONS = [{}, {"batch_first": True}, {"num_layers": 3}, {"bidirectional": True}, {"bias": False},
           {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False},
           {"num_layers": 3, "dropout": 0.4, "bidirectional": True}, {"num_layers": 2, "dropout": 0.4, "batch_first": True}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", NAMES + ["ReLU"])
def test_numbers_and_gradients_of_every_option(name, options, dtype):
    torch.manual_seed(3)
    if name == "ReLU":
        name, options = "RNN", {**options, "nonlinearity": "relu"}
    theirs, mine = pair(name, 5, 6, dtype=dtype, **options)
    x = torch.randn((3, 8, 5) if theirs.batch_first else (8, 3, 5), dtype=dtype, requires_grad=True)
    hx = states(theirs, 3, dtype)
    compare(theirs, mine, x, None, [x])
    compare(theirs, mine, x, hx, [x, *flat(hx)])
    theirs.eval(), mine.eval()
    compare(theirs, mine, x, hx, [x, *flat(hx)])


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "dropout": 0.3}, {"bias": False, "num_layers": 2},
                                     {"bidirectional": True, "batch_first": True}], ids=str)  # fmt: skip
def test_projections(options, dtype):
    torch.manual_seed(5)
    theirs, mine = pair("LSTM", 5, 6, dtype=dtype, proj_size=4, **options)
    x = torch.randn((3, 8, 5) if theirs.batch_first else (8, 3, 5), dtype=dtype, requires_grad=True)
    hx = states(theirs, 3, dtype)
    compare(theirs, mine, x, None, [x])
    compare(theirs, mine, x, hx, [x, *flat(hx)])
    if not theirs.batch_first:
        packed = rnn.pack_padded_sequence(x, torch.tensor([8, 5, 2]))
        compare(theirs, mine, packed, hx, [x, *flat(hx)])
    if not options and dtype == torch.float64:
        assert torch.autograd.gradgradcheck(lambda x: mine(x, hx)[0], [x[:3].detach().requires_grad_()])


@pytest.mark.parametrize("name", NAMES)
def test_without_a_batch(name):
    theirs, mine = pair(name, 3, 4, batch_first=True, num_layers=2)
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    hx = states(theirs, None, torch.float64)
    compare(theirs, mine, x, hx, [x, *flat(hx)])


@pytest.mark.parametrize("dropout", [0, 0.5])
@pytest.mark.parametrize("sorted_", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences(name, sorted_, dropout):
    theirs, mine = pair(name, 3, 4, num_layers=2, bidirectional=True, dropout=dropout)
    lengths = [6, 4, 4, 1] if sorted_ else [4, 1, 6, 4]
    x = torch.randn(6, 4, 3, dtype=torch.float64, requires_grad=True)
    packed = rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=sorted_)
    hx = states(theirs, 4, torch.float64)
    compare(theirs, mine, packed, hx, [x, *flat(hx)])
    if sorted_ and not dropout:  # second gradients
        run = lambda x: flat(mine(rnn.pack_padded_sequence(x, torch.tensor([3, 2])), None))  # noqa: E731
        assert torch.autograd.gradgradcheck(run, [torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)])
    out, _ = mine(packed)
    assert isinstance(out, rnn.PackedSequence)
    assert torch.equal(rnn.pad_packed_sequence(out)[1], torch.tensor(lengths))


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_and_second_gradients(name):
    torch.manual_seed(0)
    theirs, mine = pair(name, 2, 3, num_layers=2)
    x = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    weights = list(mine.parameters())
    hx = states(theirs, 2, torch.float64)

    def run(x, *rest):
        with torch.nn.utils.parametrize.cached():
            return flat(mine(x, rest if name == "LSTM" else rest[0]))

    inputs = [x, *flat(hx)]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)
    # parameters too, by the same loss of PyTorch's
    found = []
    for module in (theirs, mine):
        g = torch.autograd.grad(sum(o.pow(2).sum() for o in flat(module(x, hx))), list(module.parameters()), create_graph=True)
        found.append(torch.autograd.grad(sum(v.pow(2).sum() for v in g), list(module.parameters())))
    for a, b in zip(*found):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-9)
    assert len(weights) == 8


@pytest.mark.parametrize("name", NAMES)
def test_graphs_that_are_used_twice_or_never(name):
    _, mine = pair(name, 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    first, second = mine(x)[0], mine(2 * x)[0]  # two passes wait at once
    a = torch.autograd.grad(first.sum(), x, retain_graph=True)[0]
    b = torch.autograd.grad(first.sum(), x)[0]  # the tape was used up: it is made again
    assert torch.allclose(a, b, rtol=0, atol=1e-14)
    assert torch.autograd.grad(second.sum(), x)[0].shape == x.shape
    for _ in range(20):
        mine(x)  # dropped without a backward pass
    gc.collect()
    (call,) = mine._calls.values()
    assert 1 <= len(call.engine.free) <= 3


def altered(module, change):
    """The module after some change of what a call found right before."""
    weight = module.weight_hh_l0
    if change == "values":
        with torch.no_grad():
            weight.mul_(-0.7)
    elif change == "memory":
        weight.data = torch.randn_like(weight)
    elif change == "transposed":
        weight.data = torch.randn(weight.shape[::-1], dtype=weight.dtype).t()
    elif change == "negated":
        weight.data = torch._neg_view(torch.randn_like(weight))  # as the imaginary part of a conjugate is, but contiguous
    elif change == "another":
        module.weight_hh_l0 = torch.nn.Parameter(torch.randn_like(weight))
    elif change == "moved":  # to the end of the parameters
        del module.weight_ih_l0
        module.weight_ih_l0 = torch.nn.Parameter(torch.ones(3 * 4, 4, dtype=weight.dtype))
        module.bias_ih_l0.data = torch.zeros(12, dtype=weight.dtype)
    elif change == "frozen":
        weight.requires_grad_(False)
    elif change == "parametrized":
        torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")


@pytest.mark.parametrize("change", ["values", "memory", "transposed", "negated", "another", "moved", "frozen", "parametrized"])
@pytest.mark.parametrize("shape, options", [((5, 2, 4), {}), ((5, 2, 4), {"batch_first": True}), ((5, 4), {})], ids=str)
def test_calls_like_one_before_see_what_has_changed(change, shape, options):
    """From the second call on tensors are only compared with those of the first."""
    if change == "parametrized" and not hasattr(torch.nn.utils.parametrizations, "weight_norm"):
        pytest.skip("an older PyTorch")
    theirs, mine = pair("GRU", 4, 4, **options)  # parameters of their own
    for parameter in mine._parameters:
        mine._parameters[parameter] = torch.nn.Parameter(mine._parameters[parameter].detach().clone())
    x = torch.randn(shape, dtype=torch.float64)
    for _ in range(3):
        with torch.no_grad():
            assert torch.allclose(mine(x)[0], theirs(x)[0], rtol=0, atol=1e-12)
    torch.manual_seed(5)
    altered(theirs, change)
    torch.manual_seed(5)
    altered(mine, change)
    h = torch.randn(1, *((shape[0 if options else 1],) if len(shape) == 3 else ()), 4, dtype=torch.float64)
    strided = torch.randn(*shape[:-1], 8, dtype=torch.float64)[..., ::2]
    for given in ((x,), (x,), (x, h), (x, h), (strided,), (x,), (x.clone().requires_grad_(),), (x,)):
        with torch.set_grad_enabled(given[-1].requires_grad):
            found, right = mine(*given), theirs(*given)
        assert all(a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(found, right))
    wanted, right = ([p for p in m.parameters() if p.requires_grad] for m in (mine, theirs))
    gradients = torch.autograd.grad(mine(x)[0].sin().sum(), wanted)
    assert len(wanted) == len(right) and (change != "frozen" or len(wanted) == 3)
    named = dict(zip((n for n, p in theirs.named_parameters() if p.requires_grad), torch.autograd.grad(theirs(x)[0].sin().sum(), right)))
    for (name, _), g in zip((n for n in mine.named_parameters() if n[1].requires_grad), gradients):
        assert torch.allclose(g, named[name], rtol=0, atol=1e-10)


def test_calls_like_one_before_are_refused_what_the_first_would_be():
    _, mine = pair("LSTM", 3, 4, num_layers=2, dropout=0.5)
    x, (h, c) = torch.randn(5, 2, 3, dtype=torch.float64), torch.zeros(2, 2, 2, 4, dtype=torch.float64)
    mine.eval()
    wanted = [mine(x, (h, c))[0] for _ in range(3)][0]
    assert mine._known or looks([x]) is None  # which an older PyTorch has not
    with torch.autocast("cpu"), pytest.raises(deeppcr.UnsupportedError, match="autocast"):
        mine(x, (h, c))
    gru = pair("GRU", 3, 4)[1]
    for _ in range(2):
        gru(x, h[:1])
        with pytest.raises(deeppcr.ArgumentError, match="h0 is tuple"):
            gru(x, (h[:1],))
    mine(x)  # known too
    for hx in ((), (h,), (h, c, c), h, (h, c[:1]), (h, c.float()), (h, None), [h, "h"], 3):
        with pytest.raises(deeppcr.ArgumentError):
            mine(x, hx)
    for other in (x.float(), x[..., :2], x[0, 0], x.to("meta"), x.to_sparse(), None):
        with pytest.raises(deeppcr.Error):
            mine(other, (h, c))
    assert torch.equal(mine(x, (h, h))[0], wanted)  # one tensor twice
    assert torch.equal(mine(x, [h, c])[0], wanted) and torch.equal(mine(x, (h, c))[0], wanted)
    assert not torch.equal(mine.train()(x, (h, c))[0], wanted)  # dropout
    assert torch.equal(mine.eval()(x, (h, c))[0], wanted)
    mine.method = "sequential"
    assert torch.equal(mine(x, (h, c))[0], wanted) and "sequential" in [call.method for call in mine._calls.values()]
    mine.batch_first = True
    with pytest.raises(deeppcr.ArgumentError, match="h0's shape"):
        mine(x, (h, c))
    assert mine(x)[0].shape == (5, 2, 4)
    weight = mine.weight_hh_l1
    weight.data = weight.data.float()
    for _ in range(2):
        with pytest.raises(deeppcr.ArgumentError, match="weight_hh_l1's dtype"):
            mine(x)
    weight.data = torch.zeros(3, 3, dtype=torch.float64)
    with pytest.raises(deeppcr.ArgumentError, match="weight_hh_l1's shape"):
        mine(x)


def test_what_pytorch_was_given_is_not_known():
    """The second such call is PyTorch's too."""
    theirs, x = torch.nn.GRU(3, 4), torch.randn(5, 2, 3)
    mine = ours.from_torch(theirs, fallback=True)
    with torch.no_grad():
        wanted = mine(x)[0]
        with torch.autocast("cpu", torch.bfloat16):
            right = theirs(x)[0]
            for _ in range(3):
                y = mine(x)[0]
                assert y.dtype is right.dtype and torch.equal(y, right)
        for _ in range(3):
            assert torch.equal(mine(x)[0], wanted)
        mine.to("meta")
        for _ in range(3):
            y = mine(x.to("meta"))[0]
            assert y.is_meta and y.shape == wanted.shape


def test_what_is_no_yes_or_no_is_refused_and_what_is_no_model():
    b, sos = torch.ones(4, 2), torch.tensor([[1.0, 0, 0, 1, 0, 0]])
    for call, what in (*[(lambda kind=kind, o=o: getattr(ours, kind)(2, 3, **{o: "no"}), o) for kind in NAMES for o in ("bias", "batch_first", "bidirectional")],
                       (lambda: ours.GRU(2, 3, fallback="no"), "fallback"), (lambda: ours.MinGRU(2, 3, bias=None), "bias"),
                       (lambda: ours.MinGRU(2, 3, batch_first="no"), "batch_first"), (lambda: ours.Chain(2, 3, layer_norm="no"), "layer_norm"),
                       (lambda: ours.linear_chain(torch.ones(4, 2, 2), b, transposed="no"), "transposed"), (lambda: ours.replace_in(None), "the model"),
                       (lambda: ours.replace_in(torch.nn.GRU(2, 3)), "the model"), (lambda: ours.sosfilt(None, b), "sos"),
                       (lambda: ours.lfilter(None, sos[0], b), "b"), (lambda: ours.lfilter(sos[0], None, b), "a"), (lambda: ours.sosfilt(sos, None), "x")):  # fmt: skip
        with pytest.raises(deeppcr.ArgumentError) as caught:
            call()
        assert caught.value.what == what


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("arguments, options, what", [
    ((3, 0), {}, "hidden_size"), ((3, -1), {}, "hidden_size"), ((3, True), {}, "hidden_size"), ((3, 2.0), {}, "hidden_size"), ((-1, 3), {}, "input_size"),
    ((0, 3), {}, "input_size"), ((True, 3), {}, "input_size"), (("2", 3), {}, "input_size"), ((2, 3, 0), {}, "num_layers"), ((2, 3, -1), {}, "num_layers"),
    ((2, 3, 1.5), {}, "num_layers"), ((2, 3, None), {}, "num_layers"), ((2, 3), {"dropout": 1.5}, "dropout"), ((2, 3), {"dropout": "0.5"}, "dropout"),
    ((2, 3), {"dropout": 10**400}, "dropout"), ((2, 3), {"dropout": True}, "dropout"), ((2, 3), {"dropout": math.nan}, "dropout"),
    *(((2, 3), {"proj_size": size}, "proj_size") for size in (-1, 3, 2.0, True)),
], ids=str)  # fmt: skip
def test_sizes_that_are_none(kind, arguments, options, what):
    with pytest.raises(deeppcr.ArgumentError) as caught:
        getattr(ours, kind)(*arguments, **options)
    assert caught.value.what == what and str(caught.value).startswith(f"{what} is ")
    if "proj_size" not in options:
        with pytest.raises(deeppcr.ArgumentError) as caught:
            ours.MinGRU(*arguments, **options)
        assert caught.value.what == what


def test_sizes_of_numpy_are_sizes():
    made = ours.GRU(np.int64(2), np.int32(3), np.int64(1))
    assert type(made.hidden_size) is int and made(torch.ones(4, 1, 2))[0].shape == (4, 1, 3)


@pytest.mark.parametrize("method", ["foo", ["auto"], None])
@pytest.mark.parametrize("learns", [True, False])
def test_a_method_that_is_set_later_is_looked_at(method, learns):
    for module, x in ((ours.GRU(3, 4), torch.randn(5, 3)), (ours.MinGRU(3, 4), torch.randn(5, 1, 3)), (ours.Chain(3, 4), torch.randn(2, 3))):
        module.requires_grad_(learns)
        for _ in range(2):
            module(x)  # known, from the second call on
        module.method = method
        for _ in range(2):
            with pytest.raises(deeppcr.ArgumentError, match="^method is .*wanted one of auto"):
                module(x)
        module.method = "sequential"
        module(x)


@pytest.mark.parametrize("sizes", [(2**40, 1), (10**9, 10**9), (2**21, 2**10), (1, 2**62)])
def test_stacks_that_no_memory_holds(sizes):
    with pytest.raises(deeppcr.OutOfMemory):
        ours.Chain(*sizes)


def test_an_identity_is_1():
    b, z0 = torch.ones(4, 2, requires_grad=True), torch.ones(2)
    for A in (torch.tensor(1.0), torch.ones(4)):
        for inputs in ((A, b), (A, b.detach()), (A, b.detach()), (A, b.detach(), z0), (A, b.detach(), z0)):
            ours.linear_chain(*inputs, structure="identity")
            with pytest.raises(deeppcr.ArgumentError, match=r"^A is .*wanted 1\.0"):
                ours.linear_chain(5 * A, *inputs[1:], structure="identity")


def test_who_requires_gradients_is_named():
    plain, learns = torch.ones(4, 2), torch.ones(4, 2, requires_grad=True)
    for arguments, what in (((plain, learns), "b"), ((learns, plain), "A"), ((plain, plain, learns[0]), "z0")):
        with pytest.raises(deeppcr.ArgumentError, match=f"^{what} is a Tensor that requires gradients; wanted it detached") as caught:
            deeppcr.linear_chain(*arguments)
        assert caught.value.what == what


WRITES = {
    "in place": lambda y: y.zero_(), "detached": lambda y: y.detach().zero_(), "a part": lambda y: y.detach()[1:3].fill_(7.0),
    "by index": lambda y: y.detach().__setitem__(0, 3.0), "by an activation": lambda y: torch.nn.functional.relu_(y.detach()),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", NAMES)
def test_results_may_be_written_into(name, write):
    """Where PyTorch's counter of versions sees it."""
    theirs, mine = pair(name, 3, 4)
    x, found = torch.randn(20, 2, 3, dtype=torch.float64), []
    for module in (theirs, mine):
        y = module(x)[0]
        loss = y.sum()  # which does not read y on its way back
        with torch.no_grad():
            WRITES[write](y)
        found.append(torch.autograd.grad(loss, list(module.parameters())))
    for a, b in zip(*found):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


def test_writes_that_pytorch_does_not_count_are_told_of():
    y = ours.GRU(3, 4)(torch.randn(5, 2, 3))[0]
    before = y._version
    y.data.zero_()
    y.detach().numpy()[...] = 0
    assert y._version == before  # so nobody can know
    page = ROOT / "docs" / "python.md"
    if not page.exists():
        pytest.skip("no documentation beside the package")
    text = " ".join(page.read_text().split())
    assert "`y.data`" in text and "`y.detach().numpy()`" in text


def test_in_place_changes_are_noticed():
    _, mine = pair("GRU", 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    y = mine(x)[0]
    with torch.no_grad():
        mine.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_frozen_parameters_and_inputs_without_gradient():
    theirs, mine = pair("GRU", 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    mine(x)[0].sum().backward()
    theirs_grad = torch.autograd.grad(theirs(x)[0].sum(), list(theirs.parameters()))
    for p, g in zip(mine.parameters(), theirs_grad):
        assert torch.allclose(p.grad, g, rtol=0, atol=1e-9)
    mine.requires_grad_(False)
    x.requires_grad_(True)
    assert torch.allclose(torch.autograd.grad(mine(x)[0].sum(), x)[0], torch.autograd.grad(theirs(x)[0].sum(), x)[0])
    assert not mine(x.detach())[0].requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_copies_pickles_and_state_dicts(name):
    theirs, mine = pair(name, 3, 4, num_layers=2, bidirectional=True)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    wanted = mine(x)[0]
    file = io.BytesIO()
    torch.save(mine, file)
    file.seek(0)
    for other in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine)), torch.load(file, weights_only=False)):
        assert type(other) is type(mine) and torch.equal(other(x)[0], wanted) and other._token != mine._token
        with torch.no_grad():
            other.weight_hh_l0.zero_()
        assert torch.equal(mine(x)[0], wanted) and not torch.equal(other(x)[0], wanted)
    fresh = type(mine)(3, 4, num_layers=2, bidirectional=True, dtype=torch.float64)
    fresh.load_state_dict(theirs.state_dict())
    assert torch.equal(fresh(x)[0], wanted)
    assert list(mine.state_dict()) == list(theirs.state_dict()) and repr(mine) == repr(theirs)
    assert isinstance(mine, torch.nn.RNNBase)
    half = copy.deepcopy(mine).to(torch.float32)
    assert half(x.float())[0].dtype == torch.float32


def test_hooks_and_replace_in():
    model = torch.nn.ModuleDict({"a": torch.nn.GRU(3, 4), "b": torch.nn.Sequential(torch.nn.LSTM(4, 5), torch.nn.Identity())})
    x = torch.randn(6, 2, 3)
    wanted = model["b"][0](model["a"](x)[0])[0]
    before = dict(model.named_parameters())
    assert ours.replace_in(model) == 2 and type(model["a"]) is ours.GRU and type(model["b"][0]) is ours.LSTM
    assert all(before[n] is p for n, p in model.named_parameters())  # an optimiser goes on with them
    assert torch.allclose(model["b"][0](model["a"](x)[0])[0], wanted, rtol=0, atol=1e-5)
    seen = []
    model["a"].register_forward_hook(lambda module, args, out: seen.append(out[0].shape))
    model["a"](x)
    assert seen == [(6, 2, 4)]
    with pytest.raises(deeppcr.ArgumentError):
        ours.from_torch(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
                                      "register_full_backward_pre_hook", "_register_state_dict_hook", "register_state_dict_pre_hook",
                                      "_register_load_state_dict_pre_hook", "register_load_state_dict_post_hook"])
def test_hooks_are_not_lost(register):
    """They are refused, of all kinds, before anything is replaced."""
    model = torch.nn.ModuleDict({"free": torch.nn.GRU(3, 4), "in": torch.nn.Sequential(torch.nn.GRU(4, 4))})
    hooked = model["in"][0]
    if not hasattr(hooked, register):
        pytest.skip("PyTorch has none such")
    handle = getattr(hooked, register)(lambda *a: None)
    with pytest.raises(deeppcr.UnsupportedError, match="hooks") as caught:
        ours.replace_in(model)
    assert caught.value.what == "the hooks of in.0" and "hook" in caught.value.got and "none" in caught.value.wanted
    assert type(model["free"]) is type(hooked) is torch.nn.GRU and model["in"][0] is hooked
    with pytest.raises(deeppcr.UnsupportedError, match="hooks"):
        ours.from_torch(hooked)
    if handle is not None:
        handle.remove()
        assert ours.replace_in(model) == 2


@pytest.mark.parametrize("what", ["table", "inner", "scale", "forward", "_compiled_call_impl", "bound", "method", "sentences"])
def test_what_a_module_has_of_its_own_is_not_lost(what):
    """Buffers, modules, parameters, methods, and what means something to the new module: refused before anything is replaced. A note goes along."""
    model = torch.nn.ModuleDict({"free": torch.nn.GRU(3, 4), "in": torch.nn.Sequential(torch.nn.GRU(4, 4))})
    changed = model["in"][0]
    changed.note = "kept by hand"
    if what == "table":
        changed.register_buffer("table", torch.zeros(2))
    elif what == "inner":
        changed.inner = torch.nn.Linear(2, 2)
    elif what == "scale":
        changed.scale = torch.nn.Parameter(torch.ones(1))
    elif what == "bound":
        changed.bound = types.MethodType(lambda module: module, changed)
    elif what == "_compiled_call_impl" and not hasattr(changed, what):
        pytest.skip("PyTorch has no Module.compile")
    else:
        setattr(changed, what, lambda x: x)
    with pytest.raises(deeppcr.UnsupportedError, match=what) as caught:
        ours.replace_in(model)
    assert caught.value.what == "what in.0 has of its own" and caught.value.got == what
    assert type(model["free"]) is type(changed) is torch.nn.GRU and model["in"][0] is changed
    with pytest.raises(deeppcr.UnsupportedError, match=what):
        ours.from_torch(changed)
    delattr(changed, what)
    changed.cfg = {"size": 4}
    assert ours.replace_in(model) == 2
    assert model["in"][0].note == "kept by hand" and model["in"][0].cfg is changed.cfg and copy.deepcopy(model)["in"][0].note == "kept by hand"


@pytest.mark.parametrize("kind", NAMES)
def test_a_copied_input_may_be_written_into(kind):
    """As torch.nn's, which copies one with batch_first too: the way back reads the copy, and second derivatives pass through it."""
    theirs, mine = pair(kind, 3, 4, batch_first=True)
    found = []
    for module in (theirs, mine):
        for _ in range(2):  # the second time as a call like one before
            torch.manual_seed(0)
            leaf = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
            x = leaf * 1
            y = module(x)[0]
            x.relu_()
            found.append(torch.autograd.grad(y.pow(2).sum(), [leaf, *module.parameters()]))
    for gradients in found[1:]:
        assert all(torch.allclose(g, w, rtol=0, atol=1e-10) for g, w in zip(gradients, found[0]))
    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: mine(x)[0], (x,))


def test_a_module_in_several_places_is_replaced_in_all_of_them():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.GRU(3, 4)
            self.decoder = self.encoder
            self.parts = torch.nn.ModuleList([torch.nn.Sequential(self.encoder), torch.nn.Sequential(torch.nn.LSTM(3, 4))])
            self.again = self.parts[1]

    model = Twice()
    with pytest.raises(deeppcr.ArgumentError, match="method"):
        ours.replace_in(model, method="magic")
    assert type(model.encoder) is torch.nn.GRU
    assert ours.replace_in(model) == 2
    assert type(model.encoder) is ours.GRU and model.encoder is model.decoder is model.parts[0][0]
    assert type(model.again[0]) is ours.LSTM and model.again is model.parts[1]


def test_what_traces_by_running_is_refused_in_words():
    gru, x = ours.GRU(3, 4), torch.randn(6, 2, 3)
    with torch.no_grad():
        for _ in range(2):  # also of a call like one before
            with pytest.raises(deeppcr.UnsupportedError, match="GRU: torch.jit.trace is on; wanted torch.export or torch.compile"):
                torch.jit.trace(gru, x)
            gru(x)
        traced = torch.jit.trace(ours.GRU(3, 4, fallback=True), x)
        assert traced(x)[0].shape == (6, 2, 4)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.run = gru

        def forward(self, x):
            return self.run(x)[0]

    with pytest.raises(deeppcr.UnsupportedError, match="GRU: torch.fx.symbolic_trace is on; wanted"):
        torch.fx.symbolic_trace(Model())
    for name, model in (("GRU", Model()), ("LSTM", ours.LSTM(3, 4, fallback=True)), ("MinGRU", torch.nn.Sequential(ours.MinGRU(3, 4))), ("Chain", ours.Chain(4, 3))):
        with pytest.raises(deeppcr.UnsupportedError, match=f"{name}: torch.jit.script is on; wanted torch.export or torch.compile"):
            torch.jit.script(model)
    assert Model()(x).shape == (6, 2, 4)
    A, sos = torch.full((5, 2, 2), 0.3), torch.tensor([[1, 0.5, 0, 1, -0.2, 0.1]])
    for call, given in ((ours.Chain(4, 3), torch.randn(2, 4)), (lambda b: ours.linear_chain(A, b), torch.randn(5, 2)),
                        (lambda s: ours.sosfilt(sos, s), torch.randn(9)), (lambda s: ours.lfilter(sos[0, :3], sos[0, 3:], s), torch.randn(9))):  # fmt: skip
        for grad in (False, True):
            call(given.requires_grad_(grad))  # what is known is refused too
            with pytest.raises(deeppcr.UnsupportedError, match="torch.jit.trace is on; wanted torch.export or torch.compile"):
                torch.jit.trace(call, given)
            call(given)


def test_the_compiler_is_not_loaded_before_it_is_wanted():
    done = subprocess.run([sys.executable, "-c", "import sys, torch\nbefore = 'torch._dynamo' in sys.modules\nimport deeppcr.torch\n"
                           "assert before or 'torch._dynamo' not in sys.modules"], capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_stacks_refuse_autocast_and_scales_that_are_no_numbers():
    stack = ours.Chain(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(deeppcr.UnsupportedError, match="Chain: autocast is on; wanted off"):
            stack(torch.ones(2, 4))
        with torch.autocast("cpu", enabled=False):
            assert stack(torch.ones(2, 4)).dtype == torch.float32
        A = torch.full((5, 2, 2), 0.5)
        assert ours.linear_chain(A, A[:, 0]).dtype == torch.float32  # a function computes in its tensors' dtype
    for scale in (math.nan, math.inf):
        with pytest.raises(deeppcr.ArgumentError, match="scale is .*; wanted a finite number"):
            ours.Chain(4, 3, scale=scale)
    with pytest.raises(deeppcr.ArgumentError, match="scale is 0.0; wanted another number"):  # which the library takes for its default
        ours.Chain(4, 3, scale=0)
    with pytest.raises(deeppcr.ArgumentError, match="scale is 0.5; wanted none"):
        ours.Chain(4, 3, kind="mlp", scale=0.5)
    with pytest.raises(deeppcr.ArgumentError, match="hidden is 8; wanted none"):
        ours.Chain(4, 3, hidden=8)


def test_training_learns_as_pytorch_does():
    torch.manual_seed(0)
    theirs, mine = pair("GRU", 2, 8)
    mine = copy.deepcopy(mine)
    x, target = torch.randn(20, 4, 2, dtype=torch.float64), torch.randn(20, 4, 8, dtype=torch.float64)
    losses = []
    for module in (theirs, mine):
        optimiser, own = torch.optim.Adam(module.parameters(), lr=0.01), []
        for _ in range(20):
            optimiser.zero_grad()
            loss = (module(x)[0] - target).pow(2).mean()
            loss.backward()
            optimiser.step()
            own.append(loss.item())
        losses.append(own)
    assert np.allclose(*losses, rtol=1e-7) and losses[1][-1] < losses[1][0]


def test_strange_tensors():
    theirs, mine = pair("LSTM", 3, 4, dtype=torch.float32)
    x = torch.randn(3, 2, 7)
    for view in (x.permute(2, 1, 0), x.permute(2, 1, 0)[::2], torch.randn(3).expand(5, 2, 3), torch.randn(7, 2, 9)[..., ::3]):
        assert torch.allclose(mine(view)[0], theirs(view)[0], rtol=0, atol=1e-5)
    assert mine(torch.randn(5, 0, 3))[0].shape == (5, 0, 4)
    one = torch.randn(1, 1, 3)
    assert torch.allclose(mine(one)[0], theirs(one)[0], rtol=0, atol=1e-5)
    assert torch.isnan(mine(torch.full((3, 1, 3), float("nan")))[0]).all()


def test_refusals_and_fallback():
    mine = ours.GRU(3, 4)
    for call, what in (
        (lambda: mine(torch.zeros(5, 2, 2)), "the input's last dimension"), (lambda: mine(torch.zeros(5)), "the input's dimensions"),
        (lambda: mine(torch.zeros(5, 2, 3).double()), "the input's dtype"), (lambda: mine(torch.zeros(0, 2, 3)), "the length"),
        (lambda: mine(torch.zeros(5, 2, 3), torch.zeros(1, 2, 5)), "h0's shape"),
        (lambda: mine(torch.zeros(5, 2, 3), torch.zeros(1, 2, 4).double()), "h0"),
        (lambda: ours.LSTM(3, 4)(torch.zeros(5, 2, 3), torch.zeros(1, 2, 4)), "hx"), (lambda: ours.GRU(3, 4, method="x"), "method"),
    ):  # fmt: skip
        with pytest.raises(deeppcr.ArgumentError) as caught:
            call()
        assert caught.value.what == what
    for width in (2, 5):
        for requires_grad in (False, True):
            data = torch.randn(5, 2, width, requires_grad=requires_grad)
            with pytest.raises(deeppcr.ArgumentError) as caught:
                mine(rnn.pack_padded_sequence(data, torch.tensor([5, 3])))
            assert caught.value.what == "the input's last dimension" and caught.value.got == width and caught.value.wanted == "3"
    with pytest.raises(deeppcr.ArgumentError, match="the input's dimensions"):
        mine(rnn.PackedSequence(torch.randn(8, 2, 3), torch.tensor([2, 2, 2, 1, 1])))
    x = torch.randn(5, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(deeppcr.UnsupportedError, match="autocast is on.*fallback"):
            mine(x)
        assert ours.GRU(3, 4, fallback=True)(x)[0].shape == (5, 2, 4)
    with pytest.raises(deeppcr.UnsupportedError, match="bfloat16"):
        ours.GRU(3, 4, dtype=torch.bfloat16)(x.bfloat16())
    with pytest.raises(deeppcr.UnsupportedError, match="meta"):
        ours.GRU(3, 4, device="meta")(x.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert ours.LSTM(3, 4, proj_size=2, fallback=True)(x)[0].shape == (5, 2, 2)


@pytest.mark.parametrize("name", NAMES)
def test_long_sequences(name):
    torch.manual_seed(0)
    theirs, mine = pair(name, 16, 16, dtype=torch.float32)
    x = torch.randn(3000, 1, 16, requires_grad=True)
    (y, _), (wanted, _) = mine(x), theirs(x)
    assert mine.sentences and torch.allclose(y, wanted, rtol=0, atol=2e-5)
    for a, b in zip(torch.autograd.grad(y.pow(2).mean(), [x, *mine.parameters()]),
                    torch.autograd.grad(wanted.pow(2).mean(), [x, *theirs.parameters()])):  # fmt: skip
        assert (a - b).abs().max() < 1e-4


registers = pytest.mark.skipif(not hasattr(torch.library, "custom_op"), reason="this PyTorch registers no operators: 2.4 does")


@registers
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_what_pytorch_is_given_goes_back_under_torch_compile(name):
    """Whose own nn.LSTM the compiler leaves out: the way back of oneDNN's operator fails in it."""
    theirs, x = getattr(torch.nn, name)(3, 4), torch.randn(5, 2, 3)
    mine, found = ours.from_torch(theirs, fallback=True), []
    torch._dynamo.reset()
    for model in (theirs, torch.compile(mine, backend="aot_eager")):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)[0]
        found.append((y, *torch.autograd.grad(y.float().square().sum(), list(theirs.parameters()))))
    for a, b in zip(*found):
        assert a.dtype is b.dtype and torch.allclose(a.float(), b.float(), atol=0.05, rtol=0.05)


@registers
def test_packed_sequences_are_compiled_around(rng):
    """As with nn.GRU: torch.compile breaks its program there."""
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    theirs, mine = pair("GRU", 3, 4, dtype=torch.float64)
    x, lengths = torch.tensor(rng.normal(size=(6, 2, 3)), requires_grad=True), torch.tensor([3, 6])
    pack = lambda: pack_padded_sequence(x, lengths, enforce_sorted=False)  # noqa: E731
    inside = lambda run: pad_packed_sequence(run(pack())[0])[0].sin()  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(lambda: inside(mine), backend="aot_eager")
    assert torch.allclose(compiled(), inside(theirs), rtol=0, atol=1e-10)
    for m, n in zip(torch.autograd.grad(compiled().sum(), [x, *mine.parameters()]),
                    torch.autograd.grad(inside(theirs).sum(), [x, *theirs.parameters()])):
        assert torch.allclose(m, n, rtol=0, atol=1e-9)
    y, h = torch.compile(mine, backend="aot_eager")(pack())
    assert torch.allclose(y.data, theirs(pack())[0].data, rtol=0, atol=1e-10) and torch.allclose(h, theirs(pack())[1], rtol=0, atol=1e-10)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm") or "asan" in os.environ.get("LD_PRELOAD", ""), reason="memory is not seen")
def test_no_leak_over_many_passes():
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    modules = [ours.GRU(3, 4), ours.LSTM(3, 4, 2), ours.Chain(3, 2)]
    x = torch.randn(5, 2, 3, requires_grad=True)

    def passes(count):
        for i in range(count):
            module = modules[i % 3]
            y = module(x) if i % 3 == 2 else module(x[: 1 + i % 5])[0]
            if i % 2:
                torch.autograd.grad(y.sum(), x)  # the others are dropped
            if i % 50 == 0:
                ours.lfilter(x[0, 0], torch.ones(1), x).sum().backward()
                modules[0] = copy.deepcopy(modules[0])

    passes(2000)
    before = resident()
    passes(10000)
    assert resident() - before < 8 << 20


def test_pytorchs_threads_go_home_before_long_passes():
    from deeppcr.torch import _others

    running = lambda: len(os.listdir("/proc/self/task"))  # noqa: E731
    before, pause, calls = torch.get_num_threads(), _others._pause, []
    try:
        torch.set_num_threads(3)
        numbers = torch.ones(1 << 22)
        wanted, with_them = (2 * numbers).sum(), running()
        _others.send_home(1e9)
        pause = _others._pause
        if pause is not None and deeppcr.threads() > 1:
            end = time.monotonic() + 10  # a thread that has ended may be listed for a while
            while running() > with_them - 2:
                assert time.monotonic() < end
            _others._pause = calls.append
            _others.send_home(1e3)
            assert calls == []
            _others.send_home(1e9)
            assert calls == [_others._SOFT]
            _others._pause = pause
        assert (2 * numbers).sum() == wanted and running() >= with_them  # and come again
    finally:
        _others._pause = pause
        torch.set_num_threads(before)


class Filtered(torch.utils.data.Dataset):
    """Items that workers of a DataLoader, which are forked, make by the library."""

    def __init__(self, module):
        self.module = module

    def __len__(self):
        return 8

    def __getitem__(self, i):
        z = deeppcr.linear_chain(np.full((3000, 2), 0.5), np.full((3000, 2), float(i)))
        with torch.no_grad():
            return torch.from_numpy(z[-1]), self.module(torch.full((300, 1, 3), 0.1 * i))[0][-1, 0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="its own locks do not survive a fork among threads")
def test_workers_of_a_data_loader():
    items = Filtered(ours.GRU(3, 4, method="sequential"))  # "auto" may choose anew in a worker
    alone = [items[i] for i in range(8)]  # the library's threads run in the parent first
    loader = torch.utils.data.DataLoader(items, batch_size=2, num_workers=2, timeout=60)
    for n, (z, y) in enumerate(loader):
        for k in range(2):
            assert torch.equal(z[k], alone[2 * n + k][0]) and torch.equal(y[k], alone[2 * n + k][1])


@registers
@pytest.mark.parametrize("name", NAMES)
def test_operators_pass_pytorchs_own_checks(name):
    theirs, mine = pair(name, 3, 4, num_layers=2)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    h = torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)
    kind = {"RNN": "rnn_tanh"}.get(name, name.lower())
    arguments = (x, h, h.detach().clone().requires_grad_() if name == "LSTM" else None, None, list(mine._flat_weights), kind, 4, 2,
                 False, True, 0, 0, "sequential")  # fmt: skip
    torch.library.opcheck(torch.ops.deeppcr.recurrent.default, arguments)
    A, b = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True), torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(torch.ops.deeppcr.linear_chain.default, (A, b, None, False, "auto", "dense"))


@registers
@pytest.mark.parametrize("length, batch", [(5, 2), (5, 0)])
@pytest.mark.parametrize("structure", ["dense", "diagonal", "scalar", "identity"])
@pytest.mark.parametrize("transposed", [False, True])
def test_chains_gradients_pass_pytorchs_own_checks(structure, length, batch, transposed):
    """Among them that no result lies in another's memory, as compiled programs rely on."""
    ends = {"dense": (length, batch, 3, 3), "diagonal": (length, batch, 3), "scalar": (length, batch), "identity": ()}[structure]
    A, z, g = torch.ones(ends), torch.randn(length, batch, 3), torch.randn(length, batch, 3)
    z0 = None if transposed else torch.randn(batch, 3)
    torch.library.opcheck(torch.ops.deeppcr.linear_chain_vjp.default, (A, z, g, z0, transposed, "auto", structure))


def operator_arguments():
    """Of each operator: arguments that it takes, by name."""
    f, d = lambda *shape: torch.full(shape, 0.1), dict  # noqa: E731
    net = d(x=f(5, 2, 3), h0=f(1, 2, 2), c0=f(1, 2, 4), lengths=torch.tensor([5, 3]),
            parameters=[f(16, 3), f(16, 2), f(16), f(16), f(2, 4)], kind="lstm", hidden=4, layers=1, bidirectional=False, bias=True,
            projection=2, token=0, method="sequential")  # fmt: skip
    stack = d(z0=f(2, 3), flat=f(4, 12), kind="mlp", hidden=3, activation="tanh", branch="linear", layer_norm=False, scale=1.0, token=0,
              method="sequential")  # fmt: skip
    chain = d(A=f(5, 3, 3), z0=f(3), transposed=False, scheme="auto", structure="dense")
    filters = d(b=f(3), a=torch.ones(2), x=f(2, 9), zi=f(2, 1, 2))
    scan = d(u=f(2, 4, 9), delta=f(2, 4, 9), A=f(4, 3), B=f(2, 3, 9), C=f(2, 4, 3, 9), D=f(4), z=f(2, 4, 9), delta_bias=f(4), h0=f(2, 4, 3),
             softplus=True)  # fmt: skip
    attention = d(q=f(2, 9, 2, 3), k=f(2, 9, 2, 3), v=f(2, 9, 4, 5), g=f(2, 9, 4, 3), beta=f(2, 9, 4), initial_state=f(2, 4, 3, 5), scale=0.5)
    return {
        "recurrent": net, "recurrent_vjp": d(net, dy=f(5, 2, 2), dht=f(1, 2, 2), dct=f(1, 2, 4)),
        "chain": stack, "chain_vjp": d(stack, g=f(2, 3)),
        "linear_chain": d(chain, b=f(5, 3)), "linear_chain_vjp": d(chain, z=f(5, 3), g=f(5, 3)),
        "filter": filters, "filter_vjp": d(filters, gy=f(2, 9), gzf=f(2, 1, 2)),
        "selective_scan": scan, "selective_scan_vjp": d(scan, gy=f(2, 4, 9), glast=f(2, 4, 3), needed=511),
        "linear_attention": attention, "linear_attention_vjp": d(attention, go=f(2, 9, 4, 5), gfinal=f(2, 4, 3, 5), needed=63),
    }  # fmt: skip


def spoilt(name, key, t):
    """Tensors that cannot stand where t does. More steps or layers may, no samples, transitions of one step, and coefficients in double."""
    yield from (t[None], t.int(), t.bfloat16(), t.to_sparse())
    if (name, key) != ("filter", "x"):
        yield t[..., :0]
    if key != "A":
        yield t[0]
    if (name, key) not in (("recurrent", "x"), ("chain", "z0"), ("chain", "flat"), ("chain_vjp", "flat")):
        yield torch.cat([t, t])
    if not (name.startswith("filter") and key in ("b", "a")):
        yield t.double()


OPERATORS = operator_arguments()
WRONG = [
    *[(n, {k: v}, None) for n, given in OPERATORS.items() for k, t in given.items() if isinstance(t, torch.Tensor) for v in spoilt(n, k, t)],
    *[(n, {k: v}, k) for n in ("recurrent", "recurrent_vjp") for k, v in (
        ("kind", "x"), ("method", "x"), ("hidden", 0), ("hidden", -4), ("hidden", 1 << 40), ("layers", 0), ("layers", 1 << 40), ("projection", -1),
        ("projection", 4), ("lengths", torch.tensor([6, 3])), ("lengths", torch.tensor([5, -1])))],
    *[(n, {"kind": "gru", "projection": 0, "h0": None, "parameters": []}, "c0") for n in ("recurrent", "recurrent_vjp")],
    *[(n, {"parameters": v}, None) for n in ("recurrent", "recurrent_vjp") for v in ([], [torch.ones(3)], [torch.ones(16, 3)] * 5)],
    *[(n, {k: v}, k) for n in ("chain", "chain_vjp") for k, v in (("kind", "x"), ("activation", "x"), ("branch", "x"), ("method", "x"),
                                                                  ("branch", "two-layer"), ("hidden", 0), ("hidden", -1))],
    *[(n, {k: "x"}, k) for n in ("linear_chain", "linear_chain_vjp") for k in ("scheme", "structure")],
    *[(n, {"a": None}, "sos's shape") for n in ("filter", "filter_vjp")],
    *[(n, {"b": torch.ones(130)}, "b's shape") for n in ("filter", "filter_vjp")],
]  # fmt: skip


@registers
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_called_directly(name):
    run = getattr(torch.ops.deeppcr, name)
    found = run(**OPERATORS[name])
    apart = {k: t.repeat_interleave(2, -1)[..., ::2] if isinstance(t, torch.Tensor) else t for k, t in OPERATORS[name].items()}
    assert all(t.is_contiguous() is False for t in apart.values() if isinstance(t, torch.Tensor) and t.shape[-1] > 1)
    for one, other in zip(*((f if isinstance(f, (tuple, list)) else [f]) for f in (found, run(**apart)))):
        assert torch.equal(one, other)


@registers
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_refuse_what_they_cannot_read(name):
    for wrong, what in [(wrong, what) for own, wrong, what in WRONG if own == name]:
        try:
            getattr(torch.ops.deeppcr, name)(**{**OPERATORS[name], **wrong})
        except deeppcr.Error as error:
            assert error.what and error.wanted and (what is None or what in error.what), (wrong, error)
        else:
            pytest.fail(f"{wrong} was taken")


@registers
@pytest.mark.parametrize("name", NAMES)
def test_compile_and_export(name):
    theirs, mine = pair(name, 3, 4, num_layers=2, dtype=torch.float32)
    model = torch.nn.Sequential(mine)
    x = torch.randn(5, 2, 3, requires_grad=True)
    compiled = torch.compile(lambda x: model(2 * x)[0].sin(), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), theirs(2 * x)[0].sin(), rtol=0, atol=1e-5)
    for a, b in zip(torch.autograd.grad(compiled(x).sum(), [x, *mine.parameters()]),
                    torch.autograd.grad(theirs(2 * x)[0].sin().sum(), [x, *theirs.parameters()])):  # fmt: skip
        assert torch.allclose(a, b, rtol=0, atol=1e-4)
    exported = torch.export.export(model, (x.detach(),))
    assert "deeppcr.recurrent" in str(exported.graph)
    assert torch.allclose(exported.module()(x)[0], theirs(x)[0], rtol=0, atol=1e-5)


# ---- linear chains ----


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("structure, shape", [
    ("dense", (5, 2, 3, 3)), ("dense", (5, 1, 3, 3)), ("dense", (3, 3)), ("diagonal", (5, 2, 3)), ("diagonal", (3,)),
    ("scalar", (5, 2)), ("scalar", ()), ("block", (5, 1, 1, 3, 3)), ("block", (3, 1, 1)),
])  # fmt: skip
def test_linear_chain_has_gradients_of_any_order(structure, shape, transposed):
    torch.manual_seed(0)
    A = (torch.randn(shape, dtype=torch.float64) * 0.5).requires_grad_()
    b = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    z0 = None if transposed else torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    inputs = (A, b) if transposed else (A, b, z0)
    run = lambda *x: ours.linear_chain(*x, transposed=transposed, structure=structure)  # noqa: E731
    assert torch.autograd.gradcheck(run, inputs) and torch.autograd.gradgradcheck(run, inputs)


def test_linear_chain_without_a_batch_and_refusals():
    A = (torch.randn(6, 2, 2, dtype=torch.float64) * 0.5).requires_grad_()
    b, z0 = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((6, 2), (2,)))
    assert torch.autograd.gradcheck(ours.linear_chain, (A, b, z0)) and torch.autograd.gradgradcheck(ours.linear_chain, (A, b, z0))
    with pytest.raises(deeppcr.ArgumentError):
        ours.linear_chain(A, b[:3])
    with pytest.raises(deeppcr.UnsupportedError, match="meta"):
        ours.linear_chain(A.to("meta"), b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.complex64])
def test_linear_chain_refuses_tensors_whose_results_would_have_another_dtype(dtype):
    A, b = torch.ones(6, 2, 2, dtype=dtype), torch.ones(6, 2, dtype=dtype)
    operators = torch.ops.deeppcr  # looked up when called
    for call in (ours.linear_chain, lambda A, b: operators.linear_chain(A, b, None, False, "auto", "dense"),
                 lambda A, b: operators.linear_chain_vjp(A, b, b, None, False, "auto", "dense")) if hasattr(torch.library, "custom_op") else (ours.linear_chain,):  # fmt: skip
        with pytest.raises(deeppcr.ArgumentError) as caught:
            call(A, b)
        assert caught.value.what == "A's dtype" and caught.value.got is dtype and "float32" in caught.value.wanted
    if hasattr(torch.library, "custom_op"):
        with pytest.raises(Exception, match="A's dtype"):
            torch.compile(ours.linear_chain, fullgraph=True, backend="aot_eager")(A, b)


def test_chains_like_one_before_read_their_own_numbers():
    def definition(A, b, z0):
        out, z = [], torch.zeros(2, dtype=b.dtype) if z0 is None else z0
        for a, c in zip(A, b):
            z = a @ z + c
            out.append(z)
        return torch.stack(out)

    def odd(x):  # not aligned
        raw = bytearray(1 + 4 * x.numel())
        raw[1:] = x.numpy().tobytes()
        return torch.frombuffer(raw, dtype=x.dtype, offset=1).view(x.shape)

    kept = []
    for start in (False, True):
        for lay in (torch.clone, torch.clone, lambda x: torch.stack([x, -x], -1)[..., 0], lambda x: torch._neg_view(-x), lambda x: x.mT.contiguous().mT, torch.clone, odd):
            A, b, z0 = torch.randn(6, 2, 2), torch.randn(6, 2), torch.randn(2) if start else None
            z = ours.linear_chain(lay(A), lay(b), z0)
            assert torch.allclose(z, definition(A, b, z0), atol=1e-5) and z.is_contiguous()
            kept.append((z, z.clone()))
    assert all(torch.equal(z, copy) for z, copy in kept)  # in memory of their own
    for wrong in ({"scheme": ["auto"]}, {"scheme": "none"}, {"structure": "block"}, {"transposed": 0.0}):
        with pytest.raises(deeppcr.ArgumentError):
            ours.linear_chain(A, b, **wrong)
    with pytest.raises(deeppcr.UnsupportedError):
        ours.linear_chain(A, b, z0, True)


def test_filters_like_one_before_read_their_own_coefficients():
    sos, x = torch.tensor([[1.0, 0.5, 0, 1, -0.5, 0]]), torch.randn(3, 9)
    for call in range(4):
        wanted = deeppcr.signal.sosfilt(sos.double().numpy(), x.double().numpy())
        assert np.allclose(ours.sosfilt(sos, x).numpy(), wanted, atol=1e-6)
        assert np.allclose(ours.sosfilt(sos, x.t(), 0).numpy().T, wanted, atol=1e-6)
        assert np.allclose(ours.sosfilt(sos, torch.stack([x, x], -1)[..., 1]).numpy(), wanted, atol=1e-6)
        negated = torch._neg_view(-x)
        assert negated.is_neg() and np.allclose(ours.sosfilt(sos, negated).numpy(), wanted, atol=1e-6)
        b = torch._neg_view(-sos[0, :3])
        assert np.allclose(ours.lfilter(b, sos[0, 3:], x).numpy(), wanted, atol=1e-6)
        assert np.allclose(ours.lfilter(-sos[0, :3], sos[0, 3:], x).numpy(), -wanted, atol=1e-6)
        sos[0, 1:3] += call
    sos[0, 0] = float("nan")
    with pytest.raises(deeppcr.ArgumentError):
        ours.sosfilt(sos, x)


@pytest.mark.skipif(not hasattr(torch, "uint32"), reason="no such tensors")
def test_linear_chain_of_uint32_wraps_around():
    A, b = torch.full((6, 2), 3, dtype=torch.uint32), torch.full((6, 2), 1 << 31, dtype=torch.uint32)
    z = ours.linear_chain(A, b)
    assert z.dtype is torch.uint32 and np.array_equal(z, deeppcr.linear_chain(A.numpy(), b.numpy()))
    for structure, A in (("diagonal", A[:1]), ("identity", torch.ones((), dtype=torch.uint32))):
        for transposed in (False, True) if REGISTERS else ():
            found = torch.ops.deeppcr.linear_chain_vjp(A, z, b, None, transposed, "auto", structure)
            assert [g.dtype for g in found[:2]] == [torch.uint32] * 2


# ---- deep stacks ----


def eager(chain, z):
    """The definition of Chain by PyTorch's functions, and its leaves."""
    f, leaves = chain.form, []
    act = {"identity": lambda x: x, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}.get(f.activation) or getattr(
        torch, f.activation)  # fmt: skip
    norm = lambda x, p: torch.nn.functional.layer_norm(x, x.shape[-1:], p["norm.weight"], p["norm.bias"]) if f.layer_norm else x  # noqa: E731,E501
    linear = torch.nn.functional.linear
    for part in chain.layers():
        p = {name: value.clone().requires_grad_() for name, value in part.items()}
        leaves.append(p)
        if f.branch == "two-layer":
            branch = linear(act(norm(linear(z, p["linear1.weight"], p["linear1.bias"]), p)), p["linear2.weight"], p["linear2.bias"])
        else:
            branch = act(norm(linear(z, p["weight"], p["bias"]), p))
        z = branch if f.kind == "mlp" else z + f.scale * branch
    return z, leaves


@pytest.mark.parametrize("options", [{}, {"kind": "mlp"}, {"layer_norm": True}, {"branch": "two-layer", "activation": "relu"},
                                     {"branch": "two-layer", "hidden": 7, "layer_norm": True}, {"activation": "gelu"},
                                     {"activation": "silu", "scale": 0.3}, {"kind": "mlp", "layer_norm": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chain_is_its_definition(options, dtype):
    torch.manual_seed(0)
    chain = ours.Chain(5, 12, dtype=dtype, **options)
    z = torch.randn(3, 4, 5, dtype=dtype, requires_grad=True)
    wanted, leaves = eager(chain, z)
    got = chain(z)
    assert got.shape == z.shape and (got - wanted).abs().max() < 10 * FORWARD[dtype]
    assert torch.equal(chain(z.detach()), got)
    g = torch.randn_like(got)
    dz, dflat = torch.autograd.grad(got, [z, chain.flat], g, retain_graph=True)
    right = torch.autograd.grad(wanted, [z, *(t for p in leaves for t in p.values())], g)
    assert (dz - right[0]).abs().max() < BACKWARD[dtype]
    holder = copy.deepcopy(chain)
    holder.flat.data.copy_(dflat)
    found = [t for p in holder.layers() for t in p.values()]
    assert len(found) == len(right) - 1
    for a, b in zip(found, right[1:]):
        assert a.shape == b.shape and (a - b).abs().max() < BACKWARD[dtype] * max(1, float(b.abs().max()))
    again = torch.autograd.grad(got, chain.flat, g)[0]  # the tape was used up
    assert torch.allclose(again, dflat, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["sequential", "overlap", "newton"])
@pytest.mark.parametrize("width, layers, dtype", [(2, 3000, torch.float64), (4, 6000, torch.float32), (1, 100, torch.float64)])
def test_a_named_methods_gradients_have_one_way_back(method, width, layers, dtype):
    torch.manual_seed(0)
    chain, x = ours.Chain(width, layers, activation="relu", method=method, dtype=dtype), torch.randn(3, width, dtype=dtype)

    def passed(rows):
        rows = rows.clone().requires_grad_()
        y = chain(rows)
        return [y.detach(), *torch.autograd.grad((y**2).sum(), [rows, chain.flat])]

    threads, found = deeppcr.threads(), []
    for count in (1, 2, 3):
        deeppcr.set_threads(count)
        found.append(passed(x[:1]))
    together = passed(x)
    deeppcr.set_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))
    assert torch.equal(together[1][:1], found[0][1])


@pytest.mark.parametrize("shape", [(5, 0, 2), (0, 2, 2)])
def test_second_gradients_of_chains_of_nothing(shape):
    A = torch.rand(*shape[:2], 2, 2, dtype=torch.float64, requires_grad=True)
    b, z0 = torch.rand(shape, dtype=torch.float64, requires_grad=True), torch.rand(shape[1:], dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad((ours.linear_chain(A, b, z0) ** 2).sum(), [A, b, z0], create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), [A, b, z0], allow_unused=True)
    assert [g.shape for g in first] == [A.shape, b.shape, z0.shape]
    assert not any(g.any() for g in first) and not any(g is not None and g.any() for g in second)



@pytest.mark.parametrize("options", [{}, {"kind": "mlp", "activation": "silu"}, {"branch": "two-layer", "hidden": 4, "layer_norm": True}], ids=str)
def test_chain_has_second_gradients(options):
    torch.manual_seed(0)
    chain = ours.Chain(3, 4, dtype=torch.float64, **options)
    z = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(chain, z) and torch.autograd.gradgradcheck(chain, z)
    wanted, leaves = eager(chain, z)
    leaves = [t for p in leaves for t in p.values()]
    found = []
    for out, own in ((chain(z), [z, chain.flat]), (wanted, [z, *leaves])):
        first = torch.autograd.grad(out.pow(2).sum(), own, create_graph=True)
        found.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), own)[0])
    assert torch.allclose(*found, rtol=1e-9, atol=1e-10)


@registers
def test_chain_and_filters_are_operators():
    torch.manual_seed(0)
    d = torch.float64
    chain = ours.Chain(3, 4, dtype=d)
    z = torch.randn(2, 3, dtype=d, requires_grad=True)
    f = chain.form
    torch.library.opcheck(torch.ops.deeppcr.chain.default, (z, chain.flat, f.kind, f.hidden, f.activation, f.branch, f.layer_norm, f.scale,
                                                            0, "sequential"))  # fmt: skip
    compiled = torch.compile(lambda z: chain(z).sin(), fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(compiled(z).sum(), [z, chain.flat]), torch.autograd.grad(chain(z).sin().sum(), [z, chain.flat])):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    exported = torch.export.export(chain, (z.detach(),))
    assert "deeppcr.chain" in str(exported.graph) and torch.allclose(exported.module()(z), chain(z))
    b, a = torch.randn(3, dtype=d, requires_grad=True), torch.tensor([1.0, 0.3], dtype=d, requires_grad=True)
    x = torch.randn(2, 9, dtype=d, requires_grad=True)
    for signal in (x, torch.randn(5, 4, 3, dtype=d).movedim(0, -1)):
        torch.library.opcheck(torch.ops.deeppcr.filter.default, (b, a, signal, None))
    compiled = torch.compile(ours.lfilter, fullgraph=True, backend="aot_eager")
    for m, n in zip(torch.autograd.grad(compiled(b, a, x).sum(), [b, a, x]), torch.autograd.grad(ours.lfilter(b, a, x).sum(), [b, a, x])):
        assert torch.allclose(m, n, rtol=0, atol=1e-12)


# ---- filters ----


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=registers)])
def test_gradients_of_coefficients_have_their_dtypes(compiled):
    """Of a compiled program the operators promise them; what is promised wider than it is would be read past its end."""
    torch.manual_seed(0)
    run = torch.compile(ours.lfilter, fullgraph=True, backend="aot_eager") if compiled else ours.lfilter
    f, d = torch.float32, torch.float64
    b, a = torch.randn(3, dtype=d), torch.tensor([1.0, 0.3], dtype=d)
    for b_dtype, a_dtype, x_dtype in ((f, d, f), (d, f, f), (f, d, d), (d, f, d)):
        x = torch.randn(2, 64, dtype=x_dtype)
        one, other = b.to(b_dtype).requires_grad_(), a.to(a_dtype).requires_grad_()
        found = torch.autograd.grad(run(one, other, x).sum(), (one, other))
        assert [g.dtype for g in found] == [b_dtype, a_dtype]
        wide = [t.detach().double().requires_grad_() for t in (one, other)]
        for g, right in zip(found, torch.autograd.grad(ours.lfilter(*wide, x).sum(), wide)):
            assert torch.equal(g, right.to(g.dtype))


def test_second_derivatives_of_filters_are_refused():
    """A penalty of a gradient, which reaches the coefficients by no gradient of y: refused, not lost."""
    d = torch.float64
    x, b = torch.randn(8, dtype=d, requires_grad=True), torch.tensor([0.2, 0.3], dtype=d, requires_grad=True)
    a, sos = torch.tensor([1.0, -0.5], dtype=d), torch.tensor([[1, 0.5, 0.2, 1, -0.5, 0.3]], dtype=d, requires_grad=True)
    for run, wanted in ((lambda b: ours.lfilter(b, a, x), b), (lambda s: ours.sosfilt(s, x), sos)):
        for loss in (lambda y: y.pow(2).sum(), lambda y: y.sum()):
            with pytest.raises(deeppcr.UnsupportedError, match="second derivatives"):
                torch.autograd.functional.hessian(lambda c: loss(run(c)), wanted.detach())  # noqa: B023
            with pytest.raises(deeppcr.UnsupportedError, match="second derivatives"):
                torch.autograd.grad(loss(run(wanted)), x, create_graph=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_states_of_filters_lie_as_scipys(rng, axis):
    """As deeppcr.signal's, which are held to SciPy's; also where another layout has the same shape."""
    from deeppcr import signal

    x, sos = rng.normal(size=(2, 2, 2)), np.array([[1, 0.5, 0.2, 1, -0.5, 0.3], [0.7, 0.1, 0.2, 1, 0.2, -0.3]])
    b, a, one = np.array([0.3, 0.2, 0.1]), np.array([2.0, 0.5, -0.3]), [1, 1, 1]
    one[axis] = 2
    for name, given, zi in (("sosfilt", (sos,), rng.normal(size=(2, 2, 2, 2))), ("lfilter", (b, a), rng.normal(size=(2, 2, 2))),
                            ("lfilter", (b, a), rng.normal(size=one))):  # fmt: skip
        wanted = getattr(signal, name)(*given, x, axis, zi)
        tensors = [torch.from_numpy(v) for v in (*given, x)]
        for words in ({"axis": axis}, {"dim": axis}):
            for got, right in zip(getattr(ours, name)(*tensors, zi=torch.from_numpy(zi), **words), wanted):
                assert got.shape == right.shape and np.allclose(got, right, rtol=0, atol=1e-12)
    for words, what in (({"axis": 0, "dim": 0}, "axis"), ({"axis": 3}, "axis"), ({"dim": 3}, "dim"), ({"zi": torch.ones(2, 1, 2, 2)}, "zi's shape")):
        with pytest.raises(deeppcr.ArgumentError) as caught:
            ours.sosfilt(torch.from_numpy(sos), torch.from_numpy(x), **words)
        assert caught.value.what == what


@pytest.mark.parametrize("dim", [0, -1])
def test_filters_have_gradients_of_all(dim):
    torch.manual_seed(0)
    d = torch.float64
    x = torch.randn(12, 3, dtype=d) if dim == 0 else torch.randn(3, 12, dtype=d)
    x.requires_grad_()
    free = torch.ones(2, 6, dtype=d)
    free[:, 3] = 0
    sos = torch.tensor([[1, 0.5, 0.2, 1, -0.5, 0.3], [0.7, 0.1, 0.2, 1, 0.2, -0.3]], dtype=d, requires_grad=True)
    zi = torch.randn(*((2, 2, 3) if dim == 0 else (2, 3, 2)), dtype=d, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, x, z: ours.sosfilt(s * free + (1 - free), x, dim, z), (sos, x, zi))
    b, a = torch.randn(4, dtype=d, requires_grad=True), torch.tensor([2.0, 0.3, 0.1], dtype=d, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *p: ours.lfilter(*p, dim), (b, a, x))
    for shape in ((3, 3), (3, 1) if dim == 0 else (1, 3)):  # each channel's, one for all
        state = torch.randn(shape, dtype=d, requires_grad=True)
        assert torch.autograd.gradcheck(lambda b, a, x, z: ours.lfilter(b, a, x, dim, z), (b, a, x, state))
    from deeppcr import signal

    assert np.array_equal(ours.sosfilt(sos, x, dim).detach(), signal.sosfilt(sos.detach().numpy(), x.detach().numpy(), dim))
    g = torch.randn_like(x)
    negated = torch.complex(g, g).conj().imag  # a view that NumPy does not take
    assert torch.equal(ours.lfilter(b, a, negated, dim), -ours.lfilter(b, a, g, dim))
    assert torch.equal(*torch.autograd.grad(ours.lfilter(b, a, x, dim), x, negated), *torch.autograd.grad(ours.lfilter(b, a, x, dim), x, -g))
    assert torch.equal(ours.linear_chain(torch.ones(len(g), dtype=d), negated), -ours.linear_chain(torch.ones(len(g), dtype=d), g))
    by_b, by_a, by_x = torch.autograd.grad(ours.lfilter(b, a, x, dim), (b, a, x), g)
    mine = signal.lfilter_vjp(*(t.detach().numpy() for t in (b, a, x)), g.numpy(), dim)
    assert all(np.allclose(m, t, rtol=0, atol=1e-12) for m, t in zip(mine, (by_b, by_a, by_x)))
    empty, two, one = (torch.tensor(v, dtype=d, requires_grad=True) for v in ([[], []], [2.0], [1.0]))  # no numbers; order 0
    assert torch.autograd.grad(ours.sosfilt(sos, empty).sum(), sos)[0].abs().max() == 0
    assert torch.equal(ours.lfilter(two, one, x), 2 * x) and torch.autograd.gradcheck(ours.lfilter, (two, one, x))
    for call in (lambda: ours.sosfilt(sos[:, :5], x), lambda: ours.sosfilt(sos * 2, x), lambda: ours.lfilter(b, a, x.long()),
                 lambda: ours.lfilter(b, a, x, 2), lambda: ours.lfilter(b, a, x, dim, state[None])):  # fmt: skip
        with pytest.raises(deeppcr.ArgumentError):
            call()


# ---- kinds whose units do not mix ----


def defined(kind, parameters, x):
    """y of a layer by the formulas of deeppcr.recurrent."""
    p, s = parameters, torch.sigmoid
    h = c = torch.zeros(x.shape[1], p["weight_ih_l0"].shape[0] // (2 if kind == "MinGRU" else 3), dtype=x.dtype)
    out = []
    for u in x @ p["weight_ih_l0"].t() + p["bias_ih_l0"]:
        parts = u.chunk(2 if kind == "MinGRU" else 3, -1)
        a = p["weight_hh_l0"].chunk(3) if kind != "MinGRU" else ()
        if kind == "ParaLSTM":
            of, oo = p["peephole_l0"].chunk(2)
            f, z = s(parts[0] + a[0] * h + of * c), torch.tanh(parts[1] + a[1] * h)
            c = f * c + (1 - f) * z
            h = s(parts[2] + a[2] * h + oo * c) * torch.tanh(c)
        elif kind == "ParaGRU":
            z, r = s(parts[0] + a[0] * h), s(parts[1] + a[1] * h)
            h = (1 - z) * h + z * torch.tanh(parts[2] + a[2] * r * h)
        else:
            z = s(parts[0])
            h = (1 - z) * h + z * parts[1]
        out.append(h)
    return torch.stack(out)


@pytest.mark.parametrize("kind", ["ParaGRU", "ParaLSTM", "MinGRU"])
def test_kinds_whose_units_do_not_mix(kind):
    torch.manual_seed(0)
    mine = getattr(ours, kind)(3, 4, dtype=torch.float64)
    x = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    own = dict(mine.named_parameters())
    y, wanted = mine(x)[0], defined(kind, own, x)
    assert torch.allclose(y, wanted, rtol=0, atol=1e-12)
    g = torch.randn_like(y)
    for a, b in zip(torch.autograd.grad(y, [x, *own.values()], g), torch.autograd.grad(wanted, [x, *own.values()], g)):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)
    deep = getattr(ours, kind)(3, 4, 2, bidirectional=True, batch_first=True, dropout=0.5, dtype=torch.float64).eval()
    packed = rnn.pack_padded_sequence(x.transpose(0, 1), torch.tensor([7, 4]), batch_first=True)
    assert torch.equal(rnn.pad_packed_sequence(deep(packed)[0], batch_first=True)[0][1, :4], deep(x[:4, 1:].transpose(0, 1))[0][0])
    numbers = getattr(deeppcr.recurrent, kind)(3, 4, 2, bidirectional=True, dtype=np.float64)
    numbers.load_state_dict(deep.state_dict())
    assert np.array_equal(numbers(x.detach().numpy())[0], deep(x.transpose(0, 1))[0].transpose(0, 1).detach())
    other = pickle.loads(pickle.dumps(deep))
    assert torch.equal(other(x)[0], deep(x)[0]) and torch.equal(copy.deepcopy(deep)(x)[0], deep(x)[0])
    assert deep.to(torch.float32)(x.float())[0].dtype == torch.float32
    with pytest.raises(deeppcr.UnsupportedError, match="second derivatives"):
        torch.autograd.grad(mine(x)[0].sum(), x, create_graph=True)
    with pytest.raises(deeppcr.ArgumentError):
        getattr(ours, kind)(0, 4)


def test_chain_trains_copies_and_refuses():
    torch.manual_seed(0)
    chain = ours.Chain(4, 50, method="sequential")  # of which all have the same bits, on a busy machine too
    x, target = torch.randn(64, 4), torch.randn(64, 4).tanh()
    optimiser, losses = torch.optim.AdamW(chain.parameters(), lr=3e-3), []
    for _ in range(30):
        optimiser.zero_grad()
        loss = (chain(x) - target).pow(2).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    other = pickle.loads(pickle.dumps(chain))
    assert torch.equal(other(x), chain(x)) and repr(other) == repr(chain)
    for call, what in ((lambda: ours.Chain(0, 3), "width"), (lambda: ours.Chain(3, 3, "cnn"), "kind"),
                       (lambda: ours.Chain(3, 3, "mlp", branch="two-layer"), "branch"), (lambda: chain(x[:, :3]), "the input's shape"),
                       (lambda: chain(x.double()), "the input's dtype"), (lambda: ours.Chain(3, 3, activation="x"), "activation")):
        with pytest.raises(deeppcr.ArgumentError) as caught:  # fmt: skip
            call()
        assert caught.value.what == what


@pytest.mark.parametrize("structure", ["dense", "diagonal", "scalar", "block", "identity"])
@pytest.mark.parametrize("length, batch", [(0, None), (0, 3), (5, 0)])
@pytest.mark.parametrize("transposed", [False, True])
def test_derivatives_of_chains_of_nothing(structure, length, batch, transposed):
    """Zeros of the inputs' shapes, of every order."""
    lead = (length,) if batch is None else (length, batch)
    values = {"dense": (4, 4), "diagonal": (4,), "scalar": (), "block": (2, 2, 2), "identity": ()}[structure]
    A, b = torch.ones(lead + values, requires_grad=structure != "identity"), torch.ones(lead + (4,), requires_grad=True)
    z0 = None if transposed else torch.ones(lead[1:] + (4,), requires_grad=True)
    inputs = [x for x in (A, b, z0) if x is not None and x.requires_grad]
    for more in (False, True):
        z = ours.linear_chain(A, b, z0, transposed, structure=structure)
        found = torch.autograd.grad(z.sum(), inputs, create_graph=more, allow_unused=True)
        assert all(g is None or (g.shape == x.shape and not g.any()) for g, x in zip(found, inputs))
    if hasattr(torch, "func") and z0 is not None:
        g = torch.func.grad(lambda z0: ours.linear_chain(A.detach(), b.detach(), z0, structure=structure).sum())(z0.detach())
        assert g.shape == z0.shape and not g.any()


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="PyTorch takes ten seconds to make 4097 layers there")
def test_sizes_that_only_pytorch_takes():
    """Beyond the library's sizes a module that may fall back runs PyTorch's code, and another one says so."""
    module = torch.nn.Sequential(torch.nn.RNN(1, 1, 4097))
    wanted = module[0](torch.ones(1, 1, 1))[0]
    with pytest.raises(deeppcr.UnsupportedError, match="num_layers is 4097"):
        ours.from_torch(module[0])(torch.ones(1, 1, 1))
    ours.replace_in(module, fallback=True)
    assert torch.equal(module[0](torch.ones(1, 1, 1))[0], wanted)


def test_nothing_in_the_place_of_tensors():
    for A, b in ((None, torch.ones(5, 2)), (torch.ones(5, 2), None)):
        with pytest.raises(deeppcr.ArgumentError, match="NoneType"):
            ours.linear_chain(A, b)
    for sizes in ((True, 2), (3, True)):
        with pytest.raises(deeppcr.ArgumentError):
            ours.Chain(*sizes)
    with pytest.raises(deeppcr.ArgumentError, match="hidden"):
        ours.Chain(3, 2, hidden=np.ones(0))
    with pytest.raises(deeppcr.ArgumentError, match="dtype"):
        deeppcr.recurrent.GRU(2, 3, dtype=torch.ones(5, 2, requires_grad=True))


class Wrapper(torch.Tensor):
    """Holds another tensor, as DTensor and others do, and has no memory of its own."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, strides=held.stride(), dtype=held.dtype)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        from torch.utils._pytree import tree_map

        inside = [tree_map(lambda t: t.held if isinstance(t, Wrapper) else t, given) for given in (args, kwargs or {})]
        return tree_map(lambda t: Wrapper(t) if isinstance(t, torch.Tensor) else t, function(*inside[0], **inside[1]))


def _calls_of_tensors():
    """By name a function and its tensors, the parameters of a module last."""
    x, h, sos = torch.randn(5, 2, 3), torch.randn(1, 2, 4), torch.tensor([[1.0, 0.2, 0.1, 1, -0.3, 0.1]])
    gru, lstm, chain = ours.GRU(3, 4), ours.LSTM(3, 4), ours.Chain(3, 4)

    def through(module, *tensors):
        count = len(list(module.parameters()))
        for (name, _), own in zip(list(module.named_parameters()), tensors[len(tensors) - count :]):
            setattr(module, name, torch.nn.Parameter(own.detach()))
        given = tensors[: len(tensors) - count]
        return module(given[0], *([] if len(given) == 1 else [given[1:] if len(given) == 3 else given[1]]))

    def own(module):
        return [p.detach().clone() for p in module.parameters()]

    u = torch.rand(1, 3, 5)
    return {
        "GRU": (lambda *t: through(gru, *t)[0], [x, h, *own(gru)]),
        "LSTM": (lambda *t: through(lstm, *t)[0], [x, h, h.clone(), *own(lstm)]),
        "Chain": (lambda *t: through(chain, *t), [x, *own(chain)]),
        "linear_chain": (ours.linear_chain, [torch.rand(5, 2, 3), x, torch.rand(2, 3)]),
        "sosfilt": (lambda sos, x, zi: ours.sosfilt(sos, x, zi=zi)[0], [sos, x, torch.rand(1, 5, 2, 2)]),
        "sosfilt from nothing": (ours.sosfilt, [sos, x]),
        "selective_scan": (ours.selective_scan, [u, u.clone(), -torch.rand(3, 2), torch.rand(1, 2, 5), torch.rand(1, 2, 5)]),
    }


@pytest.mark.parametrize("name", list(_calls_of_tensors()))
def test_tensors_that_hold_others_are_read_by_operators(name):
    """Not where their own memory would be: that is nothing, or another's."""
    call, tensors = _calls_of_tensors()[name]
    with torch.no_grad():
        wanted = call(*tensors)
        for i in range(len(tensors)):
            for _ in range(2):  # calls like one before are known
                given = [Wrapper(t) if i == k else t for k, t in enumerate(tensors)]
                if REGISTERS:
                    found = call(*given)
                    assert isinstance(found, Wrapper) and torch.equal(found.held, wanted), i
                else:
                    with pytest.raises(deeppcr.UnsupportedError, match="answers operators; wanted torch.Tensor"):
                        call(*given)


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_gradients_that_hold_others_are_not_taken_for_none(name):
    theirs, mine = pair(name, 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    g = torch.randn(5, 2, 4, dtype=torch.float64)
    for wanted, found in zip(*(torch.autograd.grad(m(x)[0], list(m.parameters()), g) for m in (theirs, mine))):
        torch.testing.assert_close(found, wanted)
    for wanted, found in zip(torch.autograd.grad(theirs(x)[0], list(theirs.parameters()), g),
                             torch.autograd.grad(mine(x)[0], list(mine.parameters()), Wrapper(g))):  # fmt: skip
        torch.testing.assert_close(found.held, wanted)


def test_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.randn(3, 3), torch.randn(2, 3)])
    for call in (lambda: ours.GRU(3, 4)(nested), lambda: deeppcr.linear_chain(0.5, nested)):
        with pytest.raises(ValueError, match="a nested tensor; wanted"):
            call()


@pytest.mark.parametrize("calls", [0, 2])
def test_parameters_whose_storage_was_freed(calls):
    gru, x = ours.GRU(3, 4), torch.randn(5, 2, 3)
    for _ in range(calls):
        gru(x)
    weight = gru.weight_hh_l0
    (weight.untyped_storage() if hasattr(weight, "untyped_storage") else weight.storage()).resize_(0)
    with pytest.raises(deeppcr.ArgumentError, match="a parameter is without memory"):
        gru(x)
