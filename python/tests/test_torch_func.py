# SPDX-License-Identifier: MIT
"""What PyTorch lets programs do to a module from outside: torch.func, other parameters in their places, results that are written
into, views that are to be negated. All as it does to torch.nn's modules."""
import concurrent.futures
import copy
import gc
import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrize, prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import deeppcr  # noqa: E402
import deeppcr.torch as ours  # noqa: E402
from deeppcr import _abi, _engine, _library, _ready  # noqa: E402
from deeppcr.torch import recurrent  # noqa: E402

func = pytest.importorskip("torch.func") if hasattr(torch, "func") else None
FUNC = pytest.mark.skipif(func is None or not hasattr(torch.library, "register_vmap"), reason="a PyTorch without torch.func or vmap of operators")


NAMES = ("RNN", "GRU", "LSTM")


def pair(kind=nn.GRU, *sizes, **options):
    torch.manual_seed(0)
    theirs = kind(*(sizes or (3, 4)), **options).double()
    return theirs, ours.from_torch(theirs), torch.randn(5, 2, 3, dtype=torch.float64)


def close(a, b, atol=1e-9):
    assert a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=atol)


@FUNC
@pytest.mark.parametrize("kind, sizes", [(nn.GRU, (3, 4)), (nn.LSTM, (3, 4, 2)), (nn.RNN, (3, 4))])
def test_transforms_of_torch_func(kind, sizes):
    theirs, mine, x = pair(kind, *sizes, bidirectional=True)
    parameters = dict(theirs.named_parameters())
    losses = [lambda p, v, m=m: func.functional_call(m, p, (v,))[0].square().sum() for m in (theirs, mine)]
    wanted, got = (func.grad(loss)(parameters, x) for loss in losses)
    assert all(wanted[n].abs().max() > 0 for n in wanted)
    for name in wanted:
        close(got[name], wanted[name])
    outputs = [lambda v, m=m: m(v)[0] for m in (theirs, mine)]
    for transform in (func.jacrev, func.jacfwd, lambda f: func.hessian(lambda v: f(v).square().sum())):
        wanted, got = (transform(f)(x) for f in outputs)
        close(got, wanted)
    several = torch.randn(3, 5, 2, 3, dtype=torch.float64)
    close(func.vmap(outputs[1])(several), torch.stack([outputs[0](v) for v in several]))
    each = func.vmap(func.grad(losses[1]), (None, 0))(parameters, several)  # gradients a sample
    for i, v in enumerate(several):
        for name, g in func.grad(losses[0])(parameters, v).items():
            close(each[name][i], g)
    models = {n: torch.stack([p.detach(), 2 * p.detach()]) for n, p in parameters.items()}  # several models at once
    many = func.vmap(lambda p: func.functional_call(mine, p, (x,))[0])(models)
    close(many[1], func.functional_call(theirs, {n: p[1] for n, p in models.items()}, (x,))[0])
    with pytest.raises(deeppcr.UnsupportedError, match="second"):
        func.grad(lambda v: func.grad(lambda w: mine(w)[0].square().sum())(v).sum())(x)


