# SPDX-License-Identifier: MIT
"""Threads, fork, Ctrl-C, memory: what a process around the library may do."""
import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest

import deeppcr
from deeppcr import _library


def chain(rng, length=2000):
    return rng.normal(size=(length, 3, 3)) * 0.4, rng.normal(size=(length, 3))


def test_threads_at_once(rng):
    problems = [chain(rng, 500 + 100 * i) for i in range(8)]
    wanted = [deeppcr.linear_chain(*p) for p in problems]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for got, right in zip(pool.map(lambda p: deeppcr.linear_chain(*p), problems * 4), wanted * 4):
                assert np.array_equal(got, right)


def test_number_of_threads_changes_no_bit(rng):
    problem = chain(rng, 20000)
    before, results = deeppcr.threads(), []
    try:
        for count in (1, 2, 3):
            deeppcr.set_threads(count)
            assert deeppcr.threads() == count
            results.append(deeppcr.linear_chain(*problem))
    finally:
        deeppcr.set_threads(0)
    assert deeppcr.threads() == before
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])
    for count in (-1, 4097):
        with pytest.raises(deeppcr.ArgumentError, match="4096"):
            deeppcr.set_threads(count)
        assert deeppcr.threads() == before  # and calls go on


@pytest.mark.parametrize("scheme", ["sequential", "chunked", "overlap"])
def test_denormals_are_flushed_when_asked(scheme):
    n = 20000
    A, b = np.full((n, 1), 0.5, np.float32), np.zeros((n, 1), np.float32)
    b[::500] = 1
    was = deeppcr.flush_denormals(False)
    if was is None:
        pytest.skip("x86-64 only")
    try:
        kept = deeppcr.linear_chain(A, b, scheme=scheme)
        assert deeppcr.flush_denormals() is False
        flushed = deeppcr.linear_chain(A, b, scheme=scheme)
        assert deeppcr.flush_denormals(False) is True
    finally:
        deeppcr.flush_denormals(was)
    least = np.finfo(np.float32).tiny
    assert ((kept > 0) & (kept < least)).any()
    np.testing.assert_array_equal(flushed, np.where(kept < least, np.float32(0), kept))
    with pytest.raises(deeppcr.ArgumentError, match="flush"):
        deeppcr.flush_denormals("no")


@pytest.mark.parametrize("function", ["selective_scan", "selective_adjoint", "attention_scan", "attention_adjoint"])
def test_a_scan_has_its_context_until_it_ends(function, monkeypatch):
    """Another thread may set the number of threads meanwhile."""
    few, steps, q = np.ones((1, 16, 3)), np.ones((1, 64, 3)), np.ones((1, 3, 1, 4))
    run, scan, A = getattr(_library.lib, "dpcr_" + function), function.startswith("selective"), -np.ones((16, 64))

    def meanwhile(*arguments):
        deeppcr.set_threads(0)
        assert held() is not None
        return run(*arguments)

    monkeypatch.setattr(_library.lib, "dpcr_" + function, meanwhile)
    deeppcr.set_threads(0)  # a context that nothing else has
    held = weakref.ref(_library.context.get())
    if function.endswith("adjoint"):
        deeppcr.selective_scan_vjp(few, few, A, steps, steps, few) if scan else deeppcr.linear_attention_vjp(q, q, q, q)
    else:
        deeppcr.selective_scan(few, few, A, steps, steps) if scan else deeppcr.linear_attention(q, q, q)
    assert held() is None


def test_numbers_of_threads_leave_none_behind():
    child = python("""
        import os, time, numpy as np, deeppcr
        A, b = np.full((200000, 2, 2), 0.3), np.ones((200000, 2))
        running = []
        for count in (2, 3, 2, 3, 2, 3):
            deeppcr.set_threads(count)
            deeppcr.linear_chain_vjp(A, deeppcr.linear_chain(A, b, scheme="chunked"), b, scheme="chunked")
            until = time.monotonic() + 10  # a thread that has ended may be listed for a moment
            while len(running) > 1 and len(os.listdir("/proc/self/task")) > running[-2] and time.monotonic() < until:
                time.sleep(0.001)
            running.append(len(os.listdir("/proc/self/task")))
        assert running[4] <= running[0] and running[5] <= running[1], running
        print("done")
    """)
    out, said = finished(child)
    assert out == "done\n", said


