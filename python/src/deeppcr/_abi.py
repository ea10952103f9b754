# SPDX-License-Identifier: MIT
"""The part of the C interface that the package uses, as C text: functions, structures, constants.

ctypes learns them from this text, and tests/test_abi.py compiles the same text against include/deeppcr, so that a header
which changes cannot silently break the binding. Pointers all become addresses.
"""
from __future__ import annotations

import ctypes
import re
from typing import Any, Dict, List, Tuple

# Values of the public headers.
CONSTANTS: Dict[str, int] = {
    "DPCR_OK": 0, "DPCR_ERROR_ARGUMENT": -1, "DPCR_ERROR_UNSUPPORTED": -2, "DPCR_ERROR_MEMORY": -3,
    "DPCR_ERROR_OVERFLOW": -4, "DPCR_ERROR_IO": -5, "DPCR_ERROR_FORMAT": -6, "DPCR_ERROR_CALLBACK": -7,
    "DPCR_ERROR_CANCELLED": -8, "DPCR_ERROR_SYSTEM": -9, "DPCR_ERROR_DEVICE": -10,
    "DPCR_F32": 1, "DPCR_F64": 2, "DPCR_U32": 3, "DPCR_HOST": 1, "DPCR_MAX_DIMS": 6,
    "DPCR_ZERO": 0, "DPCR_IDENTITY": 1, "DPCR_SCALAR": 2, "DPCR_DIAGONAL": 3, "DPCR_BLOCK": 4, "DPCR_DENSE": 5,
    "DPCR_SCHEME_AUTO": 0, "DPCR_SCHEME_SEQUENTIAL": 1, "DPCR_SCHEME_PCR": 2, "DPCR_SCHEME_BLELLOCH": 3,
    "DPCR_SCHEME_CHUNKED": 4, "DPCR_SCHEME_OVERLAP": 5, "DPCR_SCHEME_COUNT": 6,
    "DPCR_METHOD_AUTO": 0, "DPCR_METHOD_SEQUENTIAL": 1, "DPCR_METHOD_NEWTON": 2, "DPCR_METHOD_DIAGONAL": 3,
    "DPCR_METHOD_BLOCK": 4, "DPCR_METHOD_PICARD": 5, "DPCR_METHOD_JACOBI": 6, "DPCR_METHOD_DAMPED": 7,
    "DPCR_METHOD_OVERLAP": 8, "DPCR_METHOD_SHOOTING": 9, "DPCR_METHOD_PARAREAL": 10,
    "DPCR_METHOD_PARATAA": 11, "DPCR_METHOD_COUNT": 12,
    "DPCR_GUESS_ZERO": 0, "DPCR_GUESS_STEP": 1, "DPCR_GUESS_STATE": 2, "DPCR_GUESS_GIVEN": 3,
    "DPCR_KINKS_CURVED": 1, "DPCR_KINKS_AFFINE": 2,
    "DPCR_REASON_NOT_CONVERGED": -1, "DPCR_REASON_FALLBACK": 5,
    "DPCR_ACT_IDENTITY": 1, "DPCR_ACT_RELU": 2, "DPCR_ACT_TANH": 3, "DPCR_ACT_SIGMOID": 4, "DPCR_ACT_GELU": 5, "DPCR_ACT_SILU": 6,
    "DPCR_MLP": 1, "DPCR_RESNET": 2, "DPCR_BRANCH_LINEAR": 0, "DPCR_BRANCH_TWO_LAYER": 1,
    "DPCR_RNN_TANH": 1, "DPCR_RNN_RELU": 2, "DPCR_GRU": 3, "DPCR_LSTM": 4, "DPCR_PARAGRU": 5, "DPCR_PARALSTM": 6, "DPCR_MINGRU": 7,
    "DPCR_XLA_CHAIN": 1, "DPCR_XLA_CHAIN_VJP": 2, "DPCR_XLA_PARAMETERS": 3, "DPCR_XLA_FORWARD": 4, "DPCR_XLA_BACKWARD": 5,
    "DPCR_XLA_SECTIONS": 6, "DPCR_XLA_COEFFICIENTS": 7, "DPCR_XLA_FILTER": 8, "DPCR_XLA_FILTER_GRADIENT": 9,
    "DPCR_XLA_OF_SECTIONS": 10, "DPCR_XLA_OF_COEFFICIENTS": 11, "DPCR_XLA_ZERO": 12, "DPCR_XLA_COPY": 13, "DPCR_XLA_WIDEN": 14,
    "DPCR_XLA_NARROW": 15, "DPCR_XLA_APART": 16,
}  # fmt: skip