@FUNC
def test_transforms_of_chains_and_filters():
    torch.manual_seed(0)
    A, b = torch.randn(6, 2, 2, dtype=torch.float64) * 0.4, torch.randn(6, 2, dtype=torch.float64)
    start, stack, z = b[0], ours.Chain(4, 5).double(), torch.randn(3, 4, dtype=torch.float64)
    sos, signal = torch.tensor([[1, 0.2, 0.1, 1, -0.3, 0.1]], dtype=torch.float64), torch.randn(2, 20, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian
    for f, at in ((lambda v: ours.linear_chain(v, b, start), A), (lambda v: ours.linear_chain(A, v, None, True), b), (stack, z),
                  (lambda v: ours.sosfilt(v, signal), sos), (lambda v: ours.lfilter(sos[0, :3], v, signal), sos[0, 3:])):
        close(func.jacrev(f)(at), jacobian(f, at))
        rows = torch.stack([at, 0.5 * at])
        if at is not sos and at.ndim != 1:  # coefficients of half the size are no coefficients
            close(func.vmap(f)(rows), torch.stack([f(r) for r in rows]))
            close(func.vmap(func.grad(lambda v, f=f: f(v).sin().sum()))(rows), torch.stack([func.grad(lambda v, f=f: f(v).sin().sum())(r) for r in rows]))
    loss = lambda v: ours.linear_chain(v, b, start).sin().sum()  # noqa: E731
    close(func.jacrev(func.jacrev(loss))(A), torch.autograd.functional.hessian(loss, A))


@FUNC
@pytest.mark.parametrize("transform", ["jacfwd", "vectorised"])
def test_what_kinds_of_our_own_do_not_have_is_refused(transform):
    mine, x = ours.MinGRU(3, 4), torch.randn(5, 2, 3)
    with pytest.raises(deeppcr.UnsupportedError) as caught:
        func.jacfwd(lambda v: mine(v)[0])(x) if transform == "jacfwd" else torch.autograd.functional.jacobian(lambda v: mine(v)[0], x, vectorize=True)
    assert caught.value.what and caught.value.got and caught.value.wanted


def test_jacobians_of_many_losses_at_once():
    theirs, mine, x = pair()
    wanted, got = (torch.autograd.functional.jacobian(lambda v, m=m: m(v)[0], x, vectorize=v) for m, v in ((theirs, False), (mine, True)))
    close(got, wanted)


@FUNC
def test_jacobians_of_many_losses_of_stacks_chains_and_filters():
    _, mine, x = pair()
    jacobian = torch.autograd.functional.jacobian
    stack, z = ours.Chain(4, 3, layer_norm=True).double(), torch.randn(2, 4, dtype=torch.float64)
    twice = lambda v: mine(mine.weight_ih_l0[:1, :3] + mine(v)[0][..., :3])[0]  # noqa: E731  a call upon a call
    for f, at in ((stack, z), (lambda v: stack(stack(v)), z), (twice, x)):
        close(jacobian(f, at, vectorize=True), jacobian(f, at))
    A, b = torch.randn(6, 2, 2, dtype=torch.float64) * 0.4, torch.randn(6, 2, dtype=torch.float64)
    sos, signal = torch.tensor([[1, 0.2, 0.1, 1, -0.3, 0.1]], dtype=torch.float64), torch.randn(2, 20, dtype=torch.float64)
    for f, at in ((lambda v: ours.linear_chain(A, v), b), (lambda v: ours.linear_chain(A, v, None, True), b), (lambda v: ours.sosfilt(sos, v), signal)):
        with pytest.raises(deeppcr.UnsupportedError, match="many losses") as caught:
            jacobian(f, at, vectorize=True)
        assert caught.value.what and caught.value.got and caught.value.wanted


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_second_derivatives_of_a_call_upon_a_call(kind):
    theirs, mine, x = pair(kind, 4, 4)
    first, second = torch.randn(2, 5, 2, 4, dtype=torch.float64)
    first.requires_grad_()
    found = []
    for module in (theirs, mine):
        y, h = module(first)
        z = module(second, h)[0] + module(y)[0]  # state and input depend on the same parameters
        own = [first, *module.parameters()]
        once = torch.autograd.grad(z.square().sum(), own, create_graph=True)
        found.append([*once, *torch.autograd.grad(sum(g.sin().sum() for g in once), own)])
    for a, b in zip(*found):
        close(b, a, 1e-9 * max(1, float(a.abs().max())))


@pytest.mark.parametrize("options", [{}, {"kind": "mlp", "layer_norm": True}], ids=str)
def test_second_derivatives_of_a_stack_upon_itself(options):
    torch.manual_seed(0)
    stack = ours.Chain(3, 4, dtype=torch.float64, **options)
    z, own = torch.randn(2, 3, dtype=torch.float64, requires_grad=True), stack.flat
    loss = lambda: stack(stack(z)).sin().sum()  # noqa: E731
    first = torch.autograd.grad(loss(), [z, own])
    for a, b in zip(first, torch.autograd.grad(loss(), [z, own], create_graph=True)):
        close(b, a)
    second = torch.autograd.grad(sum(g.square().sum() for g in torch.autograd.grad(loss(), [z, own], create_graph=True)), own)[0]
    h, way, sums = 1e-5, torch.randn_like(own), []
    for sign in (1, -1):
        with torch.no_grad():
            own += sign * h * way
        sums.append(sum(float(g.square().sum()) for g in torch.autograd.grad(loss(), [z, own])))
        with torch.no_grad():
            own -= sign * h * way
    wanted = (sums[0] - sums[1]) / (2 * h)
    assert abs(float((second * way).sum()) - wanted) < 1e-6 * max(1, abs(wanted))


@pytest.mark.parametrize("gradients", [False, True])
def test_derivatives_forward_are_given_or_refused(gradients):
    from torch.autograd import forward_ad

    theirs, mine, x = pair()
    stack, z = ours.Chain(4, 3).double(), torch.randn(2, 4, dtype=torch.float64)
    A, b = torch.randn(6, 2, 2, dtype=torch.float64) * 0.4, torch.randn(6, 2, dtype=torch.float64)
    sos, signal = torch.tensor([[1, 0.2, 0.1, 1, -0.3, 0.1]], dtype=torch.float64), torch.randn(2, 20, dtype=torch.float64)
    with torch.set_grad_enabled(gradients), forward_ad.dual_level():
        for f, at in ((lambda v: mine(v)[0], x), (stack, z), (lambda v: ours.linear_chain(A, v), b), (lambda v: ours.linear_chain(v, b), A)):
            way = torch.randn_like(at)
            tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(at, way))).tangent
            close(tangent, (f(at + 1e-6 * way) - f(at - 1e-6 * way)) / 2e-6, 1e-7)
        for f, at in ((lambda v: ours.sosfilt(sos, v), signal), (lambda v: ours.sosfilt(v, signal), sos),
                      (lambda v: ours.lfilter(sos[0, :3], v, signal), sos[0, 3:])):  # fmt: skip
            with pytest.raises(deeppcr.UnsupportedError, match="forward"):
                f(forward_ad.make_dual(at, torch.ones_like(at)))
            assert f(at).shape  # what has no tangent has its numbers


