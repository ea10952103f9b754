// SPDX-License-Identifier: MIT
// What the verbs share: exit codes, option groups, output, the context, data sets. The program uses the library through
// its public headers alone.
#ifndef DEEPPCR_CLI_H
#define DEEPPCR_CLI_H

#include <argp.h>
#include <deeppcr/deeppcr.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// Exit codes: the contract of the man page. A signal that stopped the work gives 128 + its number (130, 143).
enum {
    CLI_DONE = 0,
    CLI_DISAGREE = 1,     // results that should agree do not
    CLI_USAGE = 2,        // wrong arguments
    CLI_UNCONVERGED = 3,  // not converged, and told not to fall back
    CLI_RESOURCES = 4,    // memory, disk, threads, unwritable output, a device that is not there
    CLI_INPUT = 5         // an input file is missing or not what it should be
};

// ---- verbs: main.c holds the table ----

typedef struct cli_verb {
    const char *name, *summary;
    int (*run)(int argc, char **argv);  // argv[0] is the verb's name; returns the exit code
    bool shares_out;                    // may be several processes, or refuses them by itself
} cli_verb;

int cli_verb_info(int argc, char **argv);
int cli_verb_plan(int argc, char **argv);
int cli_verb_solve(int argc, char **argv);
int cli_verb_check(int argc, char **argv);
int cli_verb_gradcheck(int argc, char **argv);
int cli_verb_convert(int argc, char **argv);
int cli_verb_train(int argc, char **argv);
int cli_verb_eval(int argc, char **argv);
int cli_verb_bench(int argc, char **argv);
int cli_verb_generate(int argc, char **argv);
int cli_verb_schedule(int argc, char **argv);
int cli_solve_recurrent(int argc, char **argv);  // solve rnn|rnn-relu|gru|lstm; argv[0] is the kind
int cli_solve_biquads(int argc, char **argv);    // solve biquads; argv[0] is "biquads"
int cli_solve_selective(int argc, char **argv);  // solve selective; argv[0] is "selective"
int cli_solve_attention(int argc, char **argv);  // solve attention; argv[0] is "attention"
int cli_train_diffusion(int argc, char **argv);  // train vae|denoiser; argv[0] is the kind
bool cli_names_diffusion(const char *word);
int cli_train_sequence(int argc, char **argv);  // train rnn|rnn-relu|gru|lstm; argv[0] is the kind
bool cli_names_recurrent(const char *word);
int cli_bench_planner(int argc, char **argv);    // bench planner; argv[0] is "planner"
int cli_bench_bppsa(int argc, char **argv);      // bench bppsa; argv[0] is "bppsa"
int cli_bench_diffusion(int argc, char **argv);  // bench diffusion; argv[0] is "diffusion"

// ---- errors: one line on stderr, "deeppcr VERB: text" ----

void cli_set_verb(const char *verb);
const char *cli_get_verb(void);
// Print the line and return `status`. Control characters in the text are replaced, so the line stays one.
int cli_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The same of the library's sentence, in which the program's options have their own names.
int cli_fail_in_words(int status, const char *text);
// The same from a library error; what was being done decides between a bad input and a lack of resources.
// CLI_STRICTLY: computing that must not fall back, where what is not supported is to go on.
typedef enum cli_doing { CLI_READING, CLI_WRITING, CLI_COMPUTING, CLI_STRICTLY } cli_doing;
int cli_fail_error(const dpcr_error *error, cli_doing doing);
// The same of a recurrent network's weights that were to be read: where they lie behind a prefix it names the option.
int cli_fail_weights(const dpcr_error *error);
// The same of training, whose data a checkpoint may not fit: the library calls their number data.count.
int cli_fail_training(const dpcr_error *error);
// A line like that of what does not end the program.
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_silence(bool on);  // another process of the same job tells it
bool cli_silent(void);
void cli_hold(bool on);  // told later, when all processes have agreed on it
int cli_failed(void);    // the status of the last one told, or 0
const char *cli_failed_text(void);
int cli_fail_memory(const char *what);
// Of a file that cannot be read, by errno: that there is no memory for it is no fault of the file's.
int cli_fail_reading(const char *what, const char *path, int code);
// What there is to say of a solve that gave up, as it was told not to fall back.
void cli_unconverged_text(int sweeps, char *text, size_t bytes);
int cli_fail_unconverged(int sweeps);
const char *cli_gave_up_text(bool gave_up, bool agrees);  // after the words that results agree, or do not
int cli_fail_stopped(void);                               // by cli_signal()