# Structures, in the order in which they need each other.
STRUCTURES: Dict[str, str] = {
    "dpcr_error": "dpcr_status status; int code; char text[512];",
    "dpcr_device": "dpcr_device_type type; int32_t id;",
    "dpcr_array": "void *data; dpcr_dtype dtype; dpcr_device device; int32_t ndim; int64_t shape[6]; int64_t strides[6];",
    "dpcr_context_options": """size_t size; int threads; void *allocate; void *release; void *allocator_user; void *cancel;
        void *cancel_user;""",
    "dpcr_locked_cancel": "void *lock; void *cancel; void *unlock;",
    "dpcr_machine": """size_t size; double threads; double flops; double latency; double region; double bandwidth;
        double cache_bytes[3]; double cache_bandwidth[3]; double wake; double thread_bandwidth;""",
    "dpcr_transition": "dpcr_structure structure; int64_t rows; int64_t cols; int64_t block; void *pattern;",
    "dpcr_chain_shape": """size_t size; int64_t length; int64_t batch; dpcr_transition transition; dpcr_dtype dtype;
        int transposed;""",
    "dpcr_chain_options": """size_t size; dpcr_scheme scheme; int64_t chunk; int levels; int64_t warm_up; double tolerance;
        int max_sweeps; dpcr_planning planning; double planning_seconds; void *typical; dpcr_device device;""",
    "dpcr_chain_report": """size_t size; dpcr_scheme scheme; int sweeps; int64_t finished_from; int64_t compositions;
        int64_t applications; int64_t depth; double seconds;""",
    "dpcr_span": """size_t size; int64_t first; int64_t lanes; int64_t stride; int64_t steps; int64_t row; int64_t rows;
        void *active; dpcr_device device; void *stream;""",
    "dpcr_steps": """size_t size; void *user; int64_t length; int64_t batch; int64_t width; dpcr_dtype dtype; int concurrent;
        dpcr_transition jacobian; double flops; double jacobian_flops; double latency; int64_t lanes; double lane_seconds;
        double adjoint_latency; double adjoint_lane_seconds; int64_t tape_values; int gradient_from_tape; void *advance;
        void *linearise; void *jvp; void *adjoint; void *gradient; void *window; void *adjoint_window;
        double adjoint_window_seconds; int gradient_whole; void *coarse; double coarse_flops; void *slopes; void *coarse_linearise;
        void *gradient_join; void *launch; uint64_t identity; int window_threads;
        int64_t adjoint_window_steps; int launch_sweeps; int64_t gradient_rows;
        double gradient_latency; double gradient_lane_seconds; void *rehearse; void *rehearsed; const int64_t *ends;
        double weight_bytes; dpcr_kinks kinks;""",
    "dpcr_solve_options": """size_t size; dpcr_method method; dpcr_scheme scheme; dpcr_scheme backward; dpcr_guess guess;
        double atol; double rtol; int64_t window; int64_t chunk; int64_t warm_up; int64_t block; double damping;
        int max_sweeps; int no_fallback; size_t memory_limit; int consume_tape; dpcr_planning planning;
        double planning_seconds; void *start; void *step_scale; dpcr_lock lock; int64_t order; int mixed; double confirm;
        dpcr_device device; int64_t backward_chunk; int64_t backward_warm_up; double join_tolerance; uint64_t reserved[8];""",
    "dpcr_solve_report": """size_t size; dpcr_reason reason; dpcr_method method; dpcr_scheme scheme; int sweeps;
        int64_t evaluations; double residual; double error_estimate; double seconds; double seconds_evaluate;
        double seconds_linear; double seconds_finish; size_t bytes; int64_t history_capacity; void *residual_history;
        void *locked_history; int64_t history_length; void *sequence_residual_history; void *sequence_locked_history;
        void *sentence; int64_t batch_capacity; void *sequence_reason; void *sequence_sweeps; void *sequence_locked;""",
    "dpcr_candidate": """size_t size; int backward; dpcr_method method; dpcr_scheme scheme; int64_t chunk; int64_t warm_up;
        double sweeps; double seconds; double measured; size_t workspace;""",
    "dpcr_recurrent_options": """size_t size; dpcr_recurrent_kind kind; dpcr_dtype dtype; int64_t inputs; int64_t hidden;
        int64_t layers; int bidirectional; int no_bias; uint64_t seed; int64_t projection;""",
    "dpcr_recurrent_pass": """size_t size; dpcr_array x; dpcr_array h0; dpcr_array c0; void *lengths; dpcr_array y;
        dpcr_array ht; dpcr_array ct;""",
    "dpcr_recurrent_gradients": """size_t size; dpcr_array y; dpcr_array ht; dpcr_array ct; dpcr_array x; dpcr_array h0;
        dpcr_array c0;""",
    "dpcr_recurrent_plan_options": """size_t size; int64_t length; int64_t batch; int training; int packed; int frozen;
        dpcr_solve_options solve; void *sample;""",
    "dpcr_model_options": """size_t size; dpcr_architecture architecture; dpcr_dtype dtype; int64_t inputs; int64_t outputs;
        int64_t layers; int64_t width; int64_t hidden; dpcr_activation activation; dpcr_branch branch; int layer_norm;
        double scale; uint64_t seed; int64_t tie; int blank;""",
    "dpcr_attention": """size_t size; void *q; void *k; void *v; void *g; void *beta; void *s0; double scale;""",
    "dpcr_attention_gradients": "size_t size; void *q; void *k; void *v; void *g; void *beta; void *s0;",
    "dpcr_selective": """size_t size; void *u; void *delta; void *a; void *b; void *c; void *skip; void *z; void *delta_bias; void *h0;
        int softplus;""",
    "dpcr_selective_gradients": """size_t size; void *u; void *delta; void *a; void *b; void *c; void *skip; void *z; void *delta_bias;
        void *h0;""",
    "dpcr_xla_step": "dpcr_xla_what what; int64_t count; int64_t more; void *given[9];",
    "dpcr_xla_place": "int64_t array; void *at;",
    "dpcr_xla_call": """size_t size; int64_t steps; int64_t places; void *step; void *place; dpcr_error error; void *next;
        int busy;""",
    "dpcr_xla_answer": "void *error; int finished; int interrupted;",
}

