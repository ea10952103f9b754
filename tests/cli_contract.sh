#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cli_contract.sh BUILD_DIR: the program's contract: exit codes, one line on stderr, pure stdout, help, bad arguments,
# absurd sizes, missing files, unwritable outputs, a full disk.
set -u
export LC_ALL=C
. "$(dirname "$0")/program.bash"

# done_with ARGUMENT...: exit 0, nothing on stderr; stdout is left in $folder/stdout.
done_with() {
    local status
    cases=$((cases + 1))
    "$program" "$@" >"$folder/stdout" 2>"$folder/stderr" </dev/null
    status=$?
    [ $status -eq 0 ] || complain "'$*': exit $status: $(head -c 300 "$folder/stderr")"
    [ ! -s "$folder/stderr" ] || complain "'$*': text on stderr: $(head -c 300 "$folder/stderr")"
}
# One JSON object on one line, and nothing else.
json_with() {
    done_with "$@" --json
    [ "$(wc -l <"$folder/stdout")" -eq 1 ] && python3 -c '
import json, sys
def no(name): raise ValueError(name)
assert type(json.load(sys.stdin, parse_constant=no)) is dict' <"$folder/stdout" 2>/dev/null ||
        complain "'$*': not one JSON object: $(head -c 300 "$folder/stdout")"
}

verbs="info plan solve check gradcheck train eval bench schedule convert"
lists() {  # every verb is named
    local verb
    for verb in $verbs; do grep -qw "$verb" "$1" || complain "$2 does not name $verb"; done
}

# help_in_order WORDS: what --help left on stdout has its options at column 7, their texts at 30, none beyond 80.
help_in_order() {
    local wrong
    wrong=$(awk 'within && length > 80 { print }
        /^ [A-Z].*:$/ { within = 1 }
        within && !/^$/ && !/^ [A-Z].*:$/ && !/^      --[a-zA-Z]/ && !/^  -[a-z], --/ && !(substr($0, 1, 29) ~ /^ +$/ && substr($0, 30, 1) ~ /[^ ]/) { print }
        /--usage / { exit }' "$folder/stdout" | head -n 1)
    [ -z "$wrong" ] || complain "$1 --help is out of order: $wrong"
    # Options are sorted, so that a text cannot mean the option before it.
    ! grep -nE 'The same of|the same names|: the same, but|of the other' "$folder/stdout" || complain "$1 --help means another option by its place"
}

# Verbs, help, version.
refused 2 'which verb'
lists "$folder/stderr" 'no verb'
refused 2 "no verb 'nonsense'" nonsense
lists "$folder/stderr" 'an unknown verb'
refused 2 "no verb ''" ''
done_with --help
lists "$folder/stdout" --help
done_with --version
grep -qE '^deeppcr [0-9]+\.[0-9]+\.[0-9]+$' "$folder/stdout" || complain "--version: $(cat "$folder/stdout")"
for verb in $verbs; do
    done_with "$verb" --help
    for option in --json --csv --seed --threads --quiet --help; do
        grep -q -- "$option" "$folder/stdout" || complain "$verb --help does not tell $option"
    done
    cp "$folder/stdout" "$folder/help"
    help_in_order "$verb"
    # Every long option that the help tells is one that the program takes: its message is never "unknown option".
    for option in $(grep -oE '^ +(-[a-zA-Z], )?--[a-z0-9A-Z-]+=?' "$folder/help" | grep -oE -- '--[a-zA-Z0-9-]+=?' | sort -u); do
        case $option in --help | --usage) continue ;; esac
        name=${option%=}
        value=$([ "$option" = "$name" ] || echo "=")
        "$program" "$verb" "$name$value" --no-such-option >/dev/null 2>"$folder/stderr" </dev/null
        ! grep -q -- "unknown option '$name" "$folder/stderr" || complain "$verb --help tells $name, the verb does not know it"
    done
    # The man page tells every option of the help.
    for name in $(grep -oE -- ' --[a-zA-Z0-9-]+' "$folder/help" | sort -u); do
        grep -qE "Fl Fl ${name#--}( |$)" docs/man/deeppcr.1 || complain "the man page lacks $verb's $name"
    done
    done_with "$verb" --usage
    refused 2 "unknown option '--nonsense'" "$verb" --nonsense
    refused 2 "'--seed' needs a value" "$verb" --seed
    refused 2 "'--json' takes no value" "$verb" --json=yes
    refused 2 "--seed 'x'" "$verb" --seed x
    refused 2 "--seed '1x'" "$verb" --seed 1x
    refused 2 "--seed '-1'" "$verb" --seed -1
    refused 2 "overflow" "$verb" --seed 99999999999999999999
    refused 2 "--threads '1025'" "$verb" --threads 1025
    refused 2 "--threads ''" "$verb" --threads ''
