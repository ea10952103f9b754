# SPDX-License-Identifier: MIT
"""Memory that is kept between calls: who has it, when it comes back, how much of it there may be."""
import gc
import threading

import numpy as np
import pytest

from deeppcr import _library as library

LEAST, MOST = library._LENT_BYTES


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(library, "_free", [])
    monkeypatch.setattr(library, "_returned", type(library._returned)(maxlen=library._returned.maxlen))


def memory(array):
    return array.__array_interface__["data"][0]


def test_a_large_results_memory_comes_back_with_its_last_view():
    first = library.empty((3, LEAST // 4), np.float32)
    assert first.shape == (3, LEAST // 4) and first.dtype == np.float32 and first.flags.writeable and memory(first) % 64 == 0
    place, last = memory(first), first[1:].view(np.uint32).T[5:]
    del first
    gc.collect()
    other = library.empty((3, LEAST // 4), np.float32)
    assert memory(other) != place and not library._free and not library._returned  # the view still has it
    last[0, 0] = 7
    del last
    again = library.empty((6, LEAST // 8), np.float32)
    assert memory(again) == place
    assert not np.shares_memory(again, other)


@pytest.mark.parametrize("size", [LEAST - 4, MOST + 4])
def test_other_sizes_are_the_systems(size):
    assert library.empty((size // 4,), np.float32).flags.owndata
    assert not library._returned and not library._free


def test_what_is_kept_is_bounded():
    results = [library.empty((MOST,), np.uint8) for _ in range(9)]
    assert len({memory(r) for r in results}) == 9
    del results
    assert len(library._returned) == library._returned.maxlen
    for _ in range(3):
        for buffer in [library.take(MOST) for _ in range(7)]:
            library.give(buffer)
    assert not library._returned and sum(b.nbytes for b in library._free) <= library._KEPT_BYTES


def test_the_last_one_may_be_the_collector_or_another_thread():
    class Cycle:
        pass

    with library._free_lock:  # as where the collector runs in the middle of take
        one = Cycle()
        one.self, one.array = one, library.np.asarray(library._Lent(np.empty(LEAST + 64, np.uint8), (LEAST,), np.uint8))
        del one
        gc.collect()
    assert len(library._returned) == 1
    held = [library.empty((LEAST,), np.uint8)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert len(library._returned) == 1 and not library._free


def test_a_tensor_has_it_as_long_as_its_storage():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(library.empty((LEAST,), np.uint8))
    part, place = tensor[LEAST // 2 :], tensor.data_ptr()
    del tensor
    assert memory(library.empty((LEAST,), np.uint8)) != place
    numbers = part.numpy()
    del part
    gc.collect()
    assert not any(memory(b) <= place < memory(b) + b.nbytes for b in [*library._free, *library._returned])
    del numbers
    gc.collect()
    assert any(memory(b) <= place < memory(b) + b.nbytes for b in [*library._free, *library._returned])
