// SPDX-License-Identifier: MIT
// deeppcr VERB [options]: finds the verb, runs it, and makes sure that what it printed has arrived.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "ranks.h"
#include "world.h"

static const cli_verb verbs[] = {
    {"info", "what this build and this machine offer", cli_verb_info, true},
    {"plan", "which method and scheme would be chosen, and why", cli_verb_plan, false},
    {"solve", "solve chains from files: linear, recurrent networks, filters, scans, attention", cli_verb_solve, true},
    {"check", "compare a parallel solve with the loop, forward and backward", cli_verb_check, false},
    {"gradcheck", "compare gradients with finite differences", cli_verb_gradcheck, false},
    {"convert", "recurrent nodes of an ONNX model as weights for solve; features of a recording", cli_verb_convert,
     false},
    {"train", "train networks: images, texts, bit streams, recordings, diffusion", cli_verb_train, true},
    {"eval", "accuracy and loss of a trained network", cli_verb_eval, false},
    {"generate", "pictures by a diffusion model, its steps at once", cli_verb_generate, false},
    {"bench", "time a chain by the loop, in parallel and by auto", cli_verb_bench, false},
    {"schedule", "pipeline schedules: make, check, time and draw them", cli_verb_schedule, false},
};
enum { VERBS = sizeof verbs / sizeof verbs[0] };

static void join_verbs(char *text, size_t bytes) {
    const char *names[VERBS];
    for (int i = 0; i < VERBS; i++) names[i] = verbs[i].name;
    cli_join_words(names, VERBS, text, bytes);
}

static void print_help(void) {
    printf(
        "Usage: deeppcr VERB [OPTION...]\n\n"
        "Sequential neural computations, solved in parallel over their length.\n\nVerbs:\n");
    for (int i = 0; i < VERBS; i++) printf("  %-10s %s\n", verbs[i].name, verbs[i].summary);
    printf(
        "\n'deeppcr VERB --help' tells a verb's options; 'deeppcr --version' the version.\n"
        "Exit status: 0 done, 1 results disagree, 2 usage, 3 not converged and told not to fall back,\n"
        "4 out of resources (memory, disk, threads, unwritable output, no such device), 5 bad input file,\n"
        "128 + N stopped by signal N.\n");
}

// The library goes by the processor then, and says nothing.
static void check_level(void) {
    static const char *const levels[] = {"portable", "avx2", "avx512"};
    const char *forced = getenv("DEEPPCR_ISA");
    bool known = !forced || !*forced || cli_world_rank() > 0;
    for (int i = 0; !known && i < 3; i++) known = !strcmp(forced, levels[i]);
    if (!known) cli_warn("DEEPPCR_ISA '%.60s' is ignored; there are portable, avx2, avx512", forced);
}

static bool asks_for_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h") || !strcmp(argv[i], "--usage")) return true;
    return false;
}

// Several processes would each do the whole work of most verbs, and write the same files.
static int run_verb(const cli_verb *verb, int argc, char **argv) {
    cli_set_verb(verb->name);
    check_level();
    if (cli_world_size() > 1 && !verb->shares_out && !asks_for_help(argc, argv)) {
        cli_silence(cli_world_rank() > 0);
        return cli_fail(CLI_USAGE, "runs in one process, but started as %lld, as the environment of mpirun says",
                        (long long)cli_world_size());
    }
    return verb->run(argc, argv);
}

static int run(int argc, char **argv) {
    char list[256];
    join_verbs(list, sizeof list);
    if (argc < 2) return cli_fail(CLI_USAGE, "which verb? there are %s; 'deeppcr --help' tells more", list);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_help();
        return CLI_DONE;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("deeppcr %s\n", dpcr_version());
        return CLI_DONE;
    }
    for (int i = 0; i < VERBS; i++)
        if (!strcmp(argv[1], verbs[i].name)) return run_verb(&verbs[i], argc - 1, argv + 1);
    return cli_fail(CLI_USAGE, "no verb '%.60s'; there are %s", argv[1], list);
}

// A stream that the caller has closed stays one that fails: else the next file opened, a log, would get what is told.
static void keep_streams_apart(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
}

// ---- standard output ----

static int write_error;  // errno of the first write that failed

static void remember_error(void) {
    if (!write_error) write_error = errno;
}

// Fewer bytes than count are a failure. A pipe of the caller's may be non-blocking.
static ssize_t write_out(void *cookie, const char *bytes, size_t count) {
    (void)cookie;
    size_t done = 0;
    while (done < count) {
        const ssize_t wrote = write(STDOUT_FILENO, bytes + done, count - done);
        if (wrote >= 0)
            done += (size_t)wrote;
        else if (errno != EAGAIN || poll(&(struct pollfd){STDOUT_FILENO, POLLOUT, 0}, 1, -1) < 0)
            return remember_error(), (ssize_t)done;
    }
    return (ssize_t)done;
}

static int close_out(void *cookie) {
    (void)cookie;
    const int failed = close(STDOUT_FILENO);
    if (failed) remember_error();
    return failed;
}

// The C library's own stream forgets why a write failed as soon as another call does.
static void remember_errors_of_stdout(void) {
    FILE *const out = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_out, .close = close_out});
    if (!out) return;
    if (isatty(STDOUT_FILENO)) setvbuf(out, NULL, _IOLBF, BUFSIZ);
    stdout = out;
}

int main(int argc, char **argv) {
    keep_streams_apart();
    remember_errors_of_stdout();
    unsetenv("POSIXLY_CORRECT");  // options may stand behind a verb's subject, as the man page has them
    unsetenv("DNNL_VERBOSE");     // oneDNN's lines would go to standard output
    unsetenv("ONEDNN_VERBOSE");
    cli_signals_install();
    dpcr_flush_denormals(1);  // --denormals keep takes it back
    const int status = run(argc, argv);
    if (!cli_world_asked()) cli_ranks_tell_alone();
    // A full disk shows itself only here, when the buffer is written.
    const bool failed = ferror(stdout) != 0;
    if ((fclose(stdout) != 0 || failed) && status == CLI_DONE)
        return cli_fail(CLI_RESOURCES, "cannot write to standard output: %s",
                        strerror(write_error ? write_error : EIO));
    return status;
}