def python(code, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True, **options)  # fmt: skip


def finished(child):
    """What it printed; a child that hangs goes, with its own children."""
    try:
        return child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise


def test_the_library_may_lie_in_any_folder_of_the_package(tmp_path):
    """As after `pip install --editable`: modules in the tree, the library in site-packages."""
    modules, library = tmp_path / "modules", pathlib.Path(_library.lib._name)
    if not library.exists():
        pytest.skip("the library is the system's")
    shutil.copytree(pathlib.Path(deeppcr.__file__).parent, modules, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if library.name != "libdeeppcr.so":
        (tmp_path / "libdeeppcr.so").symlink_to(library.resolve())
        library = tmp_path / "libdeeppcr.so"
    child = python(f"""
        import importlib.util, os, sys
        os.environ.pop("DEEPPCR_LIBRARY", None)
        folders = [{str(modules)!r}, {str(library.parent)!r}]
        spec = importlib.util.spec_from_file_location("deeppcr", folders[0] + "/__init__.py", submodule_search_locations=folders)
        sys.modules["deeppcr"] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
        print(package._library.lib._name)
    """)
    out, said = finished(child)
    assert out and pathlib.Path(out.strip()).samefile(library), said


@pytest.mark.parametrize("last, wrong", [(0, 1), (1, 1), (2, 0)])
def test_the_library_is_of_this_version(tmp_path, last, wrong):
    """But for the last of its numbers."""
    numbers = deeppcr.__version__.split(".")
    numbers[last] = str(int(numbers[last]) + 7)
    other = ".".join(numbers)
    shutil.copytree(pathlib.Path(deeppcr.__file__).parent, tmp_path / "deeppcr", ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "deeppcr" / "__init__.py"
    module.write_text(module.read_text().replace(f'__version__ = "{deeppcr.__version__}"', f'__version__ = "{other}"'))
    child = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import deeppcr; print(deeppcr.__version__)")
    out, said = finished(child)
    if wrong:
        path = os.environ.get("DEEPPCR_LIBRARY", "libdeeppcr.so")
        assert not out and "ImportError: deeppcr: the library" in said and path in said, said
        assert f"is of version {deeppcr.__version__}, wanted {other}" in said, said
    else:
        assert out.strip() == other, said


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="its own locks do not survive a fork among threads")
def test_children_after_fork():
    child = python("""
        import os, threading, numpy as np, deeppcr
        A, b = np.full((50000, 2, 2), 0.3), np.ones((50000, 2))
        wanted = deeppcr.linear_chain(A, b)
        busy = threading.Thread(target=lambda: [deeppcr.linear_chain(A, b) for _ in range(300)])
        busy.start()  # a fork in the middle of other threads' calls
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                good = all(np.array_equal(deeppcr.linear_chain(A, b, scheme=s), wanted) for s in ("auto", "auto"))
                os._exit(0 if good else 1)
            assert os.waitpid(pid, 0)[1] == 0
        busy.join()
        assert np.array_equal(deeppcr.linear_chain(A, b), wanted)
        print("done")
    """)
    out, err = finished(child)
    assert child.returncode == 0 and out.strip() == "done", err


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="its own locks do not survive a fork among threads")
def test_a_child_takes_over_a_plan_that_another_thread_was_in():
    child = python("""
        import os, signal, threading, numpy as np, deeppcr
        inside, go_on, parent = threading.Event(), threading.Event(), os.getpid()
        def step(z, l):
            if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
                inside.set()
                go_on.wait()
            return .5 * z + 1
        plan = deeppcr.plan(step, np.ones(2), 50, method="sequential")
        wanted, found = plan.solve(np.ones(2)).z, []
        busy = threading.Thread(target=lambda: found.append(plan.solve(np.ones(2), progress=found.append).z))
        busy.start()
        inside.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            os._exit(0 if np.array_equal(plan.solve(np.ones(2)).z, wanted) and not found else 1)
        assert os.waitpid(pid, 0)[1] == 0
        go_on.set()
        busy.join()
        assert np.array_equal(found[-1], wanted) and plan.solve(np.ones(2)).z.shape == wanted.shape
        print("done")
    """)
    out, err = finished(child)
    assert child.returncode == 0 and out.strip() == "done", err


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="it sees threads that never end")
def test_daemons_at_work_when_python_ends():
    """They ask still whether to stop when the package's modules are gone; an object that goes late leaves them the time."""
    children = [python("""
        import sys, threading, time, numpy as np, deeppcr
        A, b = np.full((1, 64, 64), 0.01), np.ones((1_000_000, 64))
        class Late:
            def __del__(self, sleep=time.sleep):
                sleep(1)
        sys.late = Late()
        threading.Thread(target=lambda: [deeppcr.linear_chain(A, b, scheme="sequential") for _ in range(100)], daemon=True).start()
        time.sleep(0.2)
        print("done")
    """) for _ in range(2)]  # fmt: skip
    for child in children:
        out, said = finished(child)
        assert out == "done\n" and child.returncode == 0, (child.returncode, said)


