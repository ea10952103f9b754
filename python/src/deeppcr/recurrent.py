# SPDX-License-Identifier: MIT
"""RNN, GRU and LSTM over NumPy, with PyTorch's formulas, parameter names and gradients; and kinds whose units do not mix."""
from __future__ import annotations

import math
from typing import Any, Dict, Generic, List, Mapping, NamedTuple, Optional, Tuple, TypeVar, Union

import numpy as np

from . import _library as library
from ._engine import Engine, Form, Pass, refuse_names
from .errors import ArgumentError, flag, one_of, shown
from .nonlinear import METHODS

__all__ = ["GRU", "Gradients", "LSTM", "MinGRU", "ParaGRU", "ParaLSTM", "RNN", "RNNReLU"]

ARRAY = np.ndarray
Pair = Tuple[ARRAY, ARRAY]
States = Union[ARRAY, Pair]
State = TypeVar("State")  # of a kind of networks: one of these


class Gradients(NamedTuple):
    """What `backward` gives: of the inputs, of the initial state (LSTM: a pair), and by name of the parameters."""

    x: ARRAY
    h0: States
    parameters: Dict[str, ARRAY]


def _address(array: Optional[ARRAY]) -> int:
    return 0 if array is None else library.address(array)


def _places(form: Form) -> List[Tuple[str, Tuple[int, ...], int]]:
    """Names, shapes and first bytes of a vector's parts."""
    out, at = [], 0
    for name, shape in form.parameters():
        out.append((name, shape, at))
        at += math.prod(shape) * library.NAMES[form.dtype].itemsize
    return out


