# SPDX-License-Identifier: MIT
"""deeppcr.jax against JAX's own scans, and the networks over NumPy (which test_recurrent.py and test_torch.py prove)."""
import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import deeppcr  # noqa: E402
from deeppcr import jax as ours  # noqa: E402
from deeppcr import recurrent  # noqa: E402


def scan(A, b, z0):
    return jax.lax.scan(lambda z, step: ((n := step[0] @ z + step[1]), n), z0, (A, b))[1]


@pytest.fixture
def chain(rng):
    return tuple(jnp.asarray(rng.normal(size=s) * c, jnp.float32) for s, c in (((40, 3, 3), 0.4), ((40, 3), 1), ((3,), 1)))


def test_linear_chain_jit_grad_vmap(chain, rng):
    g = jnp.asarray(rng.normal(size=(40, 3)), jnp.float32)
    loss = lambda f: lambda *a: (f(*a) * g).sum()  # noqa: E731
    assert np.allclose(ours.linear_chain(*chain), scan(*chain), atol=1e-5)
    mine = jax.jit(jax.grad(loss(ours.linear_chain), (0, 1, 2)))(*chain)
    for a, b in zip(mine, jax.grad(loss(scan), (0, 1, 2))(*chain)):
        assert a.shape == b.shape and np.allclose(a, b, atol=1e-4)
    assert np.allclose(ours.linear_chain(*chain[:2]), scan(*chain[:2], jnp.zeros(3)), atol=1e-5)
    many = tuple(jnp.stack([a, 2 * a, -a]) for a in chain[1:])
    got = jax.vmap(ours.linear_chain, (None, 0, 0))(chain[0], *many)
    assert np.allclose(got, jax.vmap(scan, (None, 0, 0))(chain[0], *many), atol=1e-4)
    gradient = jax.vmap(jax.grad(lambda b, z0: ours.linear_chain(chain[0], b, z0).sum()))(*many)
    assert gradient.shape == many[0].shape


@pytest.mark.parametrize("structure, shape", [("diagonal", (40, 3)), ("scalar", (40,)), ("diagonal", (1, 3)), ("dense", (3, 3))])
def test_transposed_and_shared(chain, rng, structure, shape):
    A = jnp.asarray(rng.normal(size=shape) * 0.4, jnp.float32)
    b, g = chain[1], jnp.asarray(rng.normal(size=(40, 3)), jnp.float32)
    full = {"diagonal": lambda A: A[..., None] * jnp.eye(3), "scalar": lambda A: A[:, None, None] * jnp.eye(3), "dense": lambda A: A}
    matrices = lambda A: jnp.broadcast_to(full[structure](A), (40, 3, 3))  # noqa: E731

    def transposed(A, b):
        M = jnp.concatenate([jnp.swapaxes(matrices(A), 1, 2)[1:], jnp.zeros((1, 3, 3))])
        return jax.lax.scan(lambda z, s: ((n := s[0] @ z + s[1]), n), jnp.zeros(3), (M, b), reverse=True)[1]

    for mine, theirs in ((lambda A, b: ours.linear_chain(A, b, transposed=True, structure=structure), transposed),
                         (lambda A, b: ours.linear_chain(A, b, structure=structure), lambda A, b: scan(matrices(A), b, jnp.zeros(3)))):
        assert np.allclose(mine(A, b), theirs(A, b), atol=1e-5)
        for x, y in zip(jax.grad(lambda *a: (mine(*a) * g).sum(), (0, 1))(A, b), jax.grad(lambda *a: (theirs(*a) * g).sum(), (0, 1))(A, b)):
            assert x.shape == y.shape and np.allclose(x, y, atol=1e-4)


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_networks(rng, name):
    net = {"rnn": recurrent.RNN, "gru": recurrent.GRU, "lstm": recurrent.LSTM}[name](3, 4, 2, bidirectional=True)
    parameters = {n: jnp.asarray(p) for n, p in net.state_dict().items()}
    call = getattr(ours, name)
    x, h0, c0 = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((6, 2, 3), (4, 2, 4), (4, 2, 4)))
    state = (h0, c0) if name == "lstm" else h0
    y, last = jax.jit(call)(parameters, x, state)
    wanted, right = net(x, tuple(map(np.asarray, state)) if name == "lstm" else np.asarray(h0), training=True)
    assert np.array_equal(y, wanted) and np.array_equal(np.asarray(last), np.asarray(right))
    dy = rng.normal(size=y.shape).astype("f")
    found = net.backward(dy)
    mine = jax.jit(jax.grad(lambda p, x, s: (call(p, x, s)[0] * dy).sum(), (0, 1, 2)))(parameters, x, state)
    assert np.allclose(mine[1], found.x, atol=1e-6) and np.allclose(np.asarray(mine[2]), np.asarray(found.h0), atol=1e-6)
    assert all(np.allclose(mine[0][n], g, atol=1e-5) for n, g in found.parameters.items())
    single, _ = call(parameters, x[:, 0])
    many = jax.vmap(lambda x: call(parameters, x)[0], 1, 1)(x)
    assert single.shape == (6, 8) and np.array_equal(many[:, 0], single)


def test_refusals(chain):
    net = {n: jnp.asarray(p) for n, p in recurrent.GRU(3, 4).state_dict().items()}
    for call in (lambda: ours.linear_chain(chain[0], chain[1][:5]), lambda: ours.linear_chain(jnp.ones((3, 3)), jnp.ones((5, 2, 3))),
                 lambda: ours.gru(net, jnp.ones((5, 2, 4))), lambda: ours.gru({}, jnp.ones((5, 2, 3))),
                 lambda: ours.gru(net, jnp.ones((5, 2, 3)), jnp.ones((1, 3, 4))), lambda: ours.rnn(net, jnp.ones((5, 3)), nonlinearity="x"),
                 lambda: ours.linear_chain(jnp.ones((5, 3), int), jnp.ones((5, 3), int))):
        with pytest.raises(Exception, match="wanted") as caught:  # fmt: skip
            call()
        assert isinstance(caught.value, deeppcr.Error) or "ArgumentError" in str(caught.value)
