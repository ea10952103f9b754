# SPDX-License-Identifier: MIT
import numpy as np
import pytest

import deeppcr
from deeppcr.signal import lfilter, lfilter_vjp, sosfilt, sosfilt_vjp


def direct(b, a, x, z):
    """The definition, along the last axis of x, states z [order] for each channel."""
    p = max(len(a), len(b)) - 1
    b, a = (np.concatenate([c, np.zeros(p + 1 - len(c))]) / a[0] for c in (b, a))
    y, z = np.zeros(x.shape), np.concatenate([z, np.zeros((*z.shape[:-1], 1))], -1)
    for l in range(x.shape[-1]):
        y[..., l] = b[0] * x[..., l] + z[..., 0]
        z[..., :-1] = b[1:] * x[..., l, None] + z[..., 1:] - a[1:] * y[..., l, None]
    return y, z[..., :-1]


SOS = np.array([[0.2, 0.4, 0.2, 1, -0.9, 0.5], [1, -1.5, 1, 1, -1.2, 0.72], [0.5, 0, 0, 1, 0.3, 0]])


@pytest.mark.parametrize("shape, axis", [((500,), -1), ((3, 400), 1), ((400, 3), 0), ((2, 300, 3), 1), ((2, 3, 300), -1)])
def test_sosfilt_is_its_definition(rng, shape, axis):
    x = rng.normal(size=shape)
    state = list(shape)
    state[axis] = 2
    zi = rng.normal(size=(3, *state))
    moved, wanted, last = np.moveaxis(x, axis, -1), np.moveaxis(x, axis, -1), []
    for section, z in zip(SOS, zi):
        wanted, zf = direct(section[:3], section[3:], wanted, np.moveaxis(z, axis, -1))
        last.append(np.moveaxis(zf, -1, axis))
    y, zf = sosfilt(SOS, x, axis, zi)
    assert y.shape == shape and zf.shape == zi.shape
    assert np.allclose(np.moveaxis(y, axis, -1), wanted, rtol=0, atol=1e-11) and np.allclose(zf, last, rtol=0, atol=1e-11)
    half = shape[axis] // 2  # a stream in two pieces
    first, middle = sosfilt(SOS, np.take(x, range(half), axis), axis, zi)
    second, end = sosfilt(SOS, np.take(x, range(half, shape[axis]), axis), axis, middle)
    assert np.allclose(np.concatenate([first, second], axis), y, rtol=0, atol=1e-11) and np.allclose(end, zf)
    assert moved.shape == wanted.shape


@pytest.mark.parametrize("b, a", [([0.3, 0.2, 0.1], [1.0, -0.5]), ([2.0], [2.0, -1.0, 0.6, 0.05]), ([1.0, 2, 3], [4.0]), ([2.0], [0.5])])
def test_lfilter_is_its_definition(rng, b, a):
    x, order = rng.normal(size=(4, 600)), max(len(a), len(b)) - 1
    zi = rng.normal(size=(4, order))
    y, zf = lfilter(b, a, x, zi=zi)
    wanted, last = direct(np.array(b), np.array(a), x, zi)
    assert np.allclose(y, wanted, rtol=0, atol=1e-11) and np.allclose(zf, last, rtol=0, atol=1e-11)
    assert np.allclose(lfilter(b, a, x[0]), direct(np.array(b), np.array(a), x[0], np.zeros(order))[0], rtol=0, atol=1e-11)


def test_dtypes_and_complex(rng):
    x = rng.normal(size=300)
    y = sosfilt(SOS, x)
    assert sosfilt(SOS.astype("f"), x.astype("f")).dtype == np.float32 and sosfilt(SOS, x.astype("f")).dtype == np.float64
    assert np.allclose(sosfilt(SOS, x + 2j * x), y + 2j * y, rtol=0, atol=1e-12)
    zi = rng.normal(size=(3, 2))
    z, zf = sosfilt(SOS, x + 2j * x, zi=zi)
    assert np.iscomplexobj(zf) and np.allclose(z.real, sosfilt(SOS, x, zi=zi)[0])
    assert np.array_equal(sosfilt(SOS, (100 * x).astype(int)), sosfilt(SOS, (100 * x).astype(int).astype(float)))
    assert np.array_equal(sosfilt(SOS, np.repeat(x, 2)[::2]), y) and np.array_equal(sosfilt(SOS, x[::-1].copy()[::-1]), y)
    assert sosfilt(SOS, np.zeros(0)).shape == (0,) and sosfilt(SOS, np.zeros((0, 5))).shape == (0, 5)


def test_either_order_of_bytes(rng):
    b, a, x = np.array([0.3, 0.2]), np.array([1, -0.5, 0.1]), rng.normal(size=9)
    for run, back, given in ((lfilter, lfilter_vjp, (b, a, x)), (sosfilt, sosfilt_vjp, (SOS, x))):
        single, other = ([v.astype(d) for v in given] for d in ("f4", ">f4"))
        for mixed in (other, [*other[:-1], single[-1]], [*single[:-1], other[-1]]):
            for got, wanted in zip((run(*mixed), *back(*mixed, mixed[-1])), (run(*single), *back(*single, single[-1]))):
                assert got.dtype == wanted.dtype and np.array_equal(got, wanted)
        assert run(*single).dtype == back(*single, single[-1])[-1].dtype == np.float32


