# SPDX-License-Identifier: MIT
"""ONNX models of recurrent nodes as bytes, by the standard library alone: the fields of onnx.proto that the tests need."""
import struct


def varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def number(field, n):
    return varint(field << 3) + varint(n)


def block(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def halves(values, kind):
    """Bits of float16 (10), or of bfloat16, which are a float's first two bytes."""
    packed = [struct.pack("<e" if kind == 10 else "<f", v)[-2:] for v in values]
    return [struct.unpack("<H", p)[0] for p in packed]


def tensor(name, shape, values, form="raw", kind=1):
    """kind: 1 float, 6 int32, 7 int64, 10 float16, 11 double, 16 bfloat16. form: raw, packed, single, or (location, offset,
    length)."""
    out = b"".join(number(1, n) for n in shape) + number(2, kind) + block(8, name)
    letter, field, wire = {1: ("f", 4, 5), 6: ("i", 5, 0), 7: ("q", 7, 0), 10: ("H", 5, 0), 11: ("d", 10, 1), 16: ("H", 5, 0)}[kind]
    if kind in (10, 16):
        values = halves(values, kind)
    if isinstance(form, tuple):
        pairs = zip(("location", "offset", "length"), form)
        return out + b"".join(block(13, block(1, k) + block(2, v)) for k, v in pairs if v is not None) + number(14, 1)
    if kind in (10, 16) and form == "single":
        return out + b"".join(number(field, v) for v in values)
    if kind in (6, 7, 10, 16) and form != "raw":
        return out + block(field, b"".join(varint(v) for v in values))
    if form == "single":
        return out + b"".join(varint(field << 3 | wire) + struct.pack("<" + letter, v) for v in values)
    return out + block(9 if form == "raw" else field, struct.pack("<%d%s" % (len(values), letter), *values))


def attribute(name, value):
    out = block(1, name)
    if isinstance(value, float):
        return out + varint(2 << 3 | 5) + struct.pack("<f", value) + number(20, 1)
    if isinstance(value, int):
        return out + number(3, value) + number(20, 2)
    if isinstance(value, str):
        return out + block(4, value) + number(20, 3)
    if isinstance(value, bytes):
        return out + block(5, value) + number(20, 4)
    if isinstance(value[0], str):
        return out + b"".join(block(9, v) for v in value) + number(20, 8)
    return out + b"".join(number(8, v) for v in value) + number(20, 7)


def node(kind, inputs, outputs, name="", domain=None, **attributes):
    return (b"".join(block(1, n) for n in inputs) + b"".join(block(2, n) for n in outputs) + block(3, name) + block(4, kind)
            + b"".join(block(5, attribute(k, v)) for k, v in attributes.items()) + (block(7, domain) if domain else b""))


def info(name, shape):
    dims = b"".join(block(1, number(1, n) if isinstance(n, int) else block(2, n)) for n in shape)
    return block(1, name) + block(2, block(1, number(1, 1) + block(2, dims)))


def model(nodes, tensors, infos=(), opset=14):
    graph = (b"".join(block(1, n) for n in nodes) + block(2, "graph") + b"".join(block(5, t) for t in tensors)
             + b"".join(block(11, i) for i in infos))
    return number(1, 8) + block(2, "deeppcr's tests") + block(7, graph) + block(8, block(1, "") + number(2, opset))


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def weights(kind, directions, hidden, inputs, w, r, b=None, form="raw", data=1, prefix=""):
    """W, R (and B) as tensors: each a value for all entries, a value a direction, or a list."""
    def values(given, count):
        if isinstance(given, (int, float)):
            return [given] * (directions * count)
        return [v for v in given for _ in range(count)] if len(given) == directions and count > 1 else list(given)

    rows = GATES[kind] * hidden
    out = [tensor(prefix + "W", (directions, rows, inputs), values(w, rows * inputs), form, data),
           tensor(prefix + "R", (directions, rows, hidden), values(r, rows * hidden), form, data)]
    if b is not None:
        out.append(tensor(prefix + "B", (directions, 2 * rows), values(b, 2 * rows), form, data))
    return out