CHAINS = [("dense", (4, 2, 4, 4)), ("dense", (1, 1, 4, 4)), ("dense", (2, 4, 4)), ("dense", (4, 4)), ("block", (4, 1, 2, 2, 2)), ("block", (2, 2, 2)),
          ("diagonal", (4, 2, 4)), ("diagonal", (4,)), ("scalar", (4, 1)), ("scalar", (2,)), ("scalar", ()), ("identity", ())]  # fmt: skip


def chain_of(structure, shape, form, states=(4, 2, 4)):
    """A chain as a function, and what it is a function of."""
    torch.manual_seed(0)
    A, b, z0 = (torch.randn(s, dtype=torch.float64) * c for s, c in ((shape, 0.5), (states, 1), (states[1:], 1)))
    given = [*([] if structure == "identity" else [A]), b, *([z0] if form == "z0" else [])]

    def run(*arrays):
        matrices, *rest = arrays if structure != "identity" else (torch.ones(()).double(), *arrays)
        return ours.linear_chain(matrices, *(rest if form == "z0" else (rest[0], None)), form == "transposed", structure=structure)

    return run, tuple(x.requires_grad_() for x in given)


@pytest.mark.parametrize("structure, shape", CHAINS)
@pytest.mark.parametrize("form", ["", "z0", "transposed"])
def test_chains_have_derivatives_forward(structure, shape, form):
    """Against differences: forward, forward over backward, and backward over forward."""
    from torch.autograd import forward_ad

    run, given = chain_of(structure, shape, form)

    def along(*arrays):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(run(*(forward_ad.make_dual(x, x.cos()) for x in arrays))).tangent

    torch.autograd.gradcheck(run, given, check_forward_ad=True, check_batched_grad=False)
    torch.autograd.gradgradcheck(run, given, check_fwd_over_rev=True, check_rev_over_rev=False, check_undefined_grad=False)
    torch.autograd.gradcheck(along, given)


def test_derivatives_forward_of_a_gradient_without_a_graph():
    from torch.autograd import forward_ad

    run, (A, b, z0) = chain_of("dense", (4, 2, 4, 4), "z0")
    loss = lambda A: run(A, b, z0).sin().sum()  # noqa: E731
    way = torch.randn_like(A)
    with forward_ad.dual_level():
        at = forward_ad.make_dual(A.detach().requires_grad_(), way)
        got = forward_ad.unpack_dual(torch.autograd.grad(loss(at), at)[0]).tangent
    close(got, torch.autograd.functional.hvp(loss, A, way)[1])