@pytest.mark.parametrize("what", [np.inf, np.nan])
def test_parts_of_a_complex_signal_keep_apart(rng, what):
    x, zi = rng.normal(size=(2, 9)), rng.normal(size=(3, 2, 2))
    spoilt = np.zeros((2, 9))
    spoilt[:, 5] = what
    for run, start, f in ((sosfilt, zi, [SOS]), (lfilter, zi[0], [[0.3, 0.2], [1.0, -0.5, 0.1]])):
        for real, imag in ((x, spoilt), (spoilt, x)):
            z = real + 0j
            z.imag = imag
            y, zf = run(*f, z, zi=start)
            for part, own, s in ((np.real, real, start), (np.imag, imag, 0 * start)):
                assert all(np.array_equal(part(a), b, equal_nan=True) for a, b in zip((y, zf), run(*f, own, zi=s)))
            assert np.array_equal(run(*f, z).real, run(*f, real), equal_nan=True)
    assert sosfilt(SOS.astype("f"), z.astype("c8")).dtype == np.complex64


def test_gradients_are_differences(rng):
    x, gy, step = rng.normal(size=(3, 40)), rng.normal(size=(3, 40)), 1e-6
    for run, back, given in ((lfilter, lfilter_vjp, [np.array([0.5, -0.2, 0.3]), np.array([2.0, -0.7]), x]), (sosfilt, sosfilt_vjp, [SOS, x])):
        for which, gradient in enumerate(back(*given, gy)):
            for index in np.ndindex(*gradient.shape) if which < len(given) - 1 else [(0, 0), (1, 17), (2, 39)]:
                if run is sosfilt and which == 0 and index[1] == 3:  # it has to be 1
                    assert gradient[index] == 0
                    continue
                ends = []
                for sign in (1, -1):
                    moved = [array.copy() for array in given]
                    moved[which][index] += sign * step
                    ends.append((run(*moved) * gy).sum())
                assert np.isclose(gradient[index], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6)


def test_gradients_over_nothing():
    for shape in ((0,), (3, 0), (0, 3)):
        gs, gx = sosfilt_vjp(SOS, np.zeros(shape), np.zeros(shape))
        assert not gs.any() and gs.shape == SOS.shape and gx.shape == shape
        assert [g.shape for g in lfilter_vjp([2.0], [1.0], np.zeros(shape), np.zeros(shape))] == [(1,), (1,), shape]


def test_refusals(rng):
    x = np.zeros(9)
    for call, what in ((lambda: sosfilt(np.zeros((2, 5)), x), "sos's shape"), (lambda: sosfilt(2 * SOS, x), "sos[0, 3]"),
                       (lambda: sosfilt(SOS, x, 1), "axis"), (lambda: [sosfilt(SOS, x, axis) for axis in (-1, -1, -1.0)], "axis"), (lambda: sosfilt(SOS, x, zi=np.zeros((3, 3))), "zi's shape"),
                       (lambda: sosfilt(SOS, 1.0), "x's shape"), (lambda: lfilter(np.zeros((2, 2)), [1], x), "b's shape"),
                       (lambda: sosfilt(SOS + 0j, x), "sos's dtype"), (lambda: lfilter([1], [1, 1j], x), "a's dtype")):
        with pytest.raises(ValueError) as caught:  # fmt: skip
            call()
        assert isinstance(caught.value, deeppcr.Error) and caught.value.what == what
    for call, what, got in ((lambda: lfilter([1.0], [0.0, 1.0], x), "a[0]", "0.0"), (lambda: lfilter([1, np.nan], [1.0], x), "b[1]", "nan"),
                            (lambda: lfilter([1], [1, np.inf], x), "a[1]", "inf"),
                            (lambda: sosfilt(SOS * [1, 1, 1, 1, np.nan, 1], x), "sos[0, 4]", "nan")):  # fmt: skip
        with pytest.raises(deeppcr.ArgumentError) as caught:
            call()
        assert caught.value.what == what and str(caught.value.got) == got and "number" in caught.value.wanted


def test_scipys_numbers(rng):
    signal = pytest.importorskip("scipy.signal")
    x = rng.normal(size=(2, 48000))
    for sos in (signal.butter(2, 0.1, output="sos"), signal.ellip(8, 0.5, 60, 0.2, output="sos")):
        for axis, array in ((1, x), (0, x.T), (0, np.asfortranarray(x.T))):
            zi = rng.normal(size=(len(sos), 2, 2))
            (y, zf), (wanted, last) = sosfilt(sos, array, axis, zi), signal.sosfilt(sos, array, axis, zi)
            assert np.abs(y - wanted).max() < 1e-10 and np.abs(zf - last).max() < 1e-10 and y.dtype == wanted.dtype
    for order in (1, 4):
        b, a = signal.butter(order, 0.1)
        zi = rng.normal(size=(2, order))
        (y, zf), (wanted, last) = lfilter(b, a, x, zi=zi), signal.lfilter(b, a, x, zi=zi)
        assert np.abs(y - wanted).max() < 1e-9 and np.abs(zf - last).max() < 1e-9
        assert np.abs(lfilter(b, a, x[0]) - signal.lfilter(b, a, x[0])).max() < 1e-9
    assert np.abs(lfilter([1, 2, 3.0], 2.0, x) - signal.lfilter([1, 2, 3.0], 2.0, x)).max() < 1e-12