done

# What has options of its own within a verb: those too are taken, and told in the man page.
for words in generate 'bench planner' 'bench bppsa' 'bench diffusion' 'schedule profile' 'solve gru' 'solve lstm' 'solve biquads' 'solve selective' 'solve attention' 'train gru' \
    'train vae' 'train denoiser' 'train vgg11'; do
    # shellcheck disable=SC2086 # words
    done_with $words --help
    help_in_order "$words"
    grep -q "^Usage: deeppcr $words \[" "$folder/stdout" || complain "'$words --help' begins '$(head -n 1 "$folder/stdout")'"
    options=$(grep -oE '^ +(-[a-zA-Z], )?--[a-z0-9A-Z-]+' "$folder/stdout" | grep -oE -- '--[a-zA-Z0-9-]+' | sort -u)
    [ "$(wc -w <<<"$options")" -gt 10 ] || complain "'$words --help' tells hardly any options"
    # shellcheck disable=SC2086
    refused 2 "unknown option '--no-such-option'; 'deeppcr $words --help' lists them" $words --no-such-option
    for name in $options; do
        grep -qE "Fl Fl ${name#--}( |$)" docs/man/deeppcr.1 || complain "the man page lacks $name of $words"
        # shellcheck disable=SC2086
        case $name in --help | --usage) ;; *) "$program" $words "$name=" --no-such-option >/dev/null 2>"$folder/stderr" </dev/null ;; esac
        ! grep -q -- "unknown option '$name" "$folder/stderr" || complain "$words --help tells $name, which it does not know"
    done
done
# A macro's words after a comma or a bracket get no dashes of their own.
! grep -nE "Fl Fl [a-z0-9-]+ [^A-Za-z]+ [a-z]" docs/man/deeppcr.1 || complain "the man page prints options with one dash"
for variable in DEEPPCR_ISA DEEPPCR_CUDA_MODULE XDG_CACHE_HOME; do
    grep -q "Ev $variable" docs/man/deeppcr.1 || complain "the man page lacks $variable"
done

# Names list what there is; numbers are read strictly.
refused 2 "--tolerance '1e-400': wanted 0, or a number that a double tells from it (underflow)" plan resnet --tolerance 1e-400
refused 2 "--tolerance '-.5': wanted at least 0" plan resnet --tolerance -.5
refused 2 "--layers '.5': wanted a whole number" plan resnet --layers .5
refused 2 "--seed '18446744073709551615': wanted 0 to 9223372036854775807 (overflow)" info --seed 18446744073709551615
# Behind a long name the reason is still told.
long=$(printf '/%0250d' 1 2 3 4 5 6 7 8 9 10 11 12)
for words in "solve linear --A $long --b b.npy --output z.npy" "eval $long"; do
    # shellcheck disable=SC2086 # words
    refused 5 ': No such file or directory' $words
    [ "$(wc -c <"$folder/stderr")" -lt 2100 ] && grep -q ' \[\.\.\.\] ' "$folder/stderr" || complain "a long name: $(cat "$folder/stderr")"
done
# A letter is not cut in two.
name=$(printf '€%.0s' {1..80})
for before in '' x xx; do
    refused 5 ': No such file or directory' solve linear --A "/$before$(printf "$name/%.0s" {1..10})A.npy" --b b.npy --output z.npy
    iconv -f UTF-8 -t UTF-8 "$folder/stderr" >/dev/null 2>&1 || complain "a long name, '$before': no UTF-8"
done
done_with plan resnet --layers 4 --tolerance +.5
done_with plan resnet --layers 4 --tolerance 0e-400
for verb in 'check resnet' 'train resnet' 'plan mlp' 'gradcheck mlp' 'eval x' 'bench mlp'; do
    refused 2 'auto, sequential, newton, diagonal, block, picard, jacobi, damped, overlap, shooting' $verb --method nonsense
    refused 2 'auto, sequential, pcr, blelloch, chunked, overlap' $verb --scheme nonsense
    refused 2 'auto, sequential, pcr, blelloch, chunked, overlap' $verb --backward newton
    refused 2 'wanted a finite number' $verb --tolerance nan
    refused 2 'wanted at least 0' $verb --tolerance -1
    refused 2 'wanted at least 1' $verb --window 0
    refused 2 'wanted a number of bytes' $verb --memory-limit 10X
    refused 2 'overflow' $verb --memory-limit 99999999999999999999G