# Processor time, which other work on the machine does not stretch, from Ctrl-C to the exception; and which function raised it.
INTERRUPTED = """
    import os, signal, sys, threading, time, traceback
    import numpy as np, deeppcr
    from deeppcr import recurrent
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
    deeppcr.set_threads(1)
    slower = 8 if "asan" in os.environ.get("LD_PRELOAD", "") else 1  # by more than that
    def interrupted(call, wait):
        pressed, ready = [], threading.Event()
        def press():
            ready.wait()
            begin = time.process_time()
            while time.process_time() < begin + wait:
                time.sleep(0.001)
            pressed.append(time.process_time())
            os.kill(os.getpid(), signal.SIGINT)
        thread = threading.Thread(target=press)
        thread.start()
        try:
            while True:
                call(ready.set)
        except KeyboardInterrupt as raised:
            took = time.process_time() - pressed[0]
            thread.join()
            return took, traceback.extract_tb(raised.__traceback__)[-1].name
    def heard(call, by, interrupted=interrupted):
        for attempt in range(30):  # it may come between two calls, at the end of one that is soon over, or while memory is asked
            took, where = interrupted(call, 0.004 * (1 + attempt))  # for, which under ASan takes long
            if where in by:
                print("took", took)
                return
        sys.exit(f"heard in {where} only")
"""


def ends_soon(code):
    out, said = finished(python(INTERRUPTED + code))
    assert out.startswith("took ") and "done" in out and "ignored" not in said, said
    assert float(out.split()[1]) < (1 if "asan" not in os.environ.get("LD_PRELOAD", "") else 10), out


@pytest.mark.parametrize("method", ["sequential", "jacobi", "overlap"])
def test_ctrl_c_ends_a_solve_with_a_python_step(method):
    ends_soon(f"""
    def call(begun):
        def step(z, l):
            begun() if l.max() > 100 else None
            return np.cos(z + 1.5)
        deeppcr.solve(step, np.ones(2), 20_000_000, method={method!r}, max_sweeps=1000, window=1_000_000)
    heard(call, ["interrupt", "_run"])
    A = np.full((9, 1), 0.5)
    assert deeppcr.linear_chain(A, A)[0, 0] == 0.5
    print("done")
    """)


@pytest.mark.parametrize("method", ["sequential", "overlap", "auto", "newton"])
def test_ctrl_c_ends_a_network(method):
    ends_soon(f"""
    net = recurrent.GRU(1, 8 if {method!r} == "newton" else 128, method={method!r})
    x = np.zeros((100_000 // slower, 1, 1), "f")
    net(x)  # it is planned then
    def call(begun):
        begun()
        net(x)
    heard(call, ["interrupt"])
    assert net(x[:10])[0].shape[0] == 10
    print("done")
    """)


@pytest.mark.parametrize("method", ["sequential", "overlap"])
def test_ctrl_c_ends_a_network_on_its_way_back(method):
    ends_soon(f"""
    net, x = recurrent.GRU(1, 128, method={method!r}), np.zeros((30_000 // slower, 1, 1), "f")
    net(x, training=True)
    def call(begun):
        y, _ = net(x, training=True)
        begun()
        net.backward(y)
    heard(call, ["interrupt"])
    net(x[:10], training=True)
    assert net.backward(np.ones((10, 1, 128), "f")).x.shape == (10, 1, 1)
    print("done")
    """)


