# SPDX-License-Identifier: MIT
"""Arrays of others, by DLPack and the buffer protocol: taken where they lie, refused where the processor cannot read them."""
import array

import numpy as np
import pytest

import deeppcr
from deeppcr import _library, recurrent, signal


class Foreign:
    """An array that speaks nothing but DLPack."""

    def __init__(self, values, device=(1, 0)):
        self.values, self.device = values, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)


@pytest.mark.skipif(not hasattr(np, "from_dlpack"), reason="NumPy before 1.22")
def test_what_speaks_dlpack_is_taken_where_it_lies(rng):
    A, b, z0 = rng.normal(size=(9, 2, 2)) * 0.3, rng.normal(size=(9, 2)), rng.normal(size=2)
    assert np.shares_memory(_library.array(Foreign(A)), A)
    z = deeppcr.linear_chain(*map(Foreign, (A, b, z0)))
    assert np.array_equal(z, deeppcr.linear_chain(A, b, z0)) and np.shares_memory(np.from_dlpack(z), z)
    for mine, right in zip(deeppcr.linear_chain_vjp(*map(Foreign, (A, z, b, z0))), deeppcr.linear_chain_vjp(A, z, b, z0)):
        assert np.array_equal(mine, right)
    jvp = deeppcr.linear_chain_jvp(Foreign(A), Foreign(z), db=Foreign(b))
    assert np.array_equal(jvp, deeppcr.linear_chain_jvp(A, z, db=b))
    step = lambda z, l: 0.5 * z + b[l]  # noqa: E731
    assert np.array_equal(deeppcr.solve(step, Foreign(z0), 9).z, deeppcr.solve(step, z0, 9).z)
    assert np.array_equal(signal.lfilter([1.0], [1.0, 0.2], Foreign(b), 0), signal.lfilter([1.0], [1.0, 0.2], b, 0))
    net, x = recurrent.GRU(2, 3), b.astype("f")
    assert np.array_equal(net(Foreign(x))[0], net(x)[0])


@pytest.mark.parametrize("device, name", [((2, 1), "cuda:1"), ((10, 0), "rocm:0"), ((99, 0), "DLPack device 99:0")])
def test_other_devices_are_refused_in_words(rng, device, name):
    b = rng.normal(size=(9, 2))
    for what, call in (("b", lambda x: deeppcr.linear_chain(np.ones((9, 2)), x)), ("x", lambda x: signal.sosfilt([[1, 0, 0, 1, 0, 0]], x)),
                       ("x", lambda x: recurrent.GRU(2, 3)(x)), ("z0", lambda x: deeppcr.solve(lambda z, l: z, x, 3))):  # fmt: skip
        with pytest.raises(deeppcr.UnsupportedError) as caught:
            call(Foreign(b, device))
        assert caught.value.got == name and caught.value.what == f"{what}'s device"


def test_the_buffer_protocol():
    b = array.array("d", [1, 2, 3, 4])
    assert np.array_equal(deeppcr.linear_chain(np.full((4, 1), 0.5), memoryview(b).cast("B").cast("d", (4, 1)))[:, 0], [1, 2.5, 4.25, 6.125])


def test_tensors_of_pytorch(rng):
    torch = pytest.importorskip("torch")
    A, b = torch.randn(9, 2, 2) * 0.3, torch.randn(9, 2)
    z = deeppcr.linear_chain(A, b)
    assert np.array_equal(z, deeppcr.linear_chain(A.numpy(), b.numpy())) and z.dtype == np.float32
    assert _library.array(b).ctypes.data == b.data_ptr() and torch.from_dlpack(z).data_ptr() == z.ctypes.data
    negated = torch.complex(b, b).conj().imag
    assert negated.is_neg() and np.array_equal(_library.array(negated), -b.numpy())
    assert np.array_equal(_library.array(torch.complex(b, b).conj()), (b - 1j * b).numpy())
    assert np.array_equal(deeppcr.linear_chain(A.transpose(1, 2), b), deeppcr.linear_chain(A.transpose(1, 2).numpy(), b.numpy()))
    for bad, what, wanted in ((b.clone().requires_grad_(), "b", "detached"), (b.to(torch.bfloat16), "b's dtype", "NumPy"),
                              (b.to("meta"), "b's device", "memory"), (b.to_sparse(), "b's layout", "to_dense")):  # fmt: skip
        with pytest.raises(deeppcr.Error, match=f"{what} is .*wanted.*{wanted}"):
            deeppcr.linear_chain(A, bad)
    held = type("Held", (torch.Tensor,), {"__torch_dispatch__": classmethod(lambda *_: None)})  # whose own memory is nothing
    with pytest.raises(deeppcr.ArgumentError, match="b is a Held, whose memory is elsewhere; wanted a torch.Tensor"):
        deeppcr.linear_chain(A, torch.Tensor._make_wrapper_subclass(held, b.shape, dtype=b.dtype))
    with pytest.raises(deeppcr.ArgumentError, match="b's layout is torch._mkldnn; wanted a dense one"):
        deeppcr.linear_chain(A, b.to_mkldnn())
    freed = b.clone()
    (freed.untyped_storage() if hasattr(freed, "untyped_storage") else freed.storage()).resize_(0)
    with pytest.raises(deeppcr.ArgumentError, match="b is a Tensor without memory"):
        deeppcr.linear_chain(A, freed)
    assert deeppcr.linear_chain(A[:0], b[:0]).shape == (0, 2)
    if hasattr(torch, "func"):
        with pytest.raises(deeppcr.ArgumentError, match="deeppcr.torch"):
            torch.func.vmap(lambda b: deeppcr.linear_chain(A, b))(torch.ones(2, 9, 2))


@pytest.mark.parametrize("shape", [(0, 2, 4), (5, 0, 4)])
def test_out_without_elements_has_any_strides(shape):
    """NumPy 2.4 calls them 0."""
    out = np.lib.stride_tricks.as_strided(np.empty(shape), shape, (0, 0, 0))
    assert deeppcr.linear_chain(np.ones((1, 1, 4)), np.zeros(shape), structure="diagonal", out=out) is out


def test_arrays_of_jax(rng):
    jnp = pytest.importorskip("jax.numpy")
    A, b = jnp.asarray(rng.normal(size=(9, 2, 2)) * 0.3, jnp.float32), jnp.ones((9, 2), jnp.float32)
    z = deeppcr.linear_chain(A, b)
    assert np.array_equal(z, deeppcr.linear_chain(np.asarray(A), np.asarray(b)))
    with pytest.raises(deeppcr.ArgumentError, match="deeppcr.jax"):
        pytest.importorskip("jax").jit(lambda b: deeppcr.linear_chain(A, b))(b)
    assert _library.array(b).ctypes.data == b.unsafe_buffer_pointer()