done
refused 2 'identity, relu, tanh, sigmoid, gelu, silu' check mlp --activation softplus
refused 2 'float32, float64' check mlp --dtype float16
refused 2 'linear, two-layer' check resnet --branch three
refused 2 'default, he, normal' check resnet --init zeros
refused 2 'sgd, adam, adamw' train mlp --optimiser lion
refused 2 'zero, identity, scalar, diagonal, block, dense' plan linear --structure sparse
refused 2 'auto, sequential, pcr, blelloch, chunked, overlap' solve linear --scheme newton
refused 2 'mlp, resnet, lorenz, logistic' check nonsense
refused 2 'which network' check
refused 2 "unexpected argument 'extra'" check resnet extra
refused 2 'mlp, resnet' train
refused 2 "--layers '-5'" check mlp --layers -5
refused 2 "--layers '1.5'" check mlp --layers 1.5
refused 2 "--layers ' 4'" check mlp --layers ' 4'
refused 2 "--layers '0x10'" check mlp --layers 0x10
for number in 0x10 0x1p3 -0X2 +0x.8 inf -inf nan; do
    refused 2 "--gain '$number': wanted a finite number" check mlp --gain $number
    refused 2 "--layers '$number'" check mlp --layers $number
done
refused 2 'in decimal' check mlp --gain 0x1p3
refused 2 'overflow' check mlp --layers 9223372036854775808
refused 2 "--width '0'" check mlp --width 0
refused 2 'overflow' check resnet --scale 1e999
refused 2 "other than 0" check resnet --scale 0
refused 2 'which kind of chain' solve
refused 2 "there are linear, rnn" solve quadratic
refused 2 'no --A' solve linear
refused 2 'no --b' solve linear --A x.npy
refused 2 'no --output' solve linear --A x.npy --b y.npy
refused 2 "'z.safetensors': what is written is npy, or npz by its name; wanted a name that does not end in .safetensors" solve linear --A x.npy --b y.npy --output z.safetensors
refused 2 "does not end in .st" solve gru --weights x.st --input x.npy --final h.st
refused 2 'standard output is wanted twice (--json and --output)' solve linear --A x.npy --b y.npy --output - --json
refused 2 '--chunk beside scheme sequential, which has none' solve linear --A x.npy --b y.npy --output z.npy --scheme sequential --chunk 4
refused 2 '--run-up beside scheme chunked' solve linear --A x.npy --b y.npy --output z.npy --scheme chunked --chunk 4 --run-up 3
refused 2 '--tolerance beside scheme pcr' solve linear --A x.npy --b y.npy --output z.npy --scheme pcr --tolerance 1e-3
refused 2 '--max-sweeps beside scheme blelloch' solve linear --A x.npy --b y.npy --output z.npy --scheme blelloch --levels 2 --max-sweeps 2
refused 2 'wanted --scheme blelloch' solve linear --A x.npy --b y.npy --output z.npy --levels 2
refused 2 '--run-up beside scheme auto, which has none; wanted --scheme overlap' solve linear --A x.npy --b y.npy --output z.npy --run-up 3
refused 2 '--max-sweeps beside scheme auto, which has none; wanted --scheme overlap' solve linear --A x.npy --b y.npy --output z.npy --max-sweeps 3
refused 2 '--scan and --deadline are for --scheme distributed' solve linear --A x.npy --b y.npy --output z.npy --scan messages
refused 2 '--block beside structure dense, which has none; wanted --structure block' plan linear --block 2
refused 2 '--block beside structure diagonal, which has none' bench chain --structure diagonal --block 2
refused 2 '--run-up beside scheme pcr, which has none; wanted --scheme auto, overlap' bench chain --scheme pcr --run-up 3
refused 2 '--max-sweeps beside scheme pcr, which has none; wanted --scheme auto, overlap' bench chain --scheme pcr --max-sweeps 3