// ---- arguments ----

// A group of options that several verbs share: its argp and what it fills.
typedef struct cli_group {
    const struct argp *argp;
    void *input;
    const char *header;  // over its options in --help
} cli_group;

enum { CLI_MAX_GROUPS = 8, CLI_MAX_POSITIONAL = 2 };

typedef struct cli_syntax {
    const char *arguments;  // in --help, such as "mlp|resnet"
    const char *doc;        // argp's doc: text before the options, '\v', text after
    cli_group groups[CLI_MAX_GROUPS];
    int most;  // positional arguments at most
} cli_syntax;

// Prints --help of a verb, or its first lines only; `own` is the table of the options that every verb has.
void cli_help(const cli_syntax *syntax, const struct argp_option *own, const char *name, bool in_short);

// Parses; true: go on. False: `status` is the exit code (help was printed, or a usage error told). argv[0] is the
// verb's name or, within it, the kind's that has a help of its own, which is called "deeppcr VERB KIND" then.
bool cli_parse(const cli_syntax *syntax, int argc, char **argv, const char *positional[CLI_MAX_POSITIONAL],
               int *status);

// Does the command line name one of `ours`, at its front or, where none of `other` is named, anywhere (last before
// first: words between may be values of options)? If so that name moves to argv[1].
bool cli_name_first(int argc, char **argv, bool (*ours)(const char *word), bool (*other)(const char *word));

// Strict readers of option values. On failure they tell it (naming the option) and return false.
bool cli_read_int64(const char *option, const char *text, int64_t low, int64_t high, int64_t *value);
bool cli_read_int(const char *option, const char *text, int low, int high, int *value);
bool cli_read_double(const char *option, const char *text, double low, double high, double *value);
// The next item of a list "A, B,C" that is taken apart, without the spaces around it; NULL: there was none left.
char *cli_next_item(char **rest);
bool cli_read_bytes(const char *option, const char *text, size_t *value);        // suffixes K, M, G: powers of 1024
bool cli_read_prefix(const char *option, const char *text, const char **value);  // of names in --weights
bool cli_read_dtype(const char *option, const char *text, dpcr_dtype *dtype);
bool cli_read_method(const char *option, const char *text, dpcr_method *method);
bool cli_read_scheme(const char *option, const char *text, dpcr_scheme *scheme);
bool cli_read_structure(const char *option, const char *text, dpcr_structure *structure);
bool cli_read_activation(const char *option, const char *text, dpcr_activation *activation);
// One of the `count` words; its index.
bool cli_read_word(const char *option, const char *text, const char *const *words, int count, int *index);
// "a, b, c" of such a table, into `text`.
void cli_join_words(const char *const *words, int count, char *text, size_t bytes);

typedef struct cli_common {
    bool json, quiet;
    bool stdout_taken;  // by an output: no text there
    uint64_t seed;
    int threads;
    const char *csv;
    // --device. A verb that runs on devices says so before it parses; of the others cuda is refused in words.
    bool serves_devices;
    const char *device_given;  // NULL: no --device
    bool device_auto;          // --device auto, and there is one: the verb weighs it
    dpcr_device device;        // type 0: the processor
} cli_common;
extern const struct argp cli_common_argp;
// What --denormals left: true too where processors have no such mode.
bool cli_flushes_denormals(void);
#define CLI_COMMON_DEFAULTS \
    { .seed = 1 }

// Settles --device once everything is parsed: false, and told, where what was asked for is not there or not served.
bool cli_device_settle(cli_common *common);
// --device auto stays on the processor, with the reason: what `what` take on devices is not measured.
void cli_device_leave_auto(cli_common *common, const char *what);
// What a report says of it, where --device was given; NULL otherwise. The first line of text tells it, and JSON.
const char *cli_device_sentence(void);
void cli_device_decide(const char *format, ...) __attribute__((format(printf, 1, 2)));

