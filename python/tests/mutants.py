# SPDX-License-Identifier: MIT
"""Shows that the tests can fail: each line below is a mistake put into a copy of the package, which they have to find.

    DEEPPCR_LIBRARY=build/libdeeppcr.so python3 python/tests/mutants.py

With hypothesis, PyTorch and JAX where the tests want them; with words, only mistakes in files whose names have one of them. Prints what each mistake did; ends with 1 where one was not found."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# (file, what stands there, what is put there, the test that has to fail: of test_properties.py where no file is named)
MUTANTS = [
    ("_library.py", "    if ok:\n        return array", "    if True:\n        return array", "test_linear_chain"),
    ("_library.py", "ok = ok and array.strides[axis] == step", "pass", "test_linear_chain"),
    ("_library.py", 'return np.dtype(dtype.newbyteorder("="))', "return np.dtype(np.float64)", "test_dtypes_of_a_chain"),
    ("_library.py", "return made if made.flags.c_contiguous and made.flags.aligned", "return made if True", "test_a_sequence_runs_as_if_alone"),
    ("linear.py", "key = (A.shape, A.strides, A.dtype, b.shape, b.strides", "key = (A.shape, A.dtype, b.shape", "test_linear_chain"),
    ("linear.py", "if _unchanged(((p.a, A), (p.b, b), (p.z0, z0))):", "if True:", "test_linear_chain"),
    ("linear.py", "z0 = library.numbers(z0.reshape(-1, width), 1)", "z0 = None", "test_linear_chain"),
    ("linear.py", "if type(A) is not int and type(A) is not float:", "if True:", "test_linear.py::test_a_number_goes"),
    ("nonlinear.py", "z = self._call(self.step, z, l + k,", "z = self._call(self.step, z, l,", "test_solve"),
    ("recurrent.py", "_address(ends)", "0", "test_a_sequence_runs_as_if_alone"),
    ("signal.py", "y = np.moveaxis(y, -1, axis)", "pass", "test_filters"),
    ("signal.py", "given = library.whole(states_in(np.moveaxis, state, cascade, axis).reshape", "given = library.whole(state.reshape", "test_filters"),
    ("signal.py", "key if x.flags.c_contiguous and x.flags.aligned and", "key if", "test_filters"),
    ("linear.py", "if lead[axis] == 1 and values.shape[axis] != 1:", "if False:", "test_gradients_of_a_chain"),
    ("torch/recurrent.py", "        x = plain(x)\n        if h0", "        if h0", "test_modules_of_pytorch"),
    ("jax.py", "x.reshape(self.length, *self.mapped, self.batch, *x.shape[2:]), 0, len(self.mapped)", "x.reshape(*self.mapped, self.length, self.batch, *x.shape[2:]), 0, 0", "test_chains_of_jax"),
    ("_library.py", "if isinstance(values, np.ma.MaskedArray) and", "if False and", "test_refusals.py::test_refusals_name_what_is_wrong"),
    ("errors.py", "if given is True or given is False:", "if True:", "test_refusals.py::test_refusals_name_what_is_wrong"),
    ("recurrent.py", "x = library.whole(x, self.dtype, \"x\")", "x = library.array(x, \"x\")", "test_a_sequence_runs_as_if_alone"),
    ("recurrent.py", "at += math.prod(shape) * library", "at += shape[0] * library", "test_recurrent.py::test_"),
    ("signal.py", "ga[0] = -total / first", "pass", "test_signal.py::test_gradients_are"),
    ("torch/recurrent.py", "if alike is not None and alike(*parameters):", "if alike is not None:", "test_torch.py::test_calls_like_one_before"),
    ("torch/recurrent.py", "if known is None or not known.alike(*weights, input, *states) or", "if known is None or", "test_torch.py::test_calls_like_one_before"),
    ("torch/recurrent.py", "known.method != self.method or known", "known", "test_torch.py::test_calls_like_one_before"),
    ("torch/recurrent.py", " or known.turned != self.batch_first:", ":", "test_torch.py::test_calls_like_one_before"),
    ("torch/recurrent.py", "weights = tuple(map(self._parameters.get, self._flat_weights_names))", "weights = tuple(self._parameters.values())", "test_torch.py::test_calls_like_one_before"),
    ("torch/recurrent.py", "if type(input) is not Tensor or self.dropout and self.training or", "if type(input) is not Tensor or", "test_torch.py::test_calls_like_one_before"),
    ("torch/recurrent.py", "if known.plain and not turned else None", "if not turned else None", "test_torch.py::test_calls_like_one_before"),
    ("torch/recurrent.py", "if x.shape != (T, B, self.form.inputs) or x.dtype is not self.dtype or not", "if not", "test_torch_func.py::test_inputs_that_change"),
    ("torch/recurrent.py", "            self.expect(x, h0, c0)\n        alike", "            pass\n        alike", "test_torch_func.py::test_inputs_that_change"),
    ("torch/chain.py", "        flat = plain(flat)\n        if not held", "        if not held", "test_torch_func.py::test_parameters_of_a_stack_with_other_strides"),
    ("_engine.py", "        if self.claim():\n            self.release()", "        self.release()", "test_recurrent.py::test_a_pass_on_its_way_back"),
    ("recurrent.py", "if not waiting.claim():", "if False:", "test_recurrent.py::test_a_pass_on_its_way_back"),
    ("torch/recurrent.py", "if y is None or not waiting.claim():", "if y is None:", "test_torch_func.py::test_a_pass_on_its_way_back"),
    ("torch/chain.py", "if not held.claim():", "if not held.held:", "test_torch_func.py::test_a_pass_on_its_way_back"),
    ("_library.py", "_REFUSED = MemoryError, ValueError", "_REFUSED = MemoryError", "test_refusals.py::test_results_that_no_memory"),
    ("errors.py", "if isinstance(shape, tuple) and shape and", "if False and", "test_refusals.py::test_what_is_wrong_is_said"),
    ("nonlinear.py", "{**_tolerances(options, method, dtype), **options}", "options", "test_nonlinear.py::test_a_tolerance_of_zero_alone"),
    ("_engine.py", "self.filled = None  # a", "self.filled = filled  # a", "test_recurrent.py::test_addresses_that"),
    ("torch/recurrent.py", " or self._refusal(tensors[-1 - key[1]], tensors[0]) is not None:", ":", "test_torch.py::test_what_pytorch_was_given"),
    ("torch/recurrent.py", " or wrapped(x, h0, c0, *weights)", "", "test_torch.py::test_tensors_that_hold_others_are_read_by_operators"),
    ("torch/chain.py", 'expect("flat", flat, (form.layers, form.numbers()), z0.dtype)  # whose', "pass  # whose", "test_torch_func.py::test_parameters_of_a_stack"),
    ("_library.py", "if array.dtype.itemsize > 8:", "if False:", "test_refusals.py::test_refusals_name_what_is_wrong"),
    ("nonlinear.py", "given[name] = -1.0", "pass", "test_nonlinear.py::test_tolerances_of_zero"),
    ("nonlinear.py", "if given[name] < 0:", "if False:", "test_refusals.py::test_refusals_name_what_is_wrong"),
    ("nonlinear.py", "given[name] = finite(name, value)", "given[name] = float(value)", "test_refusals.py::test_refusals_name_what_is_wrong"),
    ("nonlinear.py", "z.flags.writeable = self._plan is None or", "z.flags.writeable = True or", "test_nonlinear.py::test_states_that_vjp_reads"),
    ("nonlinear.py", "            self.progress = progress\n", "", "test_nonlinear.py::test_threads_are_told"),
    ("errors.py", "type(given) is not int and _reads_as_number(given)", "type(given) is not int and False", "test_refusals.py::test_refusals_name_what_is_wrong"),
    ("linear.py", "given is None if mine is None else", "mine is None or", "test_linear.py::test_an_identity_is_1"),
    ("torch/recurrent.py", "if y is not None and y._version != ctx.version:", "if False:", "test_torch.py::test_results_may_be_written_into"),
    ("torch/recurrent.py", 'layers, one_of("method", self.method, METHODS))', "layers, self.method)", "test_torch.py::test_a_method_that_is_set_later"),
    ("torch/linear.py", "transposed, type(transposed), scheme", "transposed, scheme", "test_torch.py::test_chains_like_one_before"),
    ("linear.py", "transposed, type(transposed), scheme", "transposed, scheme", "test_linear.py::test_wrong_options"),
    ("jax.py", "net.own = np.empty(net.room + 64, np.uint8)", "net.own = library.take(net.room)", "test_jax.py::test_known_gradients"),
    ("torch/linear.py", "whole = A.is_contiguous() and b.is_contiguous() and not", "whole = not", "test_torch.py::test_chains_like_one_before"),
    ("torch/linear.py", "and not (A.is_neg() or b.is_neg())", "", "test_torch.py::test_chains_like_one_before"),
    ("torch/signal.py", "key += (c.shape, c.dtype, library.bytes_at(c.data_ptr(), c.numel() * c.element_size()))", "key += (c.shape, c.dtype)", "test_torch.py::test_filters_like_one_before"),
    ("torch/signal.py", "if not c.is_contiguous() or c.is_neg():", "if not c.is_contiguous():", "test_torch.py::test_filters_like_one_before"),
    ("torch/signal.py", "whole = x.is_contiguous() and not x.is_neg()", "whole = not x.is_neg()", "test_torch.py::test_filters_like_one_before"),
    ("torch/signal.py", "whole = x.is_contiguous() and not x.is_neg()", "whole = x.is_contiguous()", "test_torch.py::test_filters_like_one_before"),
    ("_engine.py", "[*enumerate([*pointers, ht, ct, *tensors])]", "[*enumerate([*pointers, ct, ht, *tensors])]", "test_recurrent.py::test_large_work"),
    ("_engine.py", "[*enumerate([*pointers, *map(at, self.given), *places])]", "[*enumerate([*pointers, *map(at, self.given[::-1]), *places])]", "test_recurrent.py::test_large_work"),
    ("_ready.py", "library.check(status, self.call.error)", "pass", "test_recurrent.py::test_a_way_back_that_was_cut_off"),
    ("_xla.py", "key += dtype, _MEMORY[dims : dims + 8 * rank]", "key += (dtype,)", "test_jax.py::test_all_of_a_frame"),
    ("_xla.py", "if self.size + ready.size > _ALL_BYTES:", "if False:", "test_jax.py::test_what_is_kept_is_let_go"),
    ("_xla.py", "code, answer.interrupted = _CANCELLED, 1", "code = _CANCELLED", "test_jax.py::test_a_ctrl_c_within"),
    ("_xla.py", "    answer.finished = 1\n", "    pass\n", "test_jax.py::test_a_handler_of_ctrl_c"),
    ("_library.py", 'if not getattr(_local, "hosted", False):', "if True:", "test_jax.py::test_a_handler_of_ctrl_c"),
    ("nonlinear.py", "if interrupted and status:", "if False:", "test_nonlinear.py::test_a_handler_of_ctrl_c"),
    ("torch/recurrent.py", "if kind.endswith(\"_hooks\") and hooks", "if kind == \"_forward_hooks\" and hooks", "test_torch.py::test_hooks_are_not_lost"),
    ("torch/recurrent.py", "*module._modules, ", "", "test_torch.py::test_what_a_module_has_of_its_own"),
    ("torch/recurrent.py", "vars(made).update(_attributes(name, module, made))", "_attributes(name, module, made)", "test_torch.py::test_what_a_module_has_of_its_own"),
    ("torch/recurrent.py", "turned, lengths, plain(x), h0", "turned, lengths, x, h0", "test_torch.py::test_a_copied_input"),
    ("torch/signal.py", "zi = numbers.states_in(torch.movedim, zi, a is None, dim)", "pass", "test_torch.py::test_states_of_filters"),
    ("torch/recurrent.py", "parent._modules[name] = made[id(child)]", "parent._modules[name] = from_torch(child)", "test_torch.py::test_a_module_in_several"),
    ("_xla.py", "library.check(status, _abi.XlaCall.from_address(failed).error)", "pass", "test_jax.py::test_a_known_call_that_fails"),
    ("_xla.py", "            _lib.dpcr_xla_forget()\n", "", "test_jax.py::test_what_is_kept_is_let_go"),
    ("jax.py", '("APART", (at[2], Here(n + 2), memory(apart)), x.nbytes, 0),', "", "test_jax.py::test_gradients_of_filters_like_one_before"),
    ("jax.py", "return [*read, (self.name, self.given, self.count, self.more)]", "return read", "test_jax.py::test_calls_that_look_alike"),
    ("jax.py", "enumerate(plan.given[3:])", "enumerate(plan.given[3:4])", "test_jax.py::test_calls_that_look_alike"),
    ("selective.py", "return shape[-2] > 1 and shape[-1] > 1 and 0 < strides", "return 0 > strides", "test_selective.py::test_layouts"),
    ("selective.py", "into[i] = _grouped(into[i], self.batch, self.dim, self.length)", "pass", "test_selective.py::test_gradients_are_differences"),
    ("torch/_scans.py", "if t is not None and need else None for", "if t is not None else None for", "test_selective.py::test_only_what_is_needed"),
    ("torch/_scans.py", "    keeps = wanted(*tensors)\n", "    keeps = True\n", "test_selective.py::test_only_what_is_needed"),
    ("torch/_scans.py", "whole = kept is not None and kept.numel() == scan.kept_bytes()", "whole = kept is not None", "test_attention.py::test_inputs_that_change"),
    ("torch/_scans.py", "at if at % 64 == 0 and", "at if", "test_attention.py::test_the_way_back"),
    ("torch/attention.py", "states[i : i + 1]", "states[:1]", "test_attention.py::test_sequences"),
    ("torch/attention.py", "own[:2] = [_normal(x)", "own[1:2] = [_normal(x)", "test_attention.py::test_gated_delta_rule"),
    ("torch/attention.py", "_CHANGES & ignored.keys()", "()", "test_attention.py::test_what_changes_numbers"),
    ("attention.py", "if shape is not None and shape != wanted:", "if False:", "test_attention.py::test_refusals"),
    ("_jax_scans.py", "found.get(i) for i in range(len(kind.names))", "*some, *[None] * (len(kind.names) - len(some))", "test_attention.py::test_jax"),
    ("_jax_scans.py", "not (shared and n == 1)", "n != 1", "test_attention.py::test_refusals_of_jax"),
    ("torch/_scans.py", "refuse_many(scans.kind.what, (gout, glast))", "pass", "test_selective.py::test_refusals_of_tensors"),
    ("_engine.py", "self.plans[key] = self.plans.pop(key)", "pass", "test_recurrent.py::test_the_plans_that_were_used_last"),
    ("_engine.py", "self.verdict = slot.verdict_on(self.key) if self.chosen else None", "self.verdict = None", "test_recurrent.py::test_passes_of_near"),
    ("_engine.py", "length <= _NEAR * self.length and", "", "test_recurrent.py::test_passes_of_near"),
    ("_engine.py", "            slot.drop(plan.verdict)\n", "            pass\n", "test_recurrent.py::test_a_network_that_learned"),
    ("_engine.py", "options.solve.join_tolerance = _ROUNDINGS * float(np.finfo(dtype).eps)", "pass", "test_recurrent.py::test_overlap_is_within"),
    ("nonlinear.py", "if planning or quiet else", "if quiet else", "test_nonlinear.py::test_what_numpy_says"),
    ("nonlinear.py", "if planning or quiet else", "if planning else", "test_nonlinear.py::test_what_numpy_says"),
    ("nonlinear.py", "quiet=not loop)", "quiet=True)", "test_nonlinear.py::test_what_numpy_says"),
    ("nonlinear.py", "        with np.errstate(all=\"ignore\"):  # at states", "        with contextlib.nullcontext():  # at states", "test_nonlinear.py::test_what_numpy_says"),
    ("nonlinear.py", "            self._learn(way, report)\n", "            pass\n", "test_nonlinear.py::test_a_plan"),
    ("nonlinear.py", "if self._credit >= 0:", "if False:", "test_nonlinear.py::test_a_plan_keeps"),
    ("nonlinear.py", "self._way = self._by_chunks(\"\") or way", "pass", "test_nonlinear.py::test_few_chunks"),
    ("nonlinear.py", "(jacobian is None or method != \"auto\")", "False", "test_nonlinear.py::test_a_named_method"),
    ("nonlinear.py", "(jacobian is None or method != \"auto\")", "(jacobian is None)", "test_nonlinear.py::test_the_way_back_of_a_named"),
]  # fmt: skip


def outcome(folder: pathlib.Path, test: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    file, name = test.split("::") if "::" in test else ("test_properties.py", test)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(ROOT / "tests" / file), "-k", f"{name} or {name}["]
    return subprocess.run(command, env=environment, capture_output=True).returncode


def main() -> int:
    missed = 0
    for file, there, instead, test in MUTANTS:
        if sys.argv[1:] and not any(word in file for word in sys.argv[1:]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "deeppcr"
            shutil.copytree(ROOT / "src" / "deeppcr", package)
            text = (package / file).read_text()
            if text.count(there) != 1:
                sys.exit(f"mutants: {file} has {there!r} {text.count(there)} times, wanted once")
            (package / file).write_text(text.replace(there, instead))
            code = outcome(pathlib.Path(folder), test)
        found = code == 1 or code < 0  # or it crashed
        missed += not found
        print(f"{'found' if found else f'NOT FOUND ({code})'}: {file}: {instead!r} for {there!r}, by {test}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
