# SPDX-License-Identifier: MIT
"""What the tests of solve selective and solve attention share in Python."""
from program import path, refused


def refuse_options(file, gradient):
    """What the options of either do not say, or say twice. `file`: the input, `gradient`: a loss's by the output."""
    usual = ["--input", file, "--output", path("y.npy")]
    refused(2, "no --input", *usual[2:])
    refused(2, "standard input", "--input", "-", *usual[2:])
    refused(2, "nothing would be kept", "--input", file)
    refused(2, "want --grads", *usual, "--grad-output", gradient)
    refused(2, "wants --grad-output", *usual, "--grads", path("g.npz"))
    refused(2, "--grads wants a file", "--input", file, "--grads", "-", "--grad-output", gradient)
    refused(2, "twice", "--input", file, "--output", "-", "--json")
    refused(2, "twice", "--input", file, "--output", "-", "--final", "-")
    refused(2, "named twice", *usual, "--final", path("y.npy"))
    refused(2, "to be written over", "--input", file, "--output", file)
    refused(2, "to be written over", *usual, "--grad-output", gradient, "--grads", gradient)
    refused(2, "names a member of a file", "--input", file, "--output", path("o.npz:y"))
    refused(2, "holds one array only", *usual, "--grad-output", "-", "--grad-final", "-", "--grads", path("g.npz"))
    refused(2, "unexpected argument", *usual, "more")
    refused(4, "no/y.npy", "--input", file, "--output", path("no/y.npy"))
    refused(5, "absent.npz", "--input", path("absent.npz"), "--output", path("y.npy"))
