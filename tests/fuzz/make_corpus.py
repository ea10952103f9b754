#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes corpus/fuzz_{idx,npy,npz,safetensors,schedule,profile,onnx}/: small files of every kind that the readers take, for the fuzzers to
start from. Standard library only; the same bytes each time.

    python3 tests/fuzz/make_corpus.py
"""
import gzip
import io
import json
import pathlib
import struct
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from onnx_writer import info, model, node, tensor, weights  # noqa: E402

corpus = pathlib.Path(__file__).parent / "corpus"


def save(target, name, data):
    folder = corpus / f"fuzz_{target}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def idx(*shape):
    count = 1
    for extent in shape:
        count *= extent
    return struct.pack(f">I{len(shape)}I", 0x800 | len(shape), *shape) + bytes(i % 7 for i in range(count))


def pair(classes, images, labels):
    return struct.pack("<BH", classes, len(images)) + images + labels


def npy(descr="<f4", shape=(2, 3), fortran=False, version=1):
    count = 1
    for extent in shape:
        count *= extent
    text = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode()
    start = 10 if version == 1 else 12
    text += b" " * (-(start + len(text) + 1) % 64) + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + bytes(i % 256 for i in range(count * int(descr[2:])))


def npz(compression, members, comment=b"", streamed=False):
    class Unseekable(io.BytesIO):  # zipfile then writes data descriptors
        def seekable(self):
            return False

        def seek(self, *_):
            raise OSError

    stream = Unseekable() if streamed else io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.comment = comment
        for name, data in members:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = compression
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(data)
    return stream.getvalue()


def zip64(data):
    """One stored member with every number in its 64-bit form, as beyond 4 GiB."""
    import zlib

    name, full = b"x.npy", 0xFFFFFFFF
    common = struct.pack("<5HIII2H", 45, 0, 0, 0, 33, zlib.crc32(data), full, full, len(name), 20)
    extra = struct.pack("<HHQQ", 1, 16, len(data), len(data))
    member = b"PK\3\4" + common + name + extra + data
    common = common[:-2] + struct.pack("<H", 28)
    extra = struct.pack("<HHQQQ", 1, 24, len(data), len(data), 0)
    central = b"PK\1\2" + struct.pack("<H", 45) + common + struct.pack("<3HII", 0, 0, 0, 0, full) + name + extra
    end64 = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, len(central), len(member))
    locator = b"PK\6\7" + struct.pack("<IQI", 0, len(member) + len(central), 1)
    end = b"PK\5\6" + struct.pack("<4HIIH", 0, 0, 0xFFFF, 0xFFFF, full, full, 0)
    return member + central + end64 + locator + end


def safetensors(header, data_bytes):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(i % 256 for i in range(data_bytes))


def packed(data):
    return gzip.compress(data, mtime=0)


save("idx", "raw", pair(0, idx(3, 2, 4), idx(3)))
save("idx", "classes", pair(10, idx(3, 2, 4), idx(3)))
save("idx", "gzipped", pair(0, packed(idx(3, 2, 4)), packed(idx(3))))
save("idx", "members", pair(0, packed(idx(3, 2, 4)[:20]) + packed(idx(3, 2, 4)[20:]), idx(3)))
save("idx", "unequal", pair(0, idx(3, 2, 4), idx(2)))

save("npy", "f4", npy())
save("npy", "big_endian", npy(">f8", (3,)))
save("npy", "fortran", npy("<u4", (2, 3, 2), fortran=True))
save("npy", "scalar_v2", npy("<f8", (), version=2))
save("npy", "empty_v3", npy("<f4", (0, 3), version=3))

save("npz", "stored", npz(zipfile.ZIP_STORED, [("a.npy", npy()), ("b.npy", npy(">f8", (3,)))]))
save("npz", "deflated", npz(zipfile.ZIP_DEFLATED, [("a.npy", npy()), ("b.npy", npy("<u4", (2, 2), True))]))
save("npz", "comment", npz(zipfile.ZIP_STORED, [("a.npy", npy("<f4", ()))], comment=b"a comment"))
save("npz", "streamed", npz(zipfile.ZIP_DEFLATED, [("a.npy", npy())], streamed=True))
save("npz", "empty", npz(zipfile.ZIP_STORED, []))
save("npz", "zip64", zip64(npy()))

one = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
two = {"dtype": "F64", "shape": [], "data_offsets": [24, 32]}
three = {"dtype": "U32", "shape": [0, 5], "data_offsets": [32, 32]}
save("safetensors", "one", safetensors({"a": one}, 24))
save("safetensors", "three", safetensors({"__metadata__": {"k": "v", "ö": "\n"}, "c": three, "b": two, "a": one}, 32))
save("safetensors", "empty", safetensors({}, 0))
save("safetensors", "twice", safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                                         b'"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', 8))

golden = pathlib.Path(__file__).parent.parent / "golden" / "schedules"
for choice, table in ((0, "zbh1_p2_m4"), (0, "dualpipev_p2_m4"), (0, "int1f1b_p2_m4_v2"), (1, "torch_zb1p_2rank_2stagep_comms"), (4, "1f1b_p2_m4")):
    save("schedule", table, bytes([choice]) + (golden / f"{table}.csv").read_bytes())
save("schedule", "two_chains", b"\x020F0,1F0,0B0,1B0\n")
save("schedule", "halves", b"\x0c0F0,1W0,0I0.1\n1F0,1I0,0I0.2,0W0\n")

figures = "forward_compute_time=2.5, backward_compute_time=6.0, activation_size={}, parameter_size=40.0"
save("profile", "graph", "".join(
    [f"node1 -- Input0 -- {figures.format(1)}\n", f"node2 -- Conv2d(3, 64) -- {figures.format('[1.0; 2.0]')}\n",
     f"node3 -- Add -- {figures.format(3)}, stage_id=1\n", "\tnode1 -- node2\n", "\tnode2 -- node3\n"]).encode())
save("profile", "json", json.dumps({"layers": [
    {"name": "a", "forward": 1, "input": 0, "weight": 2.5, "activation_bytes": 8, "parameter_bytes": 4},
    {"forward": 3, "input": 3, "weight": 3}]}).encode())


def onnx(form, layout=0, directions=1, both=False):
    """Two layers and what exporters write between them; RNN, or GRU and LSTM that do not follow each other."""
    given = {"hidden_size": 2, "layout": layout, "direction": ["forward", "bidirectional"][directions - 1]}
    kinds = ("GRU", "LSTM") if both else ("RNN", "RNN")
    tensors = (weights(kinds[0], directions, 2, 3, .5, .25, .125, form, 11, "1")
               + weights(kinds[1], directions, 2, 2 * directions, .5, .25, None, "raw", 11, "2"))
    between = [node("Transpose", ["Y"], ["t"], perm=[0, 2, 1, 3]),
               node("Constant", [], ["s"], value=tensor("", (3,), (0, 7, -1), form, 7)), node("Reshape", ["t", "s"], ["r"]),
               node("Dropout", ["r"], ["a"])]
    if directions == 1:
        between = [node("Squeeze", ["Y"], ["q"], axes=[1 + layout]), node("Identity", ["q"], ["a"])]
    first = dict(given, linear_before_reset=1) if both else dict(given, activations=["Tanh"] * directions)
    nodes = [node(kinds[0], ["X", "1W", "1R", "1B"], ["Y"], "one", **first), *between,
             node(kinds[1], ["a", "2W", "2R", "", "L", "H"], ["Z"], "two", clip=3.4028234663852886e38, **given)]
    return model(nodes, tensors + [tensor("H", (directions, 1, 2), [0] * 2 * directions, "single", 11)], [info("X", ("T", 7, 3))])


save("onnx", "squeeze", b"\0" + onnx("raw"))
save("onnx", "reshape", b"\0" + onnx("packed", directions=2))
save("onnx", "layout", b"\0" + onnx("single", layout=1))
save("onnx", "kinds", b"\1" + onnx("raw", both=True))
save("onnx", "external", b"\1" + model([node("RNN", ["X", "W", "R"], ["Y"], "one")], [
    tensor("W", (1, 2, 3), [], ("data", "0", "24")), tensor("R", (1, 2, 2), [1] * 4)]))
