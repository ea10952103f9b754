#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cuda_module.sh BUILD_DIR: the library needs nothing of CUDA; the module, where it was built (nvcc), exports one name, brings
# its runtime along, holds the code that was asked for, is found beside the program, and says why there is no device.
set -u
build=${1:?usage: cuda_module.sh BUILD_DIR}
module=$build/libdeeppcr_cuda.so.0
by_test=$build/cuda-by-test/libdeeppcr_cuda.so.0  # which the library does not find by itself
fail() {
    echo "cuda_module: $*"
    exit 1
}
for file in "$build/libdeeppcr.so" "$build/deeppcr"; do
    [ -f "$file" ] || fail "no $file"
    ! readelf -dW "$file" | grep -E 'NEEDED.*(cuda|cublas|nvidia)' || fail "$file needs CUDA"
done
! grep -qs '^DEEPPCR_CUDA:STRING=[aA][uU][tT][oO]' "$build/CMakeCache.txt" || module=$by_test
[ -f "$module" ] || { echo "cuda_module: skipped: the backend was not built (no nvcc of CUDA 12 or later, or DEEPPCR_PART)"; exit 77; }
exported=$(nm -D --defined-only "$module" | awk '{print $NF}')
[ "$exported" = dpcr_device_module ] || fail "exports $exported, wanted dpcr_device_module alone"
! readelf -dW "$module" | grep -E 'NEEDED.*(cuda|cublas|nvidia|deeppcr|stdc\+\+)' || fail "needs what a user may not have"
# Where host code calls a function of devices alone, nvcc puts an exit, and says nothing if a template hides it.
ends=$(objdump -d --no-show-raw-insn "$module" | awk '/^[0-9a-f]+ <_ZN/ { at = $2 } /^[0-9a-f]+ <[^_]/ { at = "" } /<exit@plt>/ { if (at) print at }' | sort -u)
[ -z "$ends" ] || fail "calls what devices alone have: $(printf '%s' "$ends" | head -3)"
dump=$(command -v cuobjdump || echo "$(dirname "${CUDACXX:-/usr/local/cuda/bin/nvcc}")/cuobjdump")
if [ -x "$dump" ]; then
    codes=sm_90
    ! grep -q '^DEEPPCR_CUDA:STRING=[oO][nN]' "$build/CMakeCache.txt" || codes="sm_80 sm_90 PTX"
    for code in ${codes% PTX}; do "$dump" --list-elf "$module" | grep -q "$code" || fail "no code for $code"; done
    [ "${codes% PTX}" = "$codes" ] || "$dump" --list-ptx "$module" | grep -q 'sm_75' || fail "no PTX for compute_75"
fi
unset DEEPPCR_CUDA_MODULE
[ "$module" != "$by_test" ] || export DEEPPCR_CUDA_MODULE="$module"
answer=$("$build/deeppcr" info --device cuda 2>&1)
case $answer in
    *'no NVIDIA driver'* | *'the NVIDIA driver serves CUDA'* | *'no CUDA device'* | *'wanted 7.5 or newer'*) ;;
    *compute_capability*) ;;
    *) fail "info says: $answer" ;;
esac
# An nvcc from before CUDA 12, such as distributions carry: left out in words, and all else is configured.
folder=$(mktemp -d) || fail "no folder"
trap 'rm -rf "$folder"' EXIT
real=${CUDACXX:-$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")}
cat >"$folder/nvcc" <<NVCC
#!/usr/bin/env bash
case "\$*" in
    *--version*) echo "Cuda compilation tools, release 11.5, V11.5.119"; exit ;;
    *_90*) echo "nvcc fatal   : Unsupported gpu architecture 'compute_90'" >&2; exit 1 ;;
esac
exec "$real" "\$@"
NVCC
chmod +x "$folder/nvcc"
CUDACXX=$folder/nvcc cmake -S "$(dirname "$0")/.." -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DDEEPPCR_TESTS=OFF >"$folder/log" 2>&1 ||
    fail "an old nvcc ends the configuration: $(grep -m1 -A3 'Error' "$folder/log")"
grep -q 'CUDA backend: no nvcc of CUDA 12.0 or later found' "$folder/log" || fail "an old nvcc is not left out"
echo "cuda_module: $(stat -c %s "$module") bytes, one name; $(printf '%s\n' "$answer" | tail -1 | cut -c1-120)"