typedef struct cli_solver {
    dpcr_solve_options options;
    bool method_given, scheme_given, backward_given;
    bool backward_by_scheme;  // --scheme is that of going back too
    unsigned given;           // a bit an option
} cli_solver;
extern const struct argp cli_solver_argp;
// What is run: a bit a method, and one more over ranks, which look at some options whatever each one's method is.
enum { CLI_OVER_RANKS = DPCR_METHOD_COUNT };
#define CLI_RUNS(METHOD) (1u << (METHOD))
// Does what is run (`what` in messages; NULL: the solver's method), or going back, look at all options that are given?
// `alone`: why nothing goes back, NULL where something does. Tells it otherwise and returns false (exit code 2).
bool cli_solver_fits(const cli_solver *solver, unsigned runs, const char *what, const char *alone);
// The same of one option, called so in messages, that these methods look at; and those that look at one of the
// solver's.
bool cli_runs_look(unsigned runs, unsigned methods, const char *option, const char *what);
unsigned cli_option_methods(const char *option);
// Do the method and the scheme of going back that these options name look at the solver's option of this name?
bool cli_option_counts(const dpcr_solve_options *options, const char *option, bool back);
// As a recurrent network takes it: behind the loop it goes back by the loop, where no other way is named.
cli_solver cli_solver_of_layers(const cli_solver *solver);
// The defaults of check and gradcheck.
void cli_solver_settle_check(cli_solver *solver);
// As cli_network_only (below).
bool cli_solver_only(const cli_solver *solver, const char *what, const char *const *taken);
#define CLI_SOLVER_DEFAULTS                              \
    {                                                    \
        .options = {.size = sizeof(dpcr_solve_options) } \
    }

typedef struct cli_optimiser {
    dpcr_optimiser_options options;
    bool rate_given, decay_given, momentum_given, warm_up_given;
} cli_optimiser;
extern const struct argp cli_optimiser_argp;
#define CLI_OPTIMISER_DEFAULTS                                                                \
    {                                                                                         \
        .options = {.size = sizeof(dpcr_optimiser_options), .kind = DPCR_ADAMW, .total = -1 } \
    }
const char *cli_optimiser_name(dpcr_optimiser_kind kind);
// Fills in what was not given, for a run of `steps` steps in all.
void cli_optimiser_settle(cli_optimiser *optimiser, int64_t steps);

typedef enum cli_init { CLI_INIT_DEFAULT = 0, CLI_INIT_HE, CLI_INIT_NORMAL } cli_init;

typedef struct cli_network {
    dpcr_model_options options;
    const char *first_given;  // an option that describes the network: wrong beside a file that holds it
    unsigned given;           // a bit an option
    cli_init init;
    double gain;
    int64_t batch;
} cli_network;
extern const struct argp cli_network_argp;
// Are no options given but `taken`, whose last is NULL? Tells it otherwise and returns false (exit code 2).
bool cli_network_only(const cli_network *network, const char *what, const char *const *taken);
// Was the option of this name given?
bool cli_network_gives(const cli_network *network, const char *name);
// Does the network take all that are given? Tells it otherwise and returns false (exit code 2).
bool cli_network_fits(const cli_network *network);
// Reads the positional "mlp" or "resnet".
bool cli_read_architecture(const char *text, const char *others, dpcr_architecture *architecture);
const char *cli_architecture_name(dpcr_architecture architecture);
const char *cli_branch_name(dpcr_branch branch);

// ---- context, memory, signals ----

// The context of the common options; its allocations together stay below this machine's memory, so that an absurd size
// is refused instead of ending in the hands of the kernel.
dpcr_context *cli_context_create(const cli_common *common, int *status);
// Gives the context this machine's rates: from the user's cache (true), or measured (`anew`: in any case) and kept
// there.
bool cli_machine_load(dpcr_context *context, bool anew);
// Of --wisdom FILE; nothing where `path` is NULL, no file, or an empty one. Returns the exit code.
int cli_wisdom_load(dpcr_context *context, const char *path);
// Writes it, with what other processes have written to the file meanwhile. Returns the exit code.
int cli_wisdom_save(dpcr_context *context, const char *path);
void *cli_allocate(size_t bytes);  // 64-byte aligned; NULL when refused
void cli_release(void *memory);
size_t cli_memory_budget(void);

void cli_signals_install(void);
int cli_signal(void);  // the signal that asked to stop, or 0
// Between two looks for it: it may come just before a call that waits.
enum { CLI_WAIT_MS = 50 };
// From now on a signal ends the program (true; one noted before, now), or is only noted (false). True is for computing
// that does not ask by itself, and of which nothing is kept. Returns what held before. cli_write_file ends its file.
bool cli_signals_at_once(bool on);
double cli_now(void);  // seconds of a monotonic clock

// "file.npz:name": the file, to be freed, and the member; else the whole path and NULL. NULL: no memory.
char *cli_array_file(const char *path, const char **member);
// Reads an array of floating-point numbers: "file.npz:name" is member `name`, "file.npz" its member `what`, or else its
// only array, "-" is standard input. `what` is it in messages. `file` owns the numbers. Returns the exit code.
int cli_array_read(dpcr_context *context, const char *what, const char *path, dpcr_tensors *file,
                   const dpcr_array **array);
