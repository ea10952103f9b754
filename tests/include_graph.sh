#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# include_graph.sh BUILD_DIR: each folder of src/ includes only what it may stand on, public headers only public ones,
# examples and the program no private ones; and no folder calls a function of one that it must not stand on, whoever
# declares it (seen in the object files). Prints every offence.
set -u
build=${1:?usage: include_graph.sh BUILD_DIR}

# folder: what it may include and call besides itself. Public headers belong to the folder that implements them; a
# header named here by itself lends its types only.
rules='
base:
rt: base
data: base
kern: base rt deeppcr/transition.h
transition: base rt kern
chain: base rt kern transition
solve: base rt kern transition chain data
nn: base rt kern transition chain solve
model: base rt kern transition chain solve nn data
train: base rt kern transition chain solve nn model data
sample: base rt kern transition chain solve nn model data train
xla: base chain model
pipe: base
pipe_executor: base rt model pipe data nn solve chain transition kern train
workers: base rt model pipe pipe_executor data nn solve chain transition kern train
cli: base rt data transition chain solve model train sample pipe pipe_executor workers
examples: base rt data transition chain solve model train sample pipe pipe_executor workers
'
public='
array.h:base context.h:base export.h:base status.h:base
data.h:data
transition.h:transition
chain.h:chain bppsa.h:chain
solve.h:solve
activation.h:nn cell.h:nn embedding.h:nn jacobian.h:nn
model.h:model recurrent.h:model
train.h:train sequence.h:train
sample.h:sample
filter.h:chain selective.h:chain attention.h:chain
transport.h:rt device.h:rt
profile.h:pipe schedule.h:pipe
pipeline.h:pipe_executor
workers.h:workers
xla.h:xla
'

# shellcheck disable=SC2016
read_rules='
    function read_rules(   n, m, i, j, line, part, below) {
        n = split(rules, line, "\n")
        for (i = 1; i <= n; i++) {
            if (split(line[i], part, ":") < 2) continue
            known[part[1]] = 1
            m = split(part[2], below, " ")
            for (j = 1; j <= m; j++) may[part[1], below[j]] = 1
            may[part[1], part[1]] = 1
        }
    }
'

failed=0
find src cli include/deeppcr examples -name '*.[ch]' -o -name '*.cu' -o -name '*.def' -o -name '*.inc' | sort |
    xargs -r grep -nE '^[[:space:]]*#[[:space:]]*include' /dev/null |
    awk -v rules="$rules" -v public="$public" "$read_rules"'
    BEGIN {
        read_rules()
        n = split(public, word, /[ \n]+/)
        for (i = 1; i <= n; i++) if (split(word[i], part, ":") == 2) owner[part[1]] = part[2]
    }
    function folder_of(file,   p) {
        split(file, p, "/")
        if (p[1] == "include") return p[3] in owner ? owner[p[3]] : "unknown public header"
        if (p[1] == "src" && p[2] == "pipe" && p[3] ~ /^execut/) return "pipe_executor"
        return p[1] == "src" ? p[2] : p[1]
    }
    function offence(text) { print "include_graph: " file ":" number ": " text ": " $0; bad++ }
    {
        match($0, /^[^:]*:[0-9]+:/)
        split(substr($0, 1, RLENGTH - 1), at, ":")
        file = at[1]; number = at[2]
        $0 = substr($0, RLENGTH + 1)
        sub(/^[ \t]*/, "")
        name = $0
        sub(/^#[ \t]*include[ \t]*/, "", name)
        quoted = name ~ /^"/
        name = substr(name, 2); sub(/[">].*$/, "", name)
        if (file == "include/deeppcr/deeppcr.h") next   # includes them all
        from = folder_of(file)
        if (!(from in known)) { offence("folder \047" from "\047 is not in the graph"); next }
        if (name == "mpi.h" && file !~ /\/mpi\//) offence("MPI outside a folder named mpi")
        if (name ~ /^(oneapi\/)?dnnl/ && file !~ /\/onednn\//) offence("oneDNN outside a folder named onednn")
        if (name ~ /^(cuda|cublas|nccl)/ && file !~ /\/cuda\//) offence("CUDA outside a folder named cuda")
        if (name ~ /\/cuda\// && file !~ /\/cuda\//) offence("what lies in a folder named cuda is needed outside")
        if (name ~ /(^|\/)\.\.?\//) { offence("relative path"); next }
        is_public = file ~ /^include\//
        if (name ~ /^deeppcr\//) {
            short = substr(name, 9)
            if (short == "deeppcr.h") to = "base"
            else to = short in owner ? owner[short] : "unknown public header"
        } else if (!quoted) next
        else if (name ~ /\//) {
            split(name, p, "/")
            to = p[1]
            if (is_public || from == "cli" || from == "examples") { if (to != from) offence("private header"); next }
            if (from == "pipe" && name ~ /execut/) to = "pipe_executor"
        } else if (is_public) to = name in owner ? owner[name] : "private header"
        else to = from
        if (to != from && !((from, to) in may) && !((from, name) in may)) offence("\047" from "\047 must not stand on \047" to "\047")
    }
    END {
        if (bad) exit 1
        print "include_graph: " NR " includes, all along the arrows"
    }' || failed=1

# Calls: which folder each external name belongs to, and who uses it. A name is the folder's whose header declares it
# (base declares the allocator, which rt implements), or that of the object which defines it.
objects=$build/CMakeFiles/deeppcr_objects.dir/src
[ -d "$objects" ] || { echo "include_graph: no objects in $objects"; exit 1; }
declared=$(grep -oE '^[a-z_][A-Za-z0-9_ *]*[ *]dpcri_[a-z0-9_]+\(' src/*/*.h | sed -nE 's,^src/([a-z]+)/.*[ *](dpcri_[a-z0-9_]+)\($,\2:\1,p')
(cd "$objects" && find . -name '*.o' | sed 's,^\./,,' | while read -r object; do
    [ ! -f "$OLDPWD/src/${object%.o}" ] || printf '%s\0' "$object"  # sources that are gone leave their objects
done | xargs -0 -r nm -A -g) |
    awk -v rules="$rules" -v declared="$declared" "$read_rules"'
    function folder_of(file,   p) {
        split(file, p, "/")
        return p[1] == "pipe" && p[2] ~ /^execut/ ? "pipe_executor" : p[1]
    }
    BEGIN {
        read_rules()
        n = split(declared, word, "\n")
        for (i = 1; i <= n; i++) if (split(word[i], part, ":") == 2) home[part[1]] = part[2]
    }
    {
        file = $1
        sub(/:.*/, "", file)
        name = $NF
        if ($(NF - 1) == "U") { uses++; user[uses] = file; used[uses] = name } else if (!(name in home)) home[name] = folder_of(file)
    }
    END {
        for (i = 1; i <= uses; i++) {
            from = folder_of(user[i])
            to = home[used[i]]
            if (to == "" || (from, to) in may) continue
            print "include_graph: " user[i] ": \047" from "\047 must not call \047" to "\047: " used[i]
            bad++
        }
        if (bad) exit 1
        if (!uses) { print "include_graph: no calls found in the objects"; exit 1 }
        print "include_graph: " uses " uses of external names, all along the arrows"
    }' || failed=1
exit $failed