# An option that nothing looks at, neither the method nor going back, is refused by all verbs in the same words.
for verb in 'check resnet' 'gradcheck mlp' 'train resnet' 'train gru --data bitstream' 'plan mlp' 'plan gru' 'eval x'; do
    for option in '--window 3' '--guess step' '--max-sweeps 3' --no-fallback '--join-tolerance 1'; do
        refused 2 "${option% *} beside method sequential, which has none; wanted --method auto, " $verb --method sequential $option
    done
    refused 2 '--block beside method auto, which has none; wanted --method block' $verb --method auto --block 2
    refused 2 '--damping beside method newton, which has none; wanted --method damped' $verb --method newton --damping 0.5
    refused 2 '--window beside method overlap, which has none; wanted --method auto, newton' $verb --method overlap --window 3
    case $verb in
        eval*)
            for option in '--backward pcr' '--backward-chunk 3' '--backward-run-up 3'; do
                refused 2 "${option% *} is of going back: eval goes forward alone" $verb $option
            done
            back=
            ;;
        *)
            back='--backward sequential'
            for option in --backward-chunk --backward-run-up; do
                refused 2 "$option beside backward sequential, which has none; wanted --backward auto, overlap" $verb $back $option 3
            done
            ;;
    esac
    for option in --tolerance --chunk --run-up; do
        refused 2 "$option beside method sequential, which has none; wanted --method auto, " $verb --method sequential $back $option 1
    done
    refused 2 '--scheme beside method overlap, which has none; wanted --method auto, newton' $verb --method overlap $back --scheme pcr
    refused 2 '--chunk beside scheme pcr, which has none; wanted --scheme auto, chunked, overlap' $verb --method newton $back --scheme pcr --chunk 3
done
refused 2 '--measure (--planning measure) beside method newton and backward pcr: nothing is left to decide; wanted auto' plan mlp --method newton --backward pcr --measure
refused 2 '--wisdom beside method newton: nothing is left to decide' plan gru --inference --method newton --wisdom w
refused 2 '--measure (--planning measure) beside method sequential and backward sequential: nothing' plan gru --method sequential --measure
refused 2 '--backward-chunk beside backward sequential, which has none' plan gru --length 8 --method sequential --backward-chunk 3
refused 2 '--backward-run-up beside backward sequential' train gru --data bitstream --method sequential --backward-run-up 3
refused 2 '--budget beside scheme pcr: nothing is left to decide; wanted auto' plan linear --scheme pcr --budget 1
refused 2 '--budget beside planning estimate, which measures nothing' plan linear --budget 1
for kind in mlp lorenz "lorenz --device auto" gru "mlp --cores 4 --device auto"; do refused 2 '--budget beside planning estimate, which measures nothing' plan $kind --budget 1; done
refused 2 "--cores '1.5': wanted a whole number" plan mlp --cores 1.5
for words in "plan mlp" "plan linear" "plan lorenz" "bench mlp" "bench chain"; do
    refused 2 '--length beside --layers, which is the same: wanted one of them' $words --length 10 --layers 20
    refused 2 '--length beside --layers, which is the same: wanted one of them' $words --layers 20 --length 10
done
for kind in mlp cell; do
    refused 2 '--block beside method auto, which has none; wanted --method block' bench $kind --block 2
    refused 2 '--damping beside method newton, which has none; wanted --method damped' bench $kind --method newton --damping 0.5
done
# What going back, auto or the scheme looks at is taken.
all='--scheme pcr --tolerance 1e-4 --guess step --window 5 --chunk 4 --backward-chunk 4 --run-up 3 --backward-run-up 3 --join-tolerance 1e-4 --max-sweeps 9 --no-fallback'
for verb in 'check resnet --layers 8' 'gradcheck mlp' 'plan mlp --layers 8' 'plan gru --length 8'; do
    done_with $verb --method sequential --backward overlap --tolerance 1e-9 --chunk 4 --run-up 3 --backward-chunk 4 --backward-run-up 2
    done_with $verb --method auto --backward auto $all
    done_with $verb --method newton --scheme chunked --backward pcr --chunk 3