# Prototypes, as in the headers but for the names of arguments.
FUNCTIONS = """
const char *dpcr_version(void);
const char *dpcr_status_name(dpcr_status);
const char *dpcr_isa_name(void);
int dpcr_flush_denormals(int);
const char *dpcr_scheme_name(dpcr_scheme);
const char *dpcr_method_name(dpcr_method);
const char *dpcr_reason_name(dpcr_reason);
dpcr_status dpcr_context_create(const dpcr_context_options *, dpcr_context **, dpcr_error *);
void dpcr_context_destroy(dpcr_context *);
int dpcr_context_threads(const dpcr_context *);
int dpcr_cancel_locked(void *);
dpcr_status dpcr_context_machine(dpcr_context *, dpcr_machine *, dpcr_error *);
dpcr_status dpcr_chain_plan_create(dpcr_context *, const dpcr_chain_shape *, const dpcr_chain_options *, dpcr_chain_plan **,
                                   dpcr_error *);
void dpcr_chain_plan_destroy(dpcr_chain_plan *);
dpcr_scheme dpcr_chain_plan_scheme(const dpcr_chain_plan *);
const char *dpcr_chain_plan_sentence(const dpcr_chain_plan *);
size_t dpcr_chain_plan_workspace(const dpcr_chain_plan *);
dpcr_status dpcr_chain_execute(const dpcr_chain_plan *, const dpcr_array *, const dpcr_array *, const dpcr_array *,
                               const dpcr_array *, void *, size_t, dpcr_chain_report *, dpcr_error *);
dpcr_status dpcr_chain_jvp(const dpcr_chain_plan *, const dpcr_array *, const dpcr_array *, const dpcr_array *,
                           const dpcr_array *, const dpcr_array *, const dpcr_array *, const dpcr_array *, void *, size_t,
                           dpcr_error *);
dpcr_status dpcr_chain_vjp(const dpcr_chain_plan *, const dpcr_array *, const dpcr_array *, const dpcr_array *,
                           const dpcr_array *, const dpcr_array *, const dpcr_array *, const dpcr_array *, void *, size_t,
                           dpcr_error *);
dpcr_status dpcr_solve_plan_create(dpcr_context *, const dpcr_steps *, const dpcr_solve_options *, dpcr_solve_plan **,
                                   dpcr_error *);
void dpcr_solve_plan_destroy(dpcr_solve_plan *);
const char *dpcr_solve_plan_sentence(const dpcr_solve_plan *);
dpcr_method dpcr_solve_plan_method(const dpcr_solve_plan *);
dpcr_scheme dpcr_solve_plan_backward(const dpcr_solve_plan *);
const dpcr_solve_options *dpcr_solve_plan_options(const dpcr_solve_plan *);
int dpcr_solve_plan_candidate(const dpcr_solve_plan *, int64_t, dpcr_candidate *);
const char *dpcr_solve_plan_memory(const dpcr_solve_plan *, double *, int64_t *);
dpcr_status dpcr_solve_plan_learn(const dpcr_solve_plan *, const dpcr_solve_report *, dpcr_error *);
size_t dpcr_solve_plan_workspace(const dpcr_solve_plan *);
dpcr_status dpcr_solve_execute(const dpcr_solve_plan *, const dpcr_array *, const dpcr_array *, const dpcr_array *, void *,
                               size_t, dpcr_solve_report *, dpcr_error *);
dpcr_status dpcr_solve_backward(const dpcr_solve_plan *, const dpcr_array *, const dpcr_array *, const dpcr_array *,
                                const dpcr_array *, const dpcr_array *, const dpcr_array *, const dpcr_array *, void *,
                                size_t, dpcr_solve_report *, dpcr_error *);
dpcr_status dpcr_recurrent_create(dpcr_context *, const dpcr_recurrent_options *, dpcr_recurrent **, dpcr_error *);
void dpcr_recurrent_destroy(dpcr_recurrent *);
int64_t dpcr_recurrent_parameter_count(const dpcr_recurrent *);
dpcr_status dpcr_recurrent_parameter(const dpcr_recurrent *, int64_t, char *, size_t, dpcr_array *, dpcr_array *,
                                     dpcr_error *);
void *dpcr_recurrent_vector(dpcr_recurrent *, int64_t *);
void *dpcr_recurrent_gradient_vector(dpcr_recurrent *);
void dpcr_recurrent_zero_gradients(dpcr_recurrent *);
void dpcr_recurrent_set_parameters(dpcr_recurrent *, const void *const *);
void dpcr_recurrent_get_gradients(const dpcr_recurrent *, void *const *);
dpcr_status dpcr_recurrent_plan_create(const dpcr_recurrent *, const dpcr_recurrent_plan_options *, dpcr_recurrent_plan **,
                                       dpcr_error *);
void dpcr_recurrent_plan_destroy(dpcr_recurrent_plan *);
const dpcr_solve_plan *dpcr_recurrent_plan_chain(const dpcr_recurrent_plan *, int64_t);
size_t dpcr_recurrent_plan_workspace(const dpcr_recurrent_plan *);
size_t dpcr_recurrent_plan_tape(const dpcr_recurrent_plan *);
dpcr_status dpcr_recurrent_execute(dpcr_recurrent_plan *, const dpcr_recurrent_pass *, void *, void *, size_t,
                                   dpcr_solve_report *, dpcr_error *);
dpcr_status dpcr_recurrent_backward(dpcr_recurrent_plan *, const dpcr_recurrent_pass *, const dpcr_recurrent_gradients *,
                                    void *, void *, size_t, dpcr_solve_report *, dpcr_error *);
dpcr_status dpcr_filter_create_sos(dpcr_context *, int64_t, const double *, dpcr_filter **, dpcr_error *);
dpcr_status dpcr_filter_create_ba(dpcr_context *, int64_t, const double *, int64_t, const double *, dpcr_filter **,
                                  dpcr_error *);
void dpcr_filter_destroy(dpcr_filter *);
dpcr_status dpcr_filter_execute(const dpcr_filter *, const dpcr_array *, const dpcr_array *, const dpcr_array *,
                                const dpcr_array *, dpcr_error *);
dpcr_status dpcr_filter_adjoint(const dpcr_filter *, const dpcr_array *, const dpcr_array *, const dpcr_array *,
                                const dpcr_array *, dpcr_error *);
dpcr_status dpcr_filter_gradient(const dpcr_filter *, const dpcr_array *, const dpcr_array *, const dpcr_array *,
                                 const dpcr_array *, double *, double *, const dpcr_array *, const dpcr_array *, dpcr_error *);
dpcr_status dpcr_attention_scan(dpcr_context *, const dpcr_attention *, const dpcr_array *, const dpcr_array *, void *,
                                dpcr_error *);
size_t dpcr_attention_kept_bytes(const dpcr_attention *);
dpcr_status dpcr_attention_adjoint(dpcr_context *, const dpcr_attention *, const dpcr_array *, const dpcr_array *, const void *,
                                   const dpcr_attention_gradients *, dpcr_error *);
dpcr_status dpcr_selective_scan(dpcr_context *, const dpcr_selective *, const dpcr_array *, const dpcr_array *, void *,
                                dpcr_error *);
size_t dpcr_selective_kept_bytes(const dpcr_selective *);
dpcr_status dpcr_selective_adjoint(dpcr_context *, const dpcr_selective *, const dpcr_array *, const dpcr_array *, const void *,
                                   const dpcr_selective_gradients *, dpcr_error *);
dpcr_status dpcr_model_create(dpcr_context *, const dpcr_model_options *, dpcr_model **, dpcr_error *);
void dpcr_model_destroy(dpcr_model *);
void *dpcr_model_vector(dpcr_model *, int64_t *);
void *dpcr_model_gradient_vector(dpcr_model *);
void dpcr_model_zero_gradients(dpcr_model *);
int64_t dpcr_model_parameter_count(const dpcr_model *);
dpcr_status dpcr_model_parameter(const dpcr_model *, int64_t, char *, size_t, dpcr_array *, dpcr_array *, dpcr_error *);
dpcr_status dpcr_model_steps(dpcr_model *, int64_t, dpcr_steps *, dpcr_error *);
void *dpcr_xla_handler(void *);
void dpcr_xla_set_host(dpcr_xla_host *, void (*)(void), int (*)(void *), void *);
int dpcr_xla_run(const void *, dpcr_xla_call *);
int dpcr_xla_run_at(void *const *, dpcr_xla_call *);
int dpcr_xla_keep(const void *, dpcr_xla_call *);
void dpcr_xla_forget(void);
int dpcr_xla_busy(const dpcr_xla_call *);
"""