@pytest.mark.parametrize("at", ["A", "b"])
def test_derivatives_forward_of_many_ways_at_once(at):
    run, (A, b) = chain_of("dense", (4, 2, 4, 4), "")
    jacobian = lambda **how: torch.autograd.functional.jacobian((lambda v: run(v, b)) if at == "A" else lambda v: run(A, v), A if at == "A" else b, **how)  # noqa: E731
    if func is not None:
        return close(func.jacfwd(run, "Ab".index(at))(A, b), jacobian())
    with pytest.raises(deeppcr.UnsupportedError, match="many losses"):
        jacobian(vectorize=True, strategy="forward-mode")


@FUNC
@pytest.mark.parametrize("structure, shape", [("dense", (2, 2, 2)), ("block", (1, 2, 2)), ("diagonal", (2, 2)), ("scalar", ())])
@pytest.mark.parametrize("form", ["z0", "transposed"])
def test_transforms_of_chains_within_one_another(structure, shape, form):
    """Each way forward switches off those around it while its tangent is computed, in PyTorch itself."""
    run, given = chain_of(structure, shape, form, (2, 2))
    given = tuple(x.detach() for x in given)
    f = lambda *arrays: run(*arrays).sin().sum(0)  # noqa: E731
    jacobian, tangents = func.jacrev(f, tuple(range(len(given))))(*given), tuple(map(torch.cos, given))
    close(func.jvp(f, given, tangents)[1], sum((j * t).reshape(2, -1).sum(1) for j, t in zip(jacobian, tangents)))
    for inner in range(len(given)):
        for outer in range(len(given)):
            wanted = func.jacrev(func.jacrev(f, inner), outer)(*given)
            for one, two in ((func.jacfwd, func.jacfwd), (func.jacfwd, func.jacrev), (func.jacrev, func.jacfwd)):
                close(one(two(f, inner), outer)(*given), wanted)
    close(func.hessian(lambda v: run(v, *given[1:]).sin().sum())(given[0]), func.jacrev(func.jacrev(lambda v: run(v, *given[1:]).sin().sum()))(given[0]))


@FUNC
def test_what_is_compiled_has_derivatives_forward_or_none():
    """Operators that PyTorch knows have none, which its programs take for 0."""
    run, given = chain_of("dense", (4, 2, 4, 4), "z0")
    A, b, z0 = (x.detach() for x in given)
    forward = lambda f: lambda v: func.jvp(f, (v,), (v,))[1]  # noqa: E731
    f = lambda v: run(A, v, z0)  # noqa: E731
    close(torch.compile(forward(f), backend="aot_eager")(b), forward(f)(b))
    close(forward(torch.compile(f, backend="aot_eager"))(b), forward(f)(b))
    taps = torch.ones(2, dtype=torch.float64)
    with pytest.raises(deeppcr.UnsupportedError, match="forward"):
        torch.compile(forward(lambda v: ours.lfilter(taps, taps[:1], v, 0)), backend="aot_eager")(b)


@FUNC
@pytest.mark.filterwarnings("error:.*oneDNN")
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}], ids=str)
def test_an_lstm_of_float32_has_derivatives_forward(options):
    """Which oneDNN's, that PyTorch takes for it, has not."""
    torch.manual_seed(0)
    single, double = ours.LSTM(3, 4, **options), ours.LSTM(3, 4, **options).double()
    double.load_state_dict(single.state_dict())
    x, way = torch.randn(2, 5, 2, 3)
    got, wanted = (func.jvp(lambda v, m=m: m(v)[0], (x.to(d),), (way.to(d),))[1] for m, d in ((single, torch.float32), (double, torch.float64)))
    close(got.double(), wanted, 1e-6)
    loss = lambda v: single(v)[0].square().sum()  # noqa: E731
    close(func.hessian(loss)(x), torch.autograd.functional.hessian(loss, x), 1e-6)
    assert torch._C._get_mkldnn_enabled()  # as it was


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="its own locks do not survive a fork among threads")
def test_a_child_finds_onednn_as_it_was():
    """Where another thread of the parent had turned it off, and had its lock."""
    inside, go_on = threading.Event(), threading.Event()

    def turn():
        with recurrent._without_onednn():
            inside.set()
            go_on.wait()

    busy = threading.Thread(target=turn)
    busy.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        was = torch._C._get_mkldnn_enabled()
        with recurrent._without_onednn():
            off = not torch._C._get_mkldnn_enabled()
        os._exit(0 if was and off and torch._C._get_mkldnn_enabled() else 1)
    go_on.set()
    busy.join()
    assert os.waitpid(pid, 0)[1] == 0 and torch._C._get_mkldnn_enabled()