@pytest.mark.parametrize("scheme, audited", [("sequential", False), ("overlap", False), ("sequential", True)])
def test_ctrl_c_ends_a_linear_chain(scheme, audited):
    """Audit hooks in Python, which other packages install, must have no part in asking: a SIGINT would tear one away, in CPython 3.14."""
    ends_soon(f"""
    if {audited}:
        sys.addaudithook(lambda event, arguments: None)
    A, b, scheme = np.full((1, 64, 64), 0.01), np.ones((300_000, 64)), {scheme!r}
    def call(begun):
        begun()
        deeppcr.linear_chain(A, b, scheme=scheme)
    heard(call, ["interrupt"])
    assert deeppcr.linear_chain(A, b[:3])[0, 0] == 1
    print("done")
    """)


@pytest.mark.parametrize("call", ["scan(x, x, -A, B, B)", "scan_vjp(x, x, -A, B, B, x)"])
def test_ctrl_c_ends_a_selective_scan(call):
    ends_soon(f"""
    A, few = np.ones((16, 64)), np.ones((1, 16, 3))
    x, B = (np.broadcast_to(np.full(1, 0.1), (1, n, 300_000)) for n in (16, 64))
    def call(begun):
        begun()
        deeppcr.selective_{call}
    heard(call, ["interrupt"])
    assert deeppcr.selective_scan(few, few, -A, np.ones((1, 64, 3)), np.ones((1, 64, 3)))[0, 0, 0] == 64
    print("done")
    """)


@pytest.mark.parametrize("call", ["(x, x, x, g, g)", "_vjp(x, x, x, x, g, g)"])
def test_ctrl_c_ends_linear_attention(call):
    ends_soon(f"""
    x, g = (np.broadcast_to(np.full(1, value), shape) for value, shape in ((0.1, (1, 300_000, 2, 64)), (-0.1, (1, 300_000, 2))))
    def call(begun):
        begun()
        deeppcr.linear_attention{call}
    heard(call, ["interrupt"])
    assert deeppcr.linear_attention(*[np.ones((1, 3, 1, 4))] * 3, scale=1)[0, 0, 0, 0] == 4
    print("done")
    """)


@pytest.mark.parametrize("call", ["lfilter(taps, poles, x)", "lfilter_vjp(taps, poles, x, y)", "sosfilt(np.tile([1, 0, 0, 1, -0.5, 0.1], (200, 1)), x)"])
def test_ctrl_c_ends_a_filter(call):
    ends_soon(f"""
    from deeppcr import signal as filters
    taps, poles, x, y = np.ones(129), np.eye(129)[0], np.ones(3), np.ones(3)
    poles[128] = -0.999
    filters.{call}  # the filter is made then
    x, y = np.ones(1_000_000), np.ones(1_000_000)
    def call(begun):
        begun()
        filters.{call}
    heard(call, ["interrupt"])
    assert filters.lfilter([1.0], [1.0], x[:3])[0] == 1
    print("done")
    """)


@pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists() or "asan" in os.environ.get("LD_PRELOAD", ""),
                    reason="no /proc, or memory has no limit")  # fmt: skip