# Callbacks.
STEP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                        ctypes.c_void_p)  # fmt: skip
LINEARISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                             ctypes.c_void_p)  # fmt: skip
XLA_HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)

_ENUMS = (
    "status dtype device_type structure scheme planning method guess lock kinks reason recurrent_kind architecture branch activation "
    "xla_what"
).split()
_TYPES: Dict[str, Any] = {
    "void": None, "int": ctypes.c_int, "char": ctypes.c_char, "double": ctypes.c_double, "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
    **{f"dpcr_{name}": ctypes.c_int for name in _ENUMS},
}  # fmt: skip


def _type(text: str) -> Any:
    """The ctypes type of a C type such as `const dpcr_array *`."""
    if re.fullmatch(r"const char \*", text.strip()):
        return ctypes.c_char_p
    if "*" in text:
        return ctypes.c_void_p
    return _TYPES[text.replace("const ", "").strip()]


def fields(name: str) -> List[Tuple[str, str, int]]:
    """(C type, field, length or 0) of the fields of a structure."""
    out = []
    for declaration in STRUCTURES[name].split(";"):
        if declaration.strip():
            match = re.fullmatch(r"\s*(.*?[\s*])(\w+)(?:\[(\d+)\])?", declaration, re.S)
            assert match, declaration
            out.append((match.group(1).strip(), match.group(2), int(match.group(3) or 0)))
    return out