class _Recurrent(Generic[State]):
    """A network of `layers` layers, over sequences x [T][B][inputs] (or [T][inputs]).

    Parameters
    ----------
    inputs, hidden : int
        Widths of the inputs and of the state.
    layers : int
    bias, bidirectional : bool
    dtype : float32 or float64
    seed : int
        Of the initialisation, PyTorch's U(-1/sqrt(hidden), 1/sqrt(hidden)); where units do not mix that of torch.nn.Linear for what
        meets the input, U(-1/2, 1/2) for the rest.
    method : str
        How the time steps run, as in `deeppcr.solve`; "auto" looks at the network and its first long sequence.

    Raises
    ------
    ArgumentError
        Of sizes that are none, another dtype, a method that there is not.
    OutOfMemory
    """

    _kind = ""

    def __init__(self, inputs: int, hidden: int, layers: int = 1, *, bias: bool = True, bidirectional: bool = False,
                 dtype: Any = np.float32, seed: int = 0, method: str = "auto") -> None:  # fmt: skip
        kind = library.dtype_of(dtype, "float32 float64")
        self.dtype, self.method = kind, method
        form = Form(self._kind, library.DTYPES[kind], inputs, hidden, layers, flag("bidirectional", bidirectional), flag("bias", bias)).checked()
        try:
            rng = np.random.default_rng(seed)
        except (TypeError, ValueError):
            raise ArgumentError.of("seed", shown(seed), "a whole number, 0 or more") from None
        self._engine = Engine(form)
        self._keep(library.empty((sum(math.prod(shape) for _, shape in form.parameters()),), kind))
        for name, shape, bound in form.bounds():
            self._parameters[name][...] = rng.uniform(-bound, bound, shape)

    def _keep(self, flat: ARRAY) -> None:
        """The parameters, in one vector."""
        self._flat, self._places = flat, _places(self.form)
        self._parameters = self._parts(flat)
        self._at = self._addresses(flat)
        # The last pass with training=True; it keeps its arrays, the addresses of x, h0, c0 and lengths, and whether it was of a single sequence.
        self._waiting: Optional[Pass] = None

    def _parts(self, flat: ARRAY) -> Dict[str, ARRAY]:
        """A vector's parts by name, as views."""
        return {name: np.ndarray(shape, self.dtype, flat, at) for name, shape, at in self._places}

    def _addresses(self, flat: ARRAY) -> List[int]:
        first = library.address(flat)
        return [first + at for _, _, at in self._places]

    def __getstate__(self) -> Dict[str, Any]:
        return {"dtype": self.dtype, "method": self.method, "form": tuple(self.form), "flat": self._flat.copy()}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.dtype, self.method = state["dtype"], state["method"]
        self._engine = Engine(Form(*state["form"]))
        self._keep(state["flat"])

    @property
    def method(self) -> str:
        """How the time steps run."""
        return self._method

    @method.setter
    def method(self, given: str) -> None:
        self._method = one_of("method", given, METHODS)

    @property
    def form(self) -> Form:
        """Kind, widths, layers and directions."""
        return self._engine.form

    @property
    def sentences(self) -> List[str]:
        """Why the chains of the last pass ran as they did, a layer and direction each."""
        return self._engine.sentences()

    def __repr__(self) -> str:
        f = self.form
        return f"<{f.kind} of {f.inputs} inputs, {f.hidden} hidden, {f.layers} layers, {f.directions} directions, {self.dtype}>"

    def state_dict(self) -> Dict[str, ARRAY]:
        """The parameters by PyTorch's names. The arrays are the network's own: what is written there counts."""
        return dict(self._parameters)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Copies the parameters from arrays by PyTorch's names (tensors of PyTorch too)."""
        own = self._parameters
        if not isinstance(state, Mapping):
            raise ArgumentError.of("the state", type(state).__name__, "a dict of " + ", ".join(own))
        refuse_names(state, own)
        arrays = {name: library.array(value, name) for name, value in state.items()}
        for name, array in arrays.items():
            library.real(array, name)
            if array.shape != own[name].shape:
                raise ArgumentError.of(f"{name}'s shape", array.shape, str(own[name].shape))
        for name, array in arrays.items():
            own[name][...] = array

    def _state(self, name: str, given: Any, batch: int, single: bool) -> Optional[ARRAY]:
        if given is None:
            return None
        array = library.whole(given, self.dtype, name)
        N, H = self.form.layers * self.form.directions, self.form.hidden
        wanted = (N, H) if single else (N, batch, H)
        if array.shape != wanted:
            raise ArgumentError.of(f"{name}'s shape", array.shape, str(wanted))
        return array.reshape(N, batch, H)

    def _pair(self, name: str, given: Any) -> Tuple[Any, Any]:
        if not self.form.has_cell or given is None:
            return given, None
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise ArgumentError.of(name, type(given).__name__, "a pair (h, c)")
        return given[0], given[1]

    def _join(self, h: ARRAY, c: Optional[ARRAY], single: bool) -> Any:
        if single:
            h, c = h[:, 0], None if c is None else c[:, 0]
        return h if c is None else (h, c)

    def __call__(self, x: Any, h0: Any = None, lengths: Any = None, *, training: bool = False) -> Tuple[ARRAY, State]:
        """Runs the network.

        Parameters
        ----------
        x : array_like
            [T][B][inputs], or [T][inputs] for a single sequence.
        h0 : array_like, optional
            [layers D][B][hidden] (of an LSTM a pair h0, c0), D directions; zeros without it.
        lengths : array_like of int, optional
            [B]: each sequence's own length; its outputs beyond are 0, its last state is the one at its end.
        training : bool
            Whether `backward` will follow.

        Returns
        -------
        y, hT : [T][B][D hidden], and the last states like h0.

        Raises
        ------
        ArgumentError
            Of shapes that do not fit, numbers that are not real, lengths beyond T.
        OutOfMemory
        """
        training = flag("training", training)
        x = library.whole(x, self.dtype, "x")
        f, single = self.form, x.ndim == 2
        if x.ndim not in (2, 3) or x.shape[-1] != f.inputs:
            raise ArgumentError.of("x's shape", x.shape, f"[T][B][{f.inputs}] or [T][{f.inputs}]")
        if single:
            x = x[:, None]
        T, B = x.shape[:2]
        N, H, cell = f.layers * f.directions, f.hidden, f.has_cell
        h = c = ends = ct = None
        if h0 is not None:
            first, other = self._pair("h0", h0)
            h, c = self._state("h0", first, B, single), self._state("c0", other, B, single)
        if lengths is not None:
            given = library.array(lengths, "lengths")
            ends = library.whole(given, np.int64, "lengths")
            if ends.shape != (B,) or B and given.dtype.kind not in "iu":
                raise ArgumentError.of("lengths", shown(lengths), f"{B} whole numbers in 0..{T}")
            library.refuse_first("lengths", (ends < 0) | (ends > T), given, f"a whole number in 0..{T}")
        if training:  # the way back reads them too, whatever the caller's become
            x, h, c, ends = (None if array is None else library.copied(array, name) for name, array in (("x", x), ("h0", h), ("c0", c), ("lengths", ends)))
        y, ht = library.empty((T, B, f.directions * H), self.dtype), library.empty((N, B, H), self.dtype)
        if cell:
            ct = library.empty((N, B, H), self.dtype)
        before, self._waiting = self._waiting, None
        if before is not None:
            before.end()
        at = (_address(x), _address(h), _address(c), _address(ends))
        waiting = self._engine.forward(self._at, T, B, *at, _address(y), _address(ht), _address(ct), training, self._method)
        if waiting is not None:
            arrays = {"x": x, "h0": h, "c0": c, "lengths": ends, "y": library.copied(y), "ht": ht.copy(), "ct": None if ct is None else ct.copy()}
            waiting.kept = (arrays, at, single)
            self._waiting = waiting
        return (y[:, 0] if single else y), self._join(ht, ct, single)

    @staticmethod
    def _no_pass() -> ArgumentError:
        return ArgumentError("backward without a pass; wanted one with training=True before, once", "backward")

    def backward(self, dy: Any = None, dhT: Any = None) -> Gradients:
        """The gradients of a loss, of the last pass, which was run with training=True. Once a pass. Threads that train one network at once
        share its last pass: each wants a copy of its own.

        Parameters
        ----------
        dy, dhT : array_like, optional
            dLoss by the outputs, of y's shape, and by the last states, like hT; None for zero.

        Returns
        -------
        Gradients : of x, of the initial states, and of the parameters by name.

        Raises
        ------
        ArgumentError
            Without such a pass, or of other shapes.
        """
        waiting = self._waiting
        own: Optional[Tuple[Dict[str, Optional[ARRAY]], Tuple[int, int, int, int], bool]] = None if waiting is None else waiting.kept
        if waiting is None or own is None:
            raise self._no_pass()
        kept, at, single = own
        x, ht = kept["x"], kept["ht"]
        assert x is not None and ht is not None and kept["y"] is not None
        B, lstm = x.shape[1], self.form.has_cell
        given = None
        if dy is not None:
            given = library.whole(dy, self.dtype, "dy")
            wanted = (kept["y"][:, 0] if single else kept["y"]).shape
            if given.shape != wanted:
                raise ArgumentError.of("dy's shape", given.shape, str(wanted))
        first, cell = self._pair("dhT", dhT)
        dht, dct = self._state("dhT", first, B, single), self._state("dcT", cell, B, single)
        dx, flat = library.empty(x.shape, self.dtype), library.empty(self._flat.shape, self.dtype)
        dh0, dc0 = library.empty(ht.shape, self.dtype), library.empty(ht.shape, self.dtype) if lstm else None
        if not waiting.claim():  # another thread has
            raise self._no_pass()
        try:
            waiting.backward(*at, _address(kept["y"]), (_address(given), _address(dht), _address(dct)),
                             (_address(dx), _address(dh0), _address(dc0)), self._addresses(flat))  # fmt: skip
        finally:  # cancelled halfway, it has used up some of its tape
            waiting.release()
        return Gradients(dx[:, 0] if single else dx, self._join(dh0, dc0, single), self._parts(flat))