def test_memory_that_the_system_refuses_is_told_so():
    """What is given fits, a copy of it or a result does not."""
    child = python("""
        import resource, numpy as np, deeppcr
        from deeppcr import recurrent, signal
        deeppcr.set_threads(1)
        A, sos, net = np.float32(0.5), np.array([[0.1, 0.2, 0.1, 1, -1.1, 0.4]]), recurrent.GRU(1, 1, method="sequential")
        x, few = np.zeros((40_000_000, 1), np.float32), np.ones((4, 1), np.float32)  # 160 MB, pages that nobody wrote
        lfilter = lambda b, a: (signal.lfilter(b, a, few[:, 0]), signal.lfilter_vjp(b, a, few[:, 0], few[:, 0]))
        calls = {
            "doubles": lambda: deeppcr.linear_chain(A, x, np.zeros(1)), "A": lambda: deeppcr.linear_chain(x[:, 0], x, np.zeros(1)),
            "vjp": lambda: deeppcr.linear_chain_vjp(A, x, x),
            "jvp": lambda: deeppcr.linear_chain_jvp(A, x, db=few[:1]), "db": lambda: deeppcr.linear_chain_jvp(0.5, few[:0].astype(float), db=x),
            "sosfilt": lambda: signal.sosfilt(sos, x[:, 0]), "axis": lambda: signal.sosfilt(sos.astype("f"), x.reshape(2, -1, 2), 1),
            "complex": lambda: signal.sosfilt(sos, x[:, 0].view(np.complex64)), "lfilter": lambda: signal.lfilter([1.0], [1.0, 0.5], x[:, 0]),
            "lfilter_vjp": lambda: signal.lfilter_vjp([1.0], [1.0, 0.5], x[:, 0], x[:, 0]),
            "scan": lambda: deeppcr.selective_scan(*[x.reshape(1, 1, -1)] * 2, -np.ones((1, 1)), *[x.reshape(1, 1, -1)] * 2),
            "attention": lambda: deeppcr.linear_attention(*[x.reshape(1, -1, 1, 1)] * 3),
            "network": lambda: net(x), "training": lambda: net(x, training=True),
            "solve": lambda: deeppcr.solve(lambda z, l: z, few[0], len(x), guess=x), "z0": lambda: deeppcr.solve(lambda z, l: z, x[:, 0], 1),
        }
        lfilter([1.0], [1.0, 0.5])  # what is made once is made
        net(few, training=True)
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 100_000_000,) * 2)
        for name, call in calls.items():
            try:
                call()
            except deeppcr.OutOfMemory:
                pass
            except Exception as error:
                print(name, type(error).__name__, error)
            else:
                print(name, "ran")
        print("done")
    """)
    out, said = finished(child)
    assert out == "done\n", out + said


@pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists() or "asan" in os.environ.get("LD_PRELOAD", ""),
                    reason="no /proc, or memory is kept on purpose")  # fmt: skip
def test_no_leak_over_many_calls(rng):
    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    A, b = chain(rng, 64)
    g = rng.normal(size=b.shape)
    from deeppcr import recurrent, signal

    net, x = recurrent.LSTM(3, 4, 2), np.ones((8, 2, 3), np.float32)

    def calls(count):
        for i in range(count):
            z = deeppcr.linear_chain(A, b)
            if i % 10 == 0:
                deeppcr.linear_chain_vjp(A, z, g)
                deeppcr.linear_chain(A[: i % 64], b[: i % 64], scheme="pcr")
                y, _ = net(x[: 1 + i % 8], training=True)
                if i % 20:  # the others are dropped
                    net.backward(y)
                signal.lfilter([1.0, i], [1.0, 0.5], b, 0)
                signal.lfilter_vjp([1.0, i], [1.0, 0.5], b, b, 0)
            if i % 100 == 0:
                deeppcr.solve(lambda z, l: 0.5 * z + 1, np.ones(1 + i % 7), 50)
                with pytest.raises(deeppcr.Error):
                    deeppcr.linear_chain(A, b, scheme="no")

    calls(2000)
    before = resident()
    calls(10000)
    assert resident() - before < 4 << 20


def test_buffers_have_room_where_they_begin():
    from deeppcr import _library

    for size in (1, 63, 64, 100, 1000, 100000):
        for _ in range(3):
            buffer = _library.take(size)
            begin = _library.aligned(buffer)
            assert begin % 64 == 0 and begin + size <= buffer.ctypes.data + buffer.nbytes
            _library.give(buffer[: size + 64])  # one that only just serves is the next to be taken


def test_the_collector_may_drop_a_pass_anywhere():
    """A pass in a cycle is finalised wherever the collector runs, also while a buffer is being put away."""
    child = python("""
        import gc, numpy as np, deeppcr.recurrent
        from deeppcr import _library
        net = deeppcr.recurrent.GRU(3, 4)
        net.me = net
        net(np.ones((5, 2, 3), np.float32), training=True)
        del net
        with _library._free_lock:
            gc.collect()
        print("done")
    """)
    assert finished(child)[0] == "done\n"