def _structure(name: str) -> Any:
    listed = [(field, _type(kind) * length if length else _type(kind)) for kind, field, length in fields(name)]
    made = type(name, (ctypes.Structure,), {"_fields_": listed})
    _TYPES[name] = made
    return made


def prototypes() -> Dict[str, Tuple[str, List[str]]]:
    """{function: (type of the result, types of the arguments)}, as C text."""
    out = {}
    for statement in FUNCTIONS.split(";"):
        if statement.strip():
            match = re.fullmatch(r"\s*(.*?[\s*])(dpcr_\w+)\((.*)\)\s*", statement, re.S)
            assert match, statement
            arguments = [" ".join(a.split()) for a in match.group(3).split(",")]
            out[match.group(2)] = (match.group(1).strip(), [] if arguments == ["void"] else arguments)
    return out


# Array is dpcr_array, and so on.
Error = _structure("dpcr_error")
Device = _structure("dpcr_device")
Array = _structure("dpcr_array")
ContextOptions = _structure("dpcr_context_options")
LockedCancel = _structure("dpcr_locked_cancel")
Machine = _structure("dpcr_machine")
Transition = _structure("dpcr_transition")
ChainShape = _structure("dpcr_chain_shape")
ChainOptions = _structure("dpcr_chain_options")
ChainReport = _structure("dpcr_chain_report")
Span = _structure("dpcr_span")
Steps = _structure("dpcr_steps")
SolveOptions = _structure("dpcr_solve_options")
SolveReport = _structure("dpcr_solve_report")
Candidate = _structure("dpcr_candidate")
RecurrentOptions = _structure("dpcr_recurrent_options")
RecurrentPass = _structure("dpcr_recurrent_pass")
RecurrentGradients = _structure("dpcr_recurrent_gradients")
RecurrentPlanOptions = _structure("dpcr_recurrent_plan_options")
ModelOptions = _structure("dpcr_model_options")
Attention = _structure("dpcr_attention")
AttentionGradients = _structure("dpcr_attention_gradients")
Selective = _structure("dpcr_selective")
SelectiveGradients = _structure("dpcr_selective_gradients")
XlaStep = _structure("dpcr_xla_step")
XlaPlace = _structure("dpcr_xla_place")
XlaCall = _structure("dpcr_xla_call")
XlaAnswer = _structure("dpcr_xla_answer")


def declare(library: ctypes.CDLL) -> None:
    """Tells ctypes the prototypes. A function that is missing raises AttributeError."""
    for name, (result, arguments) in prototypes().items():
        function = getattr(library, name)
        function.restype = _type(result)
        function.argtypes = [_type(a) for a in arguments]