done
done_with check resnet --layers 8 --method overlap --scheme pcr
refused 2 'both want standard output' info --json --csv -
refused 2 'standard output is wanted twice (--json and --output)' solve linear --A x.npy --b y.npy --output /dev/stdout --json
refused 2 'both want standard output' info --json --csv /dev/stdout
refused 2 'holds one array only' solve linear --A - --b - --output "$folder/z.npy"
refused 2 'which network' eval
refused 2 'named twice' eval a --load b
twice='is to be written, and is named twice'
refused 2 "$twice" solve linear --A x.npy --b y.npy --output "$folder/z" --csv "$folder/./z"
refused 2 "$twice" convert "$folder/x.onnx" "$folder/x.onnx"
refused 2 "$twice" train vae --save "$folder/m" --csv "$folder/m"
refused 2 "$twice" train vgg11 --save "$folder/m" --csv "$folder/./m"
refused 2 "$twice" train resnet --layers 3 --pipeline gpipe --save "$folder/m" --trace "$folder/./m"
# The link is made a file by the first output, and the second then goes where it leads, or the other way round.
mkdir "$folder/below"
ln -s ../dangling "$folder/below/again"
ln -s below/again "$folder/dangles"
refused 5 'cannot read what is not a regular file: /dev/null' eval /dev/null
refused 2 "$twice" train resnet --csv "$folder/dangles" --save "$folder/dangling"
refused 2 "$twice" train resnet --csv "$folder/dangling" --save "$folder/./dangles"
ln -s round "$folder/about" && ln -s about "$folder/round"
refused 4 'cannot write' train resnet --csv "$folder/about" --save "$folder/round"
over='is to be read and to be written over'
refused 2 "$over" solve linear --A x.npy --b y.npy --output y.npy
refused 2 "$over" solve linear --A x.npy --b y.npy --output "$folder/z" --csv ./x.npy
refused 2 "$over" solve biquads --sos s.npy --input x.npy --output x.npy
refused 2 "$over (--input and --final)" solve selective --input x.npz --output y.npy --final ./x.npz
refused 2 "$over (--input and --grads)" solve attention --input x.npz --grads x.npz --grad-output y.npy
refused 2 "$over" train denoiser --latent "$folder/m" --save "$folder/./m"
refused 2 "$over" train gru --data "$folder/x.txt" --save "$folder/x.txt"
# Members of an archive, tables, profiles, what data folders hold: nothing of them is touched.
mkdir -p "$folder/given/en"
given=("$folder"/given/{d.npz,t.csv,train-images-idx3-ubyte,t10k-labels-idx1-ubyte.gz,data_batch_5.bin,en/a.wav})
for file in "${given[@]}"; do echo kept >"$file"; done
ln -s given/en/a.wav "$folder/link"
npz=$folder/given/d.npz table=$folder/given/t.csv
refused 2 "$over (--A and --output)" solve linear --A "$npz:A" --b "$npz:b" --output "$npz"
refused 2 "$over (--b and --csv)" solve linear --A x.npy --b "$npz:b" --output "$folder/z" --csv "$folder/given/./d.npz"
refused 2 "$over (--input and --output)" solve gru --weights x.st --input "$npz:x" --output "$npz"
refused 2 "$over (--h0 and --final)" solve gru --weights x.st --input x.npy --h0 "$npz:h" --final "$npz"
refused 2 "$over (--sos and --final)" solve biquads --sos "$npz:sos" --input x.npy --final "$npz"
for option in svg png trace csv; do
    refused 2 "$over (--from and --$option)" schedule draw --from "$table" --$option "$table"
done
for action in validate lower simulate generate; do refused 2 "$over (--from and --csv)" schedule $action --from "$table" --csv "$table"; done
for action in simulate compare partition; do refused 2 "$over (--profile and --csv)" schedule $action --profile "$table" --csv "$table"; done
refused 2 "$twice (--svg and --png)" schedule draw --svg "$folder/z" --png "$folder/z"
refused 2 "$twice (--trace and --csv)" schedule draw --trace "$folder/z" --csv "$folder/./z"
refused 2 "$over (--wisdom and --csv)" plan resnet --measure --wisdom "$folder/z" --csv "$folder/z"
refused 2 "$over (--wisdom and --csv)" plan resnet --wisdom "$table" --csv "$table"
for file in "${given[@]:2}" "$folder/given/t10k-labels-idx1-ubyte" "$folder/link"; do
    for words in 'mlp --save' 'resnet --csv' 'mlp --pipeline gpipe --trace' 'vae --save' 'denoiser --csv' 'vgg11 --save' 'gru --save'; do
        refused 2 "$over (--data and --${words##*--})" train $words "$file" --data "$folder/given"
    done
    refused 2 "$over (--data and --csv)" eval "$table" --data "$folder/given" --csv "$file"
    for verb in generate 'bench diffusion'; do refused 2 "$over (--data and --csv)" $verb "$table" --evaluate "$table" --data "$folder/given" --csv "$file"; done
    refused 2 "$over (--data and --csv)" check --load "$table" --data "$folder/given" --csv "$file"