@FUNC
@pytest.mark.parametrize("what", ["module", "stack", "linear chain", "filter"])
def test_vmap_over_no_rows(what):
    _, mine, x = pair()
    A, b = torch.randn(6, 2, 2, dtype=torch.float64) * 0.4, torch.randn(6, 2, dtype=torch.float64)
    f, shape = {"module": (lambda v: mine(v)[0], (5, 2, 3)), "stack": (ours.Chain(4, 3).double(), (2, 4)), "linear chain": (lambda v: ours.linear_chain(A, v), (6, 2)),
                "filter": (lambda v: ours.lfilter(torch.ones(2).double(), torch.ones(1).double(), v), (2, 9))}[what]
    with pytest.raises(deeppcr.ArgumentError, match="vmap"):
        func.vmap(f)(torch.zeros(0, *shape, dtype=torch.float64))


def test_other_parameters_in_their_places():
    theirs, mine, x = pair()
    for module in (theirs, mine):
        prune.l1_unstructured(module, "weight_hh_l0", 0.5)
        module(x)[0].square().sum().backward()
    close(mine(x)[0], theirs(x)[0])
    close(mine.weight_hh_l0_orig.grad, theirs.weight_hh_l0_orig.grad)
    name, double = "weight_ih_l0", torch.nn.Parameter(2 * theirs.weight_ih_l0.detach())
    wanted, before = (setattr(theirs, name, double), theirs(x)[0])[1], mine(x)[0]
    mine._parameters[name] = double  # as torch.func.functional_call does
    close(mine(x)[0], wanted)
    assert not torch.allclose(before, wanted)


def waiting():
    """How many passes keep what their way back reads."""
    return sum(type(o).__name__ in ("Pass", "_Held") and o.held for o in gc.get_objects())


@pytest.mark.skipif(not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"), reason="a PyTorch that does not tell of hooks")
@pytest.mark.parametrize("kind", [*NAMES, "Chain"])
@pytest.mark.parametrize("options", [{}, {"batch_first": True}])
def test_checkpoints_keep_nothing_between_the_ways(kind, options):
    x = torch.randn(5, 2, 4, dtype=torch.float64, requires_grad=True)
    module = ours.Chain(4, 3, dtype=torch.float64) if kind == "Chain" else getattr(ours, kind)(4, 4, dtype=torch.float64, **options)
    call = module if kind == "Chain" else lambda v: module(v)[0]
    gc.collect()
    before = waiting()
    found = []
    for run in (lambda v: checkpoint(call, v, use_reentrant=False), call):
        for again in range(2):  # the second call is known
            y = run(run(x).tanh())
            assert waiting() - before == (0 if run is not call else 2)
            found.append(torch.autograd.grad(y.square().sum(), [x, *module.parameters()], retain_graph=again == 0))
            del y
    for gradients in found[:-1]:
        for a, b in zip(gradients, found[-1]):
            close(a, b)
    with torch.autograd.graph.save_on_cpu():
        y = call(x)
    assert waiting() == before
    put = torch.zeros(3, 2, 4, dtype=torch.float64)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: put if t.ndim == 3 else t):
        y = call(x)
    if kind != "Chain":
        with pytest.raises(deeppcr.ArgumentError, match="x's shape"):
            y.sum().backward()


class Double(nn.Module):
    """A parametrization."""

    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize("length", [5, 300])
