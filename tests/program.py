# SPDX-License-Identifier: MIT
"""What tests of the program share in Python, by the standard library alone. program.bash makes it found; the program and a folder
that ends with the test are the first two arguments."""
import ast
import json
import math
import os
import resource
import struct
import subprocess
import sys
import time
import zipfile

program, folder = sys.argv[1:3]
always = []  # the arguments that every call begins with
LETTERS = {"F32": "f", "F64": "d", "U8": "B", "U32": "I", "U64": "Q", "I64": "q", "F16": "e", "I16": "h"}
CIFAR = ["data_batch_%d.bin" % k for k in range(1, 6)] + ["test_batch.bin"]
counted = 0


# ---- the program ----


def words(*arguments):
    return [program, *always, *map(str, arguments)]


def ended(status, *arguments, data=None, timeout=600, **more):
    """What subprocess.run tells of a call that ends with that exit status, or one of several. `data`: its standard input."""
    global counted
    counted += 1
    given = {"input": data} if data is not None else {"stdin": subprocess.DEVNULL}
    done = subprocess.run(words(*arguments), capture_output=True, timeout=timeout, **given, **more)
    assert done.returncode in (status if type(status) is tuple else (status,)), (arguments, done.returncode, done.stdout[-300:], done.stderr)
    return done


def calls():
    return counted


def until_asleep(child):
    """Waits until a process of one thread only waits itself: at five looks one after the other."""
    asleep = 0
    for _ in range(6000):
        assert child.poll() is None, child.returncode
        with open("/proc/%d/stat" % child.pid) as file:
            asleep = asleep + 1 if file.read().rsplit(")", 1)[1].split()[0] == "S" else 0
        if asleep == 5: return
        time.sleep(0.1)
    raise AssertionError("it never waits")