done
refused 5 '' train mlp --data "$folder/given" --save "$folder/given/model"  # another file there
for file in "${given[@]}"; do [ "$(cat "$file")" = kept ] || complain "$file was written over"; done
refused 2 'float64 only' check lorenz --dtype float32
refused 2 'float64 only' plan lorenz --dtype float32
refused 2 'logistic takes no --gain' plan logistic --gain 2
refused 2 'a linear chain takes no --tie' plan linear --tie 3
refused 2 'a linear chain wants --scheme' plan linear --method newton
refused 2 'takes --scheme too' plan linear --backward pcr
refused 2 'a linear chain takes no --tolerance' plan linear --tolerance 1
refused 2 'a linear chain takes no --no-fallback' plan linear --no-fallback
done_with plan linear --cores 64
refused 2 'times this machine' plan linear --cores 64 --measure
refused 2 'a linear chain takes no --wake' plan linear --wake 30
refused 4 'bytes, the limit is 1' plan linear --length 100000 --width 4 --batch 1 --scheme chunked --memory-limit 1
done_with plan linear --length 100000 --width 2 --batch 1 --memory-limit 1  # auto keeps to the limit: the loop
grep -q '^sequential: ' "$folder/stdout" || complain "auto beyond the limit: $(cat "$folder/stdout")"
refused 2 'of a linear chain' plan mlp --structure diagonal
refused 2 '--scale: that is of a resnet' plan mlp --scale 2
refused 2 'need float64' gradcheck mlp --dtype float32
refused 2 'beside --load' check --load x --layers 3

# Absurd sizes: an answer at once, never a crash.
huge=9223372036854775807
for shape in "--layers $huge" "--width $huge" "--batch $huge" "--layers 4611686018427387904 --width 4" "--layers 1000000000 --width 1000" \
    "--width 100000000 --layers 2" "--hidden $huge --branch two-layer" "--batch 1000000000000"; do
    refused 4 '' check resnet $shape
    refused 4 '' gradcheck resnet $shape
done
refused 4 '' plan resnet --layers $huge
refused 4 '' plan mlp --width $huge
json_with plan linear --length 1000000 --width 2 --batch 1

# Missing files and wrong ones.
printf 'not a file of ours' >"$folder/text"
: >"$folder/empty"
for file in missing . text empty; do
    path=$folder/$file
    refused 5 '' eval "$path"
    refused 5 '' check resnet --load "$path"
    refused 5 '' solve linear --A "$path" --b "$path" --output "$folder/z.npy"
    refused 5 '' solve linear --input "$path" --output "$folder/z.npy"
    refused 5 '' train mlp --data "$path" --layers 2
    [ ! -e "$folder/z.npy" ] || complain "an output was written for '$file'"
done
refused 5 'fashion-mnist' train mlp --data nonsense
refused 5 '?' eval "$folder/"$'new\nline'

# Results: pure stdout, true fields.
json_with info
python3 - "$folder/stdout" <<'PYTHON' || complain "info lacks a field"
import json, sys
info = json.load(open(sys.argv[1]))
assert info["processor"] and info["processor"].isprintable(), info
assert info["isa"] == info["isa_levels"][-1] or info["isa_forced"]
assert info["isa_levels"][0] == "portable" and info["isa_levels"] == [x for x in ("portable", "avx2", "avx512") if x in info["isa_levels"]]
assert info["threads"] >= 1 and info["tolerances"]["float32"] == 1e-5
assert {"newton", "overlap"} <= set(info["methods"]) and "pcr" in info["schemes"] and "block" in info["structures"]
PYTHON
json_with plan resnet --layers 64 --width 8 --batch 4
json_with plan linear --length 64 --width 8 --batch 4 --structure diagonal --scheme pcr
json_with check resnet --layers 16 --width 4 --batch 2
json_with gradcheck mlp --layers 3 --width 3 --batch 2 --activation tanh
done_with check resnet --layers 16 --width 4 --batch 2 --quiet
[ ! -s "$folder/stdout" ] || complain "--quiet prints"
done_with info --csv "$folder/info.csv"
[ "$(wc -l <"$folder/info.csv")" -eq 2 ] || complain "info --csv has not two lines"
chmod 640 "$folder/info.csv"
done_with info --csv "$folder/info.csv"
[ "$(stat -c %a "$folder/info.csv")" = 640 ] || complain "info --csv over a file of mode 640: $(stat -c %a "$folder/info.csv")"
done_with check resnet --layers 16 --width 4 --batch 2 --csv -
head -1 "$folder/stdout" | grep -qx 'sweep,residual,locked' || complain "check --csv -: $(head -1 "$folder/stdout")"
DEEPPCR_ISA=portable "$program" info --json 2>/dev/null | grep -q '"isa": "portable"' || complain "DEEPPCR_ISA is not told"
DEEPPCR_ISA=avx-2 "$program" info --quiet 2>"$folder/stderr" || complain "DEEPPCR_ISA=avx-2: exit $?"
DEEPPCR_ISA=avx-2 "$program" info --json 2>/dev/null | grep -q '"isa_forced": null' || complain "DEEPPCR_ISA=avx-2 is told as if it were heeded"
[ "$(cat "$folder/stderr")" = "deeppcr info: DEEPPCR_ISA 'avx-2' is ignored; there are portable, avx2, avx512" ] ||
    complain "DEEPPCR_ISA=avx-2: $(head -c 300 "$folder/stderr")"