def test_parametrised_modules_are_copied_after_a_call(length):
    _, mine, _ = pair()
    parametrize.register_parametrization(mine, "weight_hh_l0", Double())
    x = torch.randn(length, 2, 3, dtype=torch.float64)
    y = mine(x)[0]
    copied = copy.deepcopy(mine)
    with torch.no_grad():
        mine.parametrizations.weight_hh_l0.original.zero_()
    close(copied(x)[0], y)
    assert not torch.allclose(mine(x)[0], y)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_pytorch_runs_parametrised_modules_where_it_runs_others(kind):
    theirs, _, x = pair(kind)
    mine = ours.from_torch(theirs, fallback=True).bfloat16()
    parametrize.register_parametrization(mine, "weight_hh_l0", Double())
    y = mine(x.bfloat16())[0]
    y.float().square().sum().backward()
    with torch.no_grad():
        theirs.weight_hh_l0.mul_(2)
    close(y, theirs.bfloat16()(x.bfloat16())[0])
    assert mine.parametrizations.weight_hh_l0.original.grad.abs().max() > 0


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, ours.MinGRU, ours.ParaLSTM])
@pytest.mark.parametrize("training", [False, True])
def test_parameters_that_do_not_fit_are_refused(kind, training):
    mine = kind(3, 4)
    mine = mine if type(mine) in (ours.MinGRU, ours.ParaLSTM) else ours.from_torch(mine)
    x = torch.randn(5, 2, 3, requires_grad=training)
    for name, weight in mine.named_parameters():
        shape = weight.shape
        flipped = torch.zeros(shape[::-1]) if len(shape) == 2 and shape[0] != shape[1] else torch.zeros(*shape, 1)
        for put, what in ((torch.zeros(2, 2), f"{name}'s shape"), (torch.zeros(64, 64), f"{name}'s shape"), (flipped, f"{name}'s shape"),
                          (torch.zeros(shape).half(), ""), (torch.zeros(shape).double(), ""), (torch.zeros(shape, device="meta"), "device"),
                          (torch.zeros(shape).to_sparse(), f"{name}'s layout")):
            before, mine._parameters[name] = weight, torch.nn.Parameter(put)  # as torch.func.functional_call does
            with pytest.raises(deeppcr.Error) as caught:
                mine(x)
            assert what in caught.value.what and caught.value.wanted
            mine._parameters[name] = before
            if put.dtype == weight.dtype and put.device == weight.device and put.layout is weight.layout:
                own, weight.data = weight.data, put  # in the parameter itself
                with pytest.raises(deeppcr.ArgumentError):
                    mine(x)
                weight.data = own
    assert mine(x)[0].shape == (5, 2, 4)


def test_parameters_that_shrink_before_the_way_back_are_refused():
    _, mine, x = pair()
    y, own = mine(x)[0], mine.weight_hh_l0.data
    mine.weight_hh_l0.data = own[:6].clone()
    with pytest.raises((deeppcr.ArgumentError, RuntimeError)):
        y.sum().backward()
    mine.weight_hh_l0.data = own


def test_parameters_of_a_stack_that_shrink_before_the_way_back_are_refused():
    stack, z0 = ours.Chain(3, 5), torch.randn(2, 3, requires_grad=True)
    y = stack(z0)
    stack.flat.data = stack.flat.data[:2].clone()
    with pytest.raises(deeppcr.ArgumentError, match="flat's shape"):
        y.sum().backward()