// Can the name be that of an output: no "file.npz:name"? Tells it otherwise and returns false (exit code 2).
bool cli_array_place(const char *path);
// Writes one: "file.npz" has it as its member `name`, "-" is npy on standard output, all else npy; NULL: nothing is
// written. Returns the exit code.
int cli_array_write(const char *path, const char *name, const dpcr_array *array);

// A contiguous array of zeros of our own; false: told, exit code 4.
bool cli_array_create(dpcr_dtype dtype, int32_t ndim, const int64_t *shape, dpcr_array *array);
void cli_array_destroy(dpcr_array *array);
int64_t cli_array_count(const dpcr_array *array);
double cli_array_get(const dpcr_array *array, int64_t offset);  // element `offset` of the memory
void cli_array_set(const dpcr_array *array, int64_t offset, double value);
// Standard normal numbers by counter: element i is number i of the stream. A signal ends it early: what computes with
// them then hears it too.
void cli_array_normal(const dpcr_array *array, uint64_t seed, uint64_t stream);
double cli_normal(uint64_t seed, uint64_t stream, uint64_t index);
// The hash (FNV-1a) of what `hash` is of with these bytes after it; CLI_HASH: of nothing.
#define CLI_HASH UINT64_C(14695981039346656037)
uint64_t cli_hash(uint64_t hash, const void *bytes, size_t count);
// Of what a file holds; `what` is it in the message where it cannot be read. Returns the exit code.
int cli_hash_file(const char *what, const char *path, uint64_t *hash);
uint64_t cli_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);

// ---- output ----

// The end of a noun that has this number before it.
static inline const char *cli_s(int64_t number) { return number == 1 ? "" : "s"; }