for threads in 1 2 3; do done_with info --threads $threads; done

# Options stand behind the subject, whatever getopt is told.
POSIXLY_CORRECT=1 done_with plan resnet --layers 8 --width 4

# Pipes that do not block, whose other ends are slow.
cases=$((cases + 2))
python3 - "$program" "$folder" <<'PYTHON' || complain "pipes that do not block"
import os, struct, subprocess, sys, threading, time
program, folder = sys.argv[1:]
def npy(shape, numbers):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + struct.pack(f"<{len(numbers)}f", *numbers)
def give(end, data):
    time.sleep(0.2)
    with open(end, "wb") as f: f.write(data)
def through(data, *arguments):
    (take, given), (got, put) = os.pipe(), os.pipe()
    for end in take, put: os.set_blocking(end, False)
    p = subprocess.Popen([program, *arguments], stdin=take, stdout=put, stderr=subprocess.PIPE, text=True)
    os.close(take); os.close(put)
    giver = threading.Thread(target=give, args=(given, data))
    giver.start()
    time.sleep(0.4)
    with open(got, "rb") as f: answer = f.read()
    giver.join()
    assert not p.stderr.read() and p.wait() == 0, p.returncode
    return answer
def plain(*arguments): return subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE).stdout
with open(folder + "/ones.npy", "wb") as f: f.write(npy((40000, 1, 1), [1] * 40000))
chain = "solve", "linear", "--b", folder + "/ones.npy", "--output", "-", "--A"
A = npy((40000, 1, 1, 1), [0.5] * 40000)
with open(folder + "/halves.npy", "wb") as f: f.write(A)
assert through(A, *chain, "-") == plain(*chain, folder + "/halves.npy")
table = "schedule", "generate", "--schedule", "gpipe", "--ranks", "32", "--microbatches", "512"
assert through(b"", *table) == plain(*table)
PYTHON
# A pipe that nobody reads is told as that, whatever was done after it.
cases=$((cases + 1))
python3 - "$program" "$folder/broken.csv" <<'PYTHON' || complain "a pipe that nobody reads"
import os, subprocess, sys
take, put = os.pipe()
os.close(take)
p = subprocess.run([sys.argv[1], "info", "--csv", sys.argv[2]], stdout=put, stderr=subprocess.PIPE, text=True)
assert p.returncode == 4 and p.stderr == "deeppcr info: cannot write to standard output: Broken pipe\n", p
PYTHON

# What cannot be written.
if [ -w /dev/full ]; then
    for arguments in --help --version info 'info --json' 'plan resnet --layers 8 --width 4 --json' 'check mlp --layers 8 --width 4'; do
        cases=$((cases + 1))
        "$program" $arguments >/dev/full 2>"$folder/stderr"
        status=$?
        [ $status -eq 4 ] && grep -q 'standard output' "$folder/stderr" || complain "'$arguments' on a full disk: exit $status"
    done
    refused 4 '/dev/full' info --json --csv /dev/full