def test_parameters_of_a_stack_with_other_strides_give_their_gradients():
    torch.manual_seed(0)
    stack, z0 = ours.Chain(3, 5, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    own = stack.flat.data
    wanted = torch.autograd.grad(stack(z0).square().sum(), stack.flat)[0]
    loss = stack(z0).square().sum()
    stack.flat.data = own.t().contiguous().t()
    for _ in range(2):  # by the tape, and anew
        assert torch.equal(torch.autograd.grad(loss, stack.flat, retain_graph=True)[0], wanted)
    stack.flat.data = own[:1].clone().expand(own.shape)  # memory for one step only
    got = torch.autograd.grad(loss, stack.flat)[0]
    stack.flat.data = own[:1].clone().expand(own.shape).contiguous()
    fresh = ours.Chain(3, 5, dtype=torch.float64)
    fresh.flat.data = stack.flat.data
    # The loss's gradient is of the first pass.
    last = fresh(z0)
    stack.flat.data = own
    assert torch.equal(got, torch.autograd.grad(last, fresh.flat, 2 * stack(z0).detach())[0])


@pytest.mark.parametrize("kind", ["Chain", "GRU"])
def test_a_way_back_that_was_cut_off_is_gone_anew(kind, monkeypatch):
    """It had used up its tape, or some of it."""
    torch.manual_seed(0)
    mine = ours.Chain(3, 5) if kind == "Chain" else ours.GRU(3, 4)
    x = torch.randn(6, 2, 3, requires_grad=True)
    y = mine(x) if kind == "Chain" else mine(x)[0]
    wanted = torch.autograd.grad((mine(x) if kind == "Chain" else mine(x)[0]).square().sum(), [x, *mine.parameters()])
    loss, owner = y.square().sum(), (_library.lib if kind == "Chain" else _ready)
    name = "dpcr_solve_backward" if kind == "Chain" else "_run"
    run = getattr(owner, name)

    def cut_off(*arguments):
        assert run(*arguments) == 0
        return _abi.CONSTANTS["DPCR_ERROR_CANCELLED"]

    monkeypatch.setattr(owner, name, cut_off)
    with pytest.raises(KeyboardInterrupt):
        torch.autograd.grad(loss, x, retain_graph=True)
    monkeypatch.undo()
    assert all(map(torch.equal, torch.autograd.grad(loss, [x, *mine.parameters()]), wanted))


@pytest.mark.parametrize("kind", ["Chain", "GRU"])
def test_a_pass_on_its_way_back_is_no_other_threads(kind, monkeypatch):
    """While the library is at work another thread goes the same way back; it has a pass of its own."""
    torch.manual_seed(0)
    mine = ours.Chain(3, 5) if kind == "Chain" else ours.GRU(3, 4)
    x = torch.randn(6, 2, 3, requires_grad=True)

    def loss():
        return (mine(x) if kind == "Chain" else mine(x)[0]).square().sum()

    def back(made):
        return torch.autograd.grad(made, [x, *mine.parameters()], retain_graph=True)

    wanted, made, both = back(loss()), loss(), []
    owner, name = (_library.lib, "dpcr_solve_backward") if kind == "Chain" else (_ready, "_run")
    run = getattr(owner, name)

    def meanwhile(*arguments):
        monkeypatch.setattr(owner, name, run)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            both.append(pool.submit(back, made).result())
        return run(*arguments)

    monkeypatch.setattr(owner, name, meanwhile)
    both.append(back(made))
    assert len(both) == 2
    for found in (*both, back(made), back(loss())):
        assert all(map(torch.equal, found, wanted))
    engines = [call.engine for call in mine._calls.values()] if kind == "GRU" else list(_engine._engines.kept.values())
    for engine in engines:
        assert len(engine.free) == len({id(slot) for slot in engine.free})


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("again", [False, True, "written into"])
@pytest.mark.parametrize("which, put", [(0, (1, 2, 3)), (0, (5, 1, 3)), (0, (5, 2, 1)), (0, (5000, 2, 3)), (1, (1, 1, 4)), (1, (1, 3, 4)),
                                        (2, (1, 2, 2))])  # fmt: skip
def test_inputs_that_change_their_shape_before_the_way_back_are_refused(which, put, again, calls):
    mine = ours.LSTM(3, 4).double()
    given = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((5, 2, 3), (1, 2, 4), (1, 2, 4))]
    for _ in range(calls):  # the module knows the later ones
        y = mine(given[0], tuple(given[1:]))[0]
    if again is True:
        y.sum().backward(retain_graph=True)
    elif again:
        y *= 2
    for t in (*given, *mine.parameters()):
        t.grad = None
    given[which].data = torch.zeros(*put, dtype=torch.float64)
    with pytest.raises(deeppcr.ArgumentError, match="shape"):
        y.sum().backward()


def test_operators_refuse_parameters_that_do_not_fit():
    if not hasattr(torch.library, "custom_op"):
        pytest.skip("no operators")
    x, options = torch.randn(5, 2, 3), ("gru", 4, 1, False, True, 0, 0, "auto")
    parameters = list(nn.GRU(3, 4).parameters())
    for bad in (parameters[:3], [*parameters[:3], torch.zeros(2)], [*parameters[:3], torch.zeros(12).double()]):
        with pytest.raises(deeppcr.ArgumentError):
            torch.ops.deeppcr.recurrent(x, None, None, None, bad, *options)


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"batch_first": True, "num_layers": 2, "dropout": 0.5}], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_results_may_be_detached_in_place(options, training):
    """A carried-on y, as with nn.GRU: it is no view of another tensor."""
    for kind in (nn.GRU, nn.LSTM):
        mine, x = pair(kind, **options)[1:]
        with torch.set_grad_enabled(training):
            for _ in range(3):  # later ones are known
                y, last = mine(x)
                loss = (2 * y).sum() + (last if kind is nn.GRU else last[0]).sum()
                assert y.requires_grad is training and y.transpose(0, len(options) and 1).is_contiguous()  # time first in memory
                assert not y.detach_().requires_grad
        assert not training or all(g.abs().max() > 0 for g in torch.autograd.grad(loss, list(mine.parameters())))