// A JSON object that remembers whether anything could not be set.
typedef struct cli_result {
    json_t *object;
    bool failed;
} cli_result;
cli_result cli_result_create(void);
void cli_result_destroy(cli_result *result);
json_t *cli_result_take(cli_result *result);                           // its object; NULL where it failed; destroys it
void cli_set(cli_result *result, const char *key, json_t *value);      // takes the value over
void cli_set_real(cli_result *result, const char *key, double value);  // null unless finite
void cli_set_int(cli_result *result, const char *key, int64_t value);
void cli_set_text(cli_result *result, const char *key, const char *text);
void cli_set_bool(cli_result *result, const char *key, bool value);
json_t *cli_json_real(double value);
// Both take the value over. An object or a list that lacks one, for want of memory, is none: NULL.
void cli_put(json_t **object, const char *key, json_t *value);
void cli_append(json_t **list, json_t *value);
json_t *cli_json_reals(const double *values, int64_t count);
json_t *cli_json_ints(const int64_t *values, int64_t count);
// Its text and a line feed, of malloc; NULL: no memory.
char *cli_json_line(const json_t *object, size_t flags);
// With --json the object on stdout. Returns the exit code.
int cli_print_json(const cli_result *result);
// A file in memory. open_memstream's says nothing of what it had no memory for.
typedef struct cli_buffer {
    FILE *out;
    char *text;  // once closed: of malloc, with a 0 behind its bytes
    size_t bytes, room;
    bool failed;
} cli_buffer;
FILE *cli_buffer_open(cli_buffer *text);  // its `out`; NULL: no memory
bool cli_buffer_close(cli_buffer *text);  // false: no memory, and no text
// Closes it and writes the file at `path`. Returns the exit code.
int cli_buffer_save(cli_buffer *text, const char *what, const char *path);
// A text in quotes, whatever it holds, on one line.
void cli_csv_text(FILE *out, const char *text);
// --csv FILE of the object's single values: a line of names, a line of values.
int cli_csv_result(const cli_common *common, const cli_result *result);
// Writes a whole file, as dpcr_text_write does.
int cli_write_file(const char *path, const char *text, size_t bytes);
// Human text on stdout, unless --json or --quiet, or where an output goes there (cli_stdout_share).
void cli_say(const cli_common *common, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The usual end of a verb: CSV, JSON. Returns `status`, or the code of what went wrong.
int cli_finish(const cli_common *common, const cli_result *result, int status);

// A progress bar on stderr, when that is a terminal.
typedef struct cli_progress {
    bool shown;
    double last;  // when it was last drawn
} cli_progress;
void cli_progress_start(cli_progress *progress, const cli_common *common);
void cli_progress_draw(cli_progress *progress, const dpcr_train_state *state, bool now);
void cli_progress_clear(cli_progress *progress);

// ---- data sets ----

#define CLI_FASHION_MNIST "fashion-mnist"
#define CLI_FASHION_MNIST_FOLDER "/usr/share/datasets/fashion-mnist"
#define CLI_FASHION_MNIST_PACKAGE "dataset-fashion-mnist"

// `data` is a name that we know or a folder of IDX or CIFAR-10 files. Reads a split, at most `limit` images of it (0:
// all). Returns the exit code.
int cli_data_read(dpcr_context *context, const char *data, const char *split, int64_t classes, int64_t limit,
                  dpcr_dataset *dataset);
bool cli_data_present(const char *folder);
uint64_t cli_data_hash(const dpcr_dataset *dataset);  // of its pixels and labels
// The file or folder that any verb's --data reads; NULL: none.
const char *cli_data_place(const char *data);
// Is `path` one of the files that data sets in this folder have, or a sound below it?
bool cli_data_holds(const char *folder, const char *path);
// Rows of x [n][inputs]: pixels of the first n images, standardised by their own mean and deviation.
void cli_data_rows(const dpcr_dataset *dataset, const dpcr_array *x);

// ---- sounds, where the program was built with libsndfile ----

// Does the name end as a sound's does?
bool cli_sound_name(const char *path);
// A whole sound as float [samples][channels], and its sampling rate. Returns the exit code; otherwise nothing is made.
int cli_sound_read(const char *path, dpcr_array *x, int *rate);
// Has it no NaN, infinity or sample of more than 1e30, of which there would be no features? Else tells it: exit code 5.
int cli_sound_check(const char *path, const dpcr_array *x);
// Can the format that `path` ends in hold a sound of that form, [samples][channels], at that sampling rate? Else tells
// it. The exit code.
int cli_sound_fits(const char *path, const dpcr_array *x, int rate);
// Writes one that fits (.wav and others of float, .flac of 24 bits, telling what is clipped), as cli_write_file does.
int cli_sound_write(const char *path, const dpcr_array *x, int rate);

// Is `path` a file that can be read? Tells it otherwise and returns false (exit code 5).
bool cli_readable(const char *what, const char *path);
bool cli_resumable(const char *path);  // the same of a checkpoint, which no stream is
// Can cli_write_file write `path` (its folder, a link's file's, takes files)? Tells it otherwise and returns false
// (exit code 4).
bool cli_writable(const char *what, const char *path);
// What a line says beside a method that did not converge everywhere: ", finished in order"; else "".
const char *cli_in_order(dpcr_reason reason);
// Has a path (NULL: none) that ending, such as ".npz"?
bool cli_name_ends(const char *path, const char *ending);
// May safetensors be written to `path` (NULL: none)? A name of NumPy's is refused, and told.
bool cli_safetensors_name(const char *option, const char *path);
// Is an output at `path` (NULL: none) standard output, by "-" or by any name of where that goes, such as /dev/stdout?
bool cli_is_stdout(const char *path);
// Can checkpoints, each in the place of the one before, be kept at `path` (NULL: none are)? Tells it otherwise and
// returns the exit code: 2 for a stream, which would get them all one after another, and where there is no path for
// `seconds`, --checkpoint-seconds or 0; else as cli_writable.
int cli_check_save(const char *path, double seconds);
// A file of the command line; path NULL: none.
typedef struct cli_file {
    const char *option, *path;
} cli_file;
bool cli_is_one_file(const char *a, const char *b);
// Are these files all different ones? Tells it otherwise and returns false (exit code 2). Standard output and devices
// may come again.
bool cli_distinct(const cli_file *files, size_t count);
// Is none of the files that are written one of those that are read: a file, a member FILE.npz:NAME, or what is read in
// a data set's folder? Tells it otherwise and returns false.
bool cli_spares(const cli_file *written, size_t count, const cli_file *read, size_t inputs);
// Does standard output get at most one of these files, --csv among them, and --json? Tells it otherwise and returns
// false (exit code 2). Where it gets one, cli_say says nothing from then on: no text goes between arrays.
bool cli_stdout_share(cli_common *common, const cli_file *written, size_t count);
// All three, as a verb asks them of its outputs.
bool cli_outputs_settle(cli_common *common, const cli_file *written, size_t count, const cli_file *read, size_t inputs);

#endif