fi
cases=$((cases + 1))
"$program" info >&- 2>"$folder/stderr"
[ $? -eq 4 ] || complain "a closed stdout is not told"
# What is printed goes into no file that is opened in a closed stream's place.
bits='--data bitstream --limit 16 --batch 8 --length 5 --epochs 2 --threads 1'
cases=$((cases + 2))
"$program" train gru $bits --log "$folder/closed" >&- 2>"$folder/stderr"
[ $? -eq 4 ] || complain "train with a closed stdout: $(head -c 300 "$folder/stderr")"
"$program" train gru $bits --log "$folder/closed2" --rate 1e300 2>&-
[ $? -eq 2 ] || complain "train with a closed stderr"
! cat "$folder/closed" "$folder/closed2" | grep -v '^{"' || complain "that stands in the log"
refused 4 'cannot write' info --csv "$folder/missing/x.csv"
refused 4 'cannot write' info --csv "$folder"
refused 4 'cannot write' train mlp --layers 2 --save "$folder/missing/model"
for words in 'mlp --layers 2' denoiser vgg11 'rnn --data bitstream'; do
    refused 2 'cannot keep checkpoints in the stream' train $words --save -
    refused 2 'cannot keep checkpoints in the stream' train $words --save /dev/stdout
done
# A device may be written again and again, wherever output goes.
cases=$((cases + 1))
"$program" train mlp --layers 2 --data "$folder/nowhere" --save /dev/null >/dev/null 2>"$folder/stderr"
[ $? -eq 5 ] || complain "--save /dev/null beside >/dev/null: $(cat "$folder/stderr")"
for words in 'mlp --layers 2' resnet vae denoiser vgg11 'gru --data bitstream'; do
    # shellcheck disable=SC2086 # words
    refused 5 'wanted a regular file' train $words --resume /dev/null --save "$folder/model"
done
mkfifo "$folder/fifo"
refused 2 'cannot keep checkpoints in the stream' train mlp --layers 2 --save "$folder/fifo"
rm "$folder/fifo"
refused 4 'cannot write' solve linear --A x --b y --output "$folder/missing/z.npy"
if [ "$(id -u)" -ne 0 ]; then
    mkdir "$folder/closed" && touch "$folder/closed/r.csv" "$folder/open.csv"
    ln -s closed/r.csv "$folder/inwards.csv" && ln -s ../open.csv "$folder/closed/outwards.csv"
    chmod a-w "$folder/closed"
    refused 4 'cannot write' info --csv "$folder/closed/x.csv"
    refused 4 'cannot write the CSV table' info --csv "$folder/inwards.csv"
    done_with info --csv "$folder/closed/outwards.csv"
    [ "$(wc -l <"$folder/open.csv")" -eq 2 ] || complain "a link out of a closed folder is not followed"
fi
# What standard output or error goes to is written there, and not replaced.
for stream in stdout stderr; do
    cases=$((cases + 1))
    echo kept >"$folder/all"
    if [ $stream = stdout ]; then
        "$program" info --quiet --csv /dev/stdout >>"$folder/all"
    else
        "$program" info --quiet --csv "$folder/all" 2>>"$folder/all"
    fi || complain "info --csv /dev/$stream: exit $?"
    [ "$(wc -l <"$folder/all")" -eq 3 ] && [ "$(head -1 "$folder/all")" = kept ] || complain "the file of $stream: $(head -c 300 "$folder/all")"
done
# Where a file without a name gets none (a filter of system calls stands in for the file system), it is written by a name.
cases=$((cases + 1))
python3 - "$program" "$folder/linked.csv" <<'PYTHON' || complain "info --csv without linkat fails"
import ctypes, os, platform, struct, sys
program, file = sys.argv[1:]
number = {"x86_64": 265, "aarch64": 37}.get(platform.machine())
if number:
    code = struct.pack("=" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, number, 6, 0, 0, 0x50001, 6, 0, 0, 0x7fff0000)  # linkat: EPERM
    kept = ctypes.create_string_buffer(code, len(code))
    libc = ctypes.CDLL(None)
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(22, 2, struct.pack("@HP", 4, ctypes.addressof(kept)))
os.execv(program, [program, "info", "--quiet", "--csv", file])
PYTHON
[ "$(wc -l <"$folder/linked.csv")" -eq 2 ] || complain "info --csv without linkat: $(head -c 300 "$folder/linked.csv")"
leftover=$(find "$folder" -name '*.csv.*' -o -name '.deeppcr-*')
[ -z "$leftover" ] || complain "temporary files are left: $leftover"

[ $failures -eq 0 ] || { echo "cli_contract: $failures of $cases cases wrong"; exit 1; }
echo "cli_contract: $cases cases"