@pytest.mark.parametrize("options", [{}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_results_may_be_written_into(kind, options):
    mine, x = pair(kind, **options)[1:]
    x.requires_grad_()

    def gradients(write):
        y, last = mine(2 * x)
        h = last if kind is nn.GRU else last[0]
        if write:
            y += x[..., :1]
            y *= 2
            h.mul_(3)
        else:
            y, h = 2 * (y + x[..., :1]), 3 * h
        return torch.autograd.grad(y.square().sum() + h.sum(), [x, *mine.parameters()])

    for a, b in zip(gradients(True), gradients(False)):
        close(a, b)


def test_views_that_are_to_be_negated():
    theirs, mine, x = pair()
    view, ones = torch._neg_view, torch.ones(5, 2, 4, dtype=torch.float64)
    close(mine(view(x), view(ones[:1]))[0], theirs(-x, -ones[:1])[0])
    close(mine(view(x).requires_grad_())[0], theirs(-x)[0])
    leaf = x.clone().requires_grad_()
    close(*(torch.autograd.grad(m(leaf)[0], leaf, g)[0] for m, g in ((mine, view(ones)), (theirs, -ones))))
    stack = ours.Chain(3, 4).double()
    close(stack(view(x)), stack(-x))
    close(*(torch.autograd.grad(stack(leaf), leaf, g)[0] for g in (view(x), -x)))


def test_gradients_have_memory_of_their_own():
    _, mine, x = pair()
    mine(x)[0].sum().backward()
    at = {p.grad.untyped_storage().data_ptr() if hasattr(p.grad, "untyped_storage") else p.grad.storage().data_ptr() for p in mine.parameters()}
    assert len(at) == 4


@FUNC
@pytest.mark.parametrize("name", ["module", "gradient", "stack", "chain", "filter"])
def test_programs_that_make_fx_records_work_with_other_numbers(name):
    """A TorchDispatchMode sees operators alone: what ran beside them would be memory that nobody filled, or numbers of this input."""
    from torch.fx.experimental.proxy_tensor import make_fx

    theirs, mine, x = pair()
    stack, A = ours.Chain(3, 6, dtype=torch.float64), torch.rand(5, 2, 3, dtype=torch.float64) / 2
    b, a = torch.tensor([0.2, 0.1], dtype=torch.float64), torch.tensor([1.0, -0.5], dtype=torch.float64)

    def gradient(module, v):
        v = v.detach().requires_grad_()
        return torch.autograd.grad(module(v)[0].square().sum(), v)[0]

    call = {"module": lambda v: mine(v)[0], "gradient": lambda v: gradient(mine, v), "stack": stack, "chain": lambda v: ours.linear_chain(A, v),
            "filter": lambda v: ours.lfilter(b, a, v, 0)}[name]  # fmt: skip
    program, other = make_fx(call)(x), torch.randn_like(x)
    assert any("deeppcr" in str(node.target) for node in program.graph.nodes)
    close(program(other), call(other))
    if name in ("module", "gradient"):
        close(program(other), theirs(other)[0] if name == "module" else gradient(theirs, other))


@pytest.mark.parametrize("given", [None, [1.0], torch.zeros(5, 2, 3).numpy()])
def test_inputs_that_are_no_tensors(given):
    with pytest.raises(deeppcr.ArgumentError) as caught:
        ours.GRU(3, 4)(given)
    assert caught.value.what == "the input" and caught.value.got == type(given).__name__ and "tensor" in caught.value.wanted


def test_sparse_inputs_are_refused():
    with pytest.raises(deeppcr.UnsupportedError, match="layout"):
        ours.GRU(3, 4)(torch.zeros(5, 2, 3).to_sparse())


@pytest.mark.parametrize("call, what", [
    (lambda: ours.GRU(3, 4, method=["auto"]), "method"), (lambda: ours.MinGRU("3", 4), "input_size"), (lambda: ours.MinGRU(3, 4, 0), "num_layers"),
    (lambda: ours.ParaGRU(3, 4, dropout="x"), "dropout"), (lambda: ours.ParaLSTM(3, 4, dropout=2), "dropout"),
    (lambda: ours.sosfilt(torch.ones(1, 6), torch.ones(3), 1), "dim"), (lambda: ours.lfilter(torch.ones(130), torch.ones(1), torch.ones(3)), "b's shape"),
])  # fmt: skip
def test_refusals_name_what_is_wrong(call, what):
    with pytest.raises(deeppcr.Error) as caught:
        call()
    assert caught.value.what == what and caught.value.wanted