def stopped_within(seconds, begun, *arguments):
    """A call that is terminated once begun() holds ends so, with no more than these seconds of its processor's."""
    child = subprocess.Popen(words(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def used():
        with open("/proc/%d/stat" % child.pid) as file:
            return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    while not begun(used()):
        assert child.poll() is None, (arguments, child.communicate())
        time.sleep(0.02)
    before, others = used(), resource.getrusage(resource.RUSAGE_CHILDREN)
    child.terminate()
    out, said = child.communicate(timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert child.returncode == 143 and out == b"" and is_one_line(said) and b"stopped as asked" in said, (arguments, child.returncode, out, said)
    spent = after.ru_utime + after.ru_stime - others.ru_utime - others.ru_stime - before
    assert spent < seconds, (arguments, spent)


def run(*arguments, **more):
    """Standard output, as bytes, of a call that succeeds without a word on standard error."""
    done = ended(0, *arguments, **more)
    assert done.stderr == b"", (arguments, done.stderr)
    return done.stdout


def read_json(data):
    """One object, without what JSON does not have: NaN and infinity."""
    def no(name):
        raise ValueError(name)

    out = json.loads(data, parse_constant=no)
    assert type(out) is dict, out
    return out


def answer(*arguments, **more):
    """The object that a call tells with --json."""
    return read_json(run(*arguments, "--json", **more))


def is_one_line(text):
    return text.count(b"\n") == 1 and text.endswith(b"\n") and text.startswith(b"deeppcr")


def refused(status, text, *arguments, **more):
    """The line on standard error that a refused call says, `text` in it, and nothing on standard output."""
    done = ended(status, *arguments, **more)
    assert done.stdout == b"" and is_one_line(done.stderr), (arguments, done.stdout[-300:], done.stderr)
    line = done.stderr.decode()
    assert text in line, (arguments, text, line)
    return line


# ---- files ----


def path(*names):
    return os.path.join(folder, *names)


def put(name, data):
    """A file, and its folder."""
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    with open(path(name), "wb") as file:
        file.write(data)
    return path(name)


def content(*names):
    with open(path(*names), "rb") as file:
        return file.read()


def npy(shape, values, letter="d"):
    """What a npy file of doubles (d) or floats (f) holds."""
    head = "{'descr': '<f%d', 'fortran_order': False, 'shape': (%s), }" % (struct.calcsize(letter), "".join("%d," % n for n in shape))
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%d%s" % (len(values), letter), *values)


def read_npy(data):
    """Shape, values and letter; no byte too many or too few."""
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    length = struct.unpack("<H", data[8:10])[0]
    head = ast.literal_eval(data[10:10 + length].decode())
    assert (10 + length) % 64 == 0 and not head["fortran_order"], head
    letter, shape = {"<f4": "f", "<f8": "d"}[head["descr"]], head["shape"]
    return shape, struct.unpack("<%d%s" % (math.prod(shape), letter), data[10 + length:]), letter


def put_npy(name, *array):
    return put(name, npy(*array))


def get_npy(name):
    return read_npy(content(name))


def get_npz(name):
    """The arrays of an npz file by their names."""
    with zipfile.ZipFile(path(name)) as archive:
        return {member[:-4]: read_npy(archive.read(member)) for member in archive.namelist()}


def put_npz(name, shapes, values, letter="d"):
    """A npz file of such arrays, by names; `letter`: of all, or by names."""
    with zipfile.ZipFile(path(name), "w") as archive:
        for key in shapes:
            archive.writestr(key + ".npy", npy(shapes[key], values[key], letter if type(letter) is str else letter[key]))
    return path(name)


def safetensors(name):
    """The strings, and of each tensor shape, bytes and letter; the bytes side by side and no others."""
    data = content(name)
    length = struct.unpack("<Q", data[:8])[0]
    head, body = json.loads(data[8:8 + length]), data[8 + length:]
    strings, out, seen = head.pop("__metadata__", {}), {}, 0
    for key, item in sorted(head.items(), key=lambda pair: pair[1]["data_offsets"]):
        a, b = item["data_offsets"]
        letter = LETTERS[item["dtype"]]
        assert a == seen and b - a == math.prod(item["shape"]) * struct.calcsize(letter), (name, key, item)
        out[key], seen = (tuple(item["shape"]), body[a:b], letter), b
    assert seen == len(body), (name, seen, len(body))
    return strings, out


def put_safetensors(name, strings, items):
    """The other way round."""
    types, head, body = {letter: dtype for dtype, letter in LETTERS.items()}, {"__metadata__": strings}, b""
    for key, (shape, data, letter) in sorted(items.items(), key=lambda item: -struct.calcsize(item[1][2])):
        head[key] = {"dtype": types[letter], "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    return put(name, struct.pack("<Q", len(text)) + text + body)


def put_older(name, newer, *keys):
    """That file without these strings, as a program before they were kept left it; without its checksum."""
    strings, items = safetensors(newer)
    for key in (*keys, "deeppcr.checksum"):
        del strings[key]
    return put_safetensors(name, strings, items)


def tensors(name):
    """The same with their values."""
    strings, out = safetensors(name)
    return strings, {key: (shape, struct.unpack("<%d%s" % (math.prod(shape), letter), data), letter) for key, (shape, data, letter) in out.items()}


def idx(dims, data):
    return struct.pack(">%dI" % (1 + len(dims)), 0x800 | len(dims), *dims) + data


def put_images(where, split, sides, pixels, labels):
    """One split ("train", "t10k") of a data set as MNIST's files are, images of sides[0] x sides[1]."""
    put(os.path.join(where, split + "-images-idx3-ubyte"), idx((len(labels), *sides), bytes(pixels)))
    put(os.path.join(where, split + "-labels-idx1-ubyte"), idx((len(labels),), bytes(labels)))


def put_cifar(where, counts, picture, classes=10):
    """CIFAR-10's files: in each so many records, a label, all in turn, and the 3072 bytes of picture(label)."""
    for name, count in zip(CIFAR, counts):
        put(os.path.join(where, name), b"".join(bytes([i % classes]) + picture(i % classes) for i in range(count)))


# ---- numbers ----


def near(what, got, wanted, tolerance, least=None):
    """The same shape, letter where both have one, and no value, nor a NaN, further than `tolerance`; times the largest of the
    values wanted and `least`, where that is given."""
    assert len(got) < 3 or len(wanted) < 3 or got[2] == wanted[2], (what, got[2], wanted[2])
    assert tuple(got[0]) == tuple(wanted[0]) and len(got[1]) == len(wanted[1]), (what, got[0], wanted[0])
    size = 1 if least is None else max([least] + [abs(x) for x in wanted[1]])
    for i, (x, y) in enumerate(zip(got[1], wanted[1])):
        assert abs(x - y) <= tolerance * size, (what, i, x, y)
