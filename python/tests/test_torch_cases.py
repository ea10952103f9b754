# SPDX-License-Identifier: MIT
"""The cases of PyTorch's own published tests of recurrent modules (test/test_nn.py, test_modules.py), for the modules of deeppcr.torch:
what is asked is named after them, how is written anew. Those of GPUs and of single cells have no counterpart here."""
import copy
import io
import itertools
import pickle

import pytest

torch = pytest.importorskip("torch")

import deeppcr  # noqa: E402
import deeppcr.torch as ours  # noqa: E402
from torch.nn.utils import prune, rnn, weight_norm  # noqa: E402

NAMES = ["RNN", "GRU", "LSTM"]
pytestmark = [pytest.mark.filterwarnings("ignore:LSTM with projections"), pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")]


def made(name, *sizes, **options):
    return getattr(ours, name)(*sizes, **options)


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [value.data] if isinstance(value, rnn.PackedSequence) else [
        t for part in value if part is not None for t in (flat(part) if not isinstance(part, torch.Tensor) else [part])]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers, bidirectional, first", list(itertools.product((1, 2), (False, True), (False, True))))
def test_rnn_args_check(name, layers, bidirectional, first):
    """Every size of inputs and states that does not fit is refused, one that fits is not."""
    I, H, B, T, D = 3, 5, 4, 6, 1 + bidirectional
    module = made(name, I, H, num_layers=layers, bidirectional=bidirectional, batch_first=first)
    x = lambda batch, inputs: torch.randn((batch, T, inputs) if first else (T, batch, inputs))  # noqa: E731
    state = lambda rows, batch, width: torch.randn(rows, batch, width)  # noqa: E731
    pair = lambda h, c: (h, c) if name == "LSTM" else h  # noqa: E731
    good = state(layers * D, B, H)
    module(x(B, I), pair(good, good))
    for inputs, h in ((x(B, I + 1), good), (x(B + 1, I), good), (x(B, I), state(layers * D, B, H + 1)), (x(B, I), state(layers * D + 1, B, H)),
                      (x(B, I), state(layers * D, B - 1, H)), (x(B, I), good[0])):  # fmt: skip
        with pytest.raises(deeppcr.ArgumentError):
            module(inputs, pair(h, h))
        if name == "LSTM" and h is not good:
            for hx in ((good, h), (h, good)):
                with pytest.raises(deeppcr.ArgumentError):
                    module(inputs, hx)


def test_projections_lstm_args_check():
    module = ours.LSTM(3, 5, proj_size=2)
    x, h, c = torch.randn(6, 4, 3), torch.randn(1, 4, 2), torch.randn(1, 4, 5)
    module(x, (h, c))
    for bad in ((c, c), (h, h), (c, h)):
        with pytest.raises(deeppcr.ArgumentError):
            module(x, bad)
    for sizes in ({"proj_size": 5}, {"proj_size": -1}):
        with pytest.raises(ValueError):
            ours.LSTM(3, 5, **sizes)


@pytest.mark.parametrize("name", NAMES)
def test_rnn_initial_hidden_state(name):
    """No state, and zeros, are the same."""
    module, x = made(name, 3, 4, num_layers=2, bidirectional=True), torch.randn(5, 2, 3)
    zeros = torch.zeros(4, 2, 4)
    for a, b in zip(flat(module(x)), flat(module(x, (zeros, zeros) if name == "LSTM" else zeros))):
        assert torch.equal(a, b)


def test_rnn_nonlinearity():
    assert ours.RNN(1, 2).nonlinearity == "tanh" and ours.RNN(1, 2, nonlinearity="relu").mode == "RNN_RELU"
    assert ours.RNN(1, 2, 1, "relu").nonlinearity == "relu"  # as an argument in its place
    with pytest.raises(ValueError, match="nonlinearity"):
        ours.RNN(1, 2, nonlinearity="garbage")


@pytest.mark.parametrize("name", NAMES)
def test_rnn_input_size_zero(name):
    """A batch of no sequences runs, and its gradients are zeros."""
    module = made(name, 3, 4)
    y = module(torch.zeros(5, 0, 3))[0]
    assert y.shape == (5, 0, 4)
    y.sum().backward()
    assert all(not p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", [0.0, 0.1276, 1.0])
@pytest.mark.parametrize("train", [False, True])
def test_rnn_dropout(name, p, train):
    """One layer of ones after another: what is left of a dropped unit is exactly 0, of another 1 / (1 - p) times itself."""
    module = made(name, 10, 100, num_layers=2, bias=False, dropout=p)
    theirs = getattr(torch.nn, name)(10, 100, num_layers=2, bias=False, dropout=p)
    theirs.load_state_dict(module.state_dict())
    module.train(train), theirs.train(train)
    x, found = torch.ones(1, 1, 10), []
    for m in (module, theirs):
        torch.manual_seed(1)
        found.append(m(x)[0])
    assert torch.allclose(*found, rtol=0, atol=1e-5)
    torch.manual_seed(2)
    again = module(x)[0]
    assert torch.equal(again, found[0]) == (not train or p in (0.0, 1.0))
    if p == 1.0 and train:
        assert not again.any()


@pytest.mark.parametrize("name", NAMES)
def test_rnn_dropout_state(name):
    """Copies and pickles draw other masks than each other and the same ones from the same generator state."""
    module = made(name, 10, 100, num_layers=2, dropout=0.5)
    x = torch.randn(2, 3, 10)
    other = pickle.loads(pickle.dumps(module))
    torch.manual_seed(0)
    first, second = module(x)[0], module(x)[0]
    torch.manual_seed(0)
    assert torch.equal(other(x)[0], first) and torch.equal(other(x)[0], second) and not torch.equal(first, second)


@pytest.mark.parametrize("name", NAMES)
def test_rnn_change_dropout(name):
    module, x = made(name, 3, 40, num_layers=2, dropout=0.0), torch.randn(4, 2, 3)
    before = module(x)[0]
    module.dropout = 0.5
    assert not torch.equal(module(x)[0], before)
    module.dropout = 0.0
    assert torch.equal(module(x)[0], before)


@pytest.mark.parametrize("name", NAMES)
def test_rnn_retain_variables(name):
    """A graph that is kept may be gone back through as often as one likes, with the same gradients."""
    torch.manual_seed(0)
    module, x = made(name, 10, 20, num_layers=2, dtype=torch.float64), torch.randn(5, 6, 10, dtype=torch.float64, requires_grad=True)
    y = module(x)[0].sum()
    y.backward(retain_graph=True)
    first = [t.grad.clone() for t in (x, *module.parameters())]
    for _ in range(3):
        for t in (x, *module.parameters()):
            t.grad = None
        y.backward(retain_graph=True)
        assert all(torch.allclose(t.grad, g, rtol=0, atol=1e-13) for t, g in zip((x, *module.parameters()), first))
    y.backward()
    if hasattr(torch, "compiler"):
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()


@pytest.mark.parametrize("name", NAMES)
def test_variable_sequence(name):
    """Packed sequences of several lengths give what each gives alone, and so do the gradients."""
    torch.manual_seed(0)
    lengths, d = [7, 7, 6, 3, 1], torch.float64
    module = made(name, 3, 4, num_layers=2, bidirectional=True, dtype=d)
    x = torch.randn(7, 5, 3, dtype=d, requires_grad=True)
    y, last = module(rnn.pack_padded_sequence(x, torch.tensor(lengths)))
    padded, told = rnn.pad_packed_sequence(y)
    assert told.tolist() == lengths
    alone = [module(x[:n, i : i + 1]) for i, n in enumerate(lengths)]
    for i, n in enumerate(lengths):
        assert torch.equal(padded[:n, i : i + 1], alone[i][0]) and not padded[n:, i].any()
        assert all(torch.equal(a[:, i : i + 1], b) for a, b in zip(flat(last), flat(alone[i][1])))
    (mine,) = torch.autograd.grad(padded.pow(2).sum(), x)
    (right,) = torch.autograd.grad(sum(y.pow(2).sum() for y, _ in alone), x)
    assert torch.allclose(mine, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_rnn_weight_norm(name):
    """torch.nn.utils.weight_norm replaces a parameter by a product of two, and may be removed again."""
    module = weight_norm(made(name, 3, 4, num_layers=2), "weight_ih_l0")
    theirs = weight_norm(getattr(torch.nn, name)(3, 4, num_layers=2), "weight_ih_l0")
    theirs.load_state_dict(module.state_dict())
    x = torch.randn(5, 2, 3)
    assert "weight_ih_l0_g" in dict(module.named_parameters())
    assert torch.allclose(module(x)[0], theirs(x)[0], rtol=0, atol=1e-5)
    module(x)[0].sum().backward(), theirs(x)[0].sum().backward()
    assert torch.allclose(module.weight_ih_l0_g.grad, theirs.weight_ih_l0_g.grad, rtol=0, atol=1e-4)
    before = module(x)[0]
    module = torch.nn.utils.remove_weight_norm(module, name="weight_ih_l0")
    assert torch.allclose(module(x)[0], before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_rnn_pruning(name):
    module, x = made(name, 3, 4), torch.randn(5, 2, 3)
    before = module(x)[0]
    prune.l1_unstructured(module, name="weight_ih_l0", amount=0.5)
    after = module(x)[0]
    assert not torch.equal(after, before)
    after.sum().backward()
    assert not module.weight_ih_l0_orig.grad[module.weight_ih_l0_mask == 0].any()
    prune.remove(module, "weight_ih_l0")
    assert torch.equal(module(x)[0], after)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [0, 2])
def test_lstm_and_gru_grad_and_gradgrad(name, batch):
    """By inputs and parameters together."""
    torch.manual_seed(0)
    module, d = made(name, 2, 3, dtype=torch.float64), torch.float64
    names = [n for n, _ in module.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in module.parameters()]

    def run(x, *parameters):
        held = copy.copy(module)
        held._flat_weights = list(parameters)
        return flat(held(x))

    x = torch.randn(3, batch, 2, dtype=d, requires_grad=True)
    assert len(names) == 4 and torch.autograd.gradcheck(run, [x, *values])
    assert torch.autograd.gradgradcheck(run, [x, *values], atol=1e-5)


# ---- test_modules.py: what every module has to do ----


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 2, "batch_first": True}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("name", NAMES)
class TestAsAnyModule:
    def pair(self, name, options):
        torch.manual_seed(0)
        return made(name, 3, 4, dtype=torch.float64, **options), torch.randn(5, 2, 3, dtype=torch.float64)

    def test_forward_without_a_batch(self, name, options):
        module, x = self.pair(name, options)
        one = x[:, 0] if not module.batch_first else x[0]
        y, wanted = module(one)[0], module(one[None] if module.batch_first else one[:, None])[0]
        assert torch.equal(y, wanted[0] if module.batch_first else wanted[:, 0])

    def test_factory_kwargs(self, name, options):
        for dtype in (torch.float32, torch.float64):
            assert {p.dtype for p in made(name, 3, 4, dtype=dtype, device="cpu", **options).parameters()} == {dtype}
        assert {p.device.type for p in made(name, 3, 4, device="meta", **options).parameters()} == {"meta"}

    def test_non_contiguous(self, name, options):
        module, x = self.pair(name, options)
        gaps = torch.stack([x, -x], -1)[..., 0].requires_grad_()
        whole = x.clone().requires_grad_()
        assert not gaps.is_contiguous() and torch.equal(module(gaps)[0], module(whole)[0])
        g = torch.stack([x.new_ones(module(x)[0].shape)] * 2, -1)[..., 0]
        a, b = torch.autograd.grad(module(gaps)[0], gaps, g)[0], torch.autograd.grad(module(whole)[0], whole, g.contiguous())[0]
        assert torch.equal(a, b)

    def test_pickle_and_save(self, name, options):
        module, x = self.pair(name, options)
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        other = made(name, 3, 4, dtype=torch.float64, **options)
        other.load_state_dict(torch.load(file))
        assert torch.equal(other(x)[0], module(x)[0]) and torch.equal(pickle.loads(pickle.dumps(module))(x)[0], module(x)[0])

    def test_inputs_and_parameters_are_left_alone(self, name, options):
        module, x = self.pair(name, options)
        before = [t.clone() for t in (x, *module.parameters())]
        module(x.clone().requires_grad_())[0].sum().backward()
        module(x)
        assert all(torch.equal(a, b) for a, b in zip(before, (x, *module.parameters())))

    def test_train_and_eval_differ_only_by_dropout(self, name, options):
        module, x = self.pair(name, options)
        assert torch.equal(module.train()(x)[0], module.eval()(x)[0])

    def test_to_and_back(self, name, options):
        module, x = self.pair(name, options)
        wanted = module(x)[0]
        assert torch.allclose(module.float()(x.float())[0].double(), wanted, atol=1e-5) and module.double()(x)[0].dtype == torch.float64
        module.share_memory()
        assert torch.allclose(module(x)[0], wanted, atol=1e-5)