class RNN(_Recurrent[ARRAY]):
    __doc__ = "h' = tanh(W_ih x + b_ih + W_hh h + b_hh), torch.nn.RNN's. " + (_Recurrent.__doc__ or "")
    _kind = "rnn_tanh"


class RNNReLU(_Recurrent[ARRAY]):
    __doc__ = "The same with ReLU for tanh. " + (_Recurrent.__doc__ or "")
    _kind = "rnn_relu"


class GRU(_Recurrent[ARRAY]):
    __doc__ = "torch.nn.GRU's formulas. " + (_Recurrent.__doc__ or "")
    _kind = "gru"


class LSTM(_Recurrent[Pair]):
    __doc__ = "torch.nn.LSTM's formulas; states are pairs (h, c). " + (_Recurrent.__doc__ or "")
    _kind = "lstm"


class ParaGRU(_Recurrent[ARRAY]):
    __doc__ = """Units do not mix: z = s(x_z + a_z h), r = s(x_r + a_r h), q = tanh(x_q + a_q r h), h' = (1 - z) h + z q, where x_z,
    x_r, x_q are the parts of W_ih x + b_ih and weight_hh is a, [3 hidden]; so long sequences are solved in parallel at any width
    (ParaRNN, arXiv 2510.21450).

    """ + (_Recurrent.__doc__ or "")
    _kind = "paragru"


class ParaLSTM(_Recurrent[Pair]):
    __doc__ = """Units do not mix: f = s(x_f + a_f h + C_f c), z = tanh(x_z + a_z h), c' = f c + (1 - f) z, o = s(x_o + a_o h + C_o c'),
    h' = o tanh(c'), gates f, z, o, weight_hh a, peephole C [2 hidden]; states are pairs (h, c) (ParaRNN, arXiv 2510.21450).

    """ + (_Recurrent.__doc__ or "")
    _kind = "paralstm"


class MinGRU(_Recurrent[ARRAY]):
    __doc__ = """A gated linear recurrence: z = s(x_z), h' = (1 - z) h + z x_q (minGRU, arXiv 2410.01201).

    """ + (_Recurrent.__doc__ or "")
    _kind = "mingru"
