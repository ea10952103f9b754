// SPDX-License-Identifier: MIT
// What train rnn|gru|lstm and eval read: bit streams made here, texts.
#ifndef DEEPPCR_CLI_SEQUENCES_H
#define DEEPPCR_CLI_SEQUENCES_H

#include "cli.h"

#define CLI_BITSTREAM "bitstream"
#define CLI_TEXT "text"

// ---- bit streams: BPPSA's classification (arXiv 1907.10134): class k of 10, bits are 1 with probability 0.05 + 0.1 k
// ----

enum { CLI_BIT_CLASSES = 10 };

typedef struct cli_bits {
    uint64_t seed;
    int64_t first, length;  // samples `first` and on, of `length` bits
} cli_bits;

void cli_bits_read(void *user, int64_t index, float *x, int64_t *length, uint8_t *label);
// A model keeps which streams it is to be tested on ("bitstream" metadata); back from it: false where it has none.
int cli_bits_note(const cli_bits *test, dpcr_sequence *model);
bool cli_bits_noted(const dpcr_sequence *model, cli_bits *test);

// ---- texts ----

// Paragraphs that stood before are left out. `held` of them, by the documents they stand in, are kept for testing.
typedef struct cli_text {
    uint8_t *train, *test;
    int64_t train_count, test_count;
    int64_t documents;
} cli_text;

// "text": Debian's changelogs on this machine, every tenth document (by its name) for testing; a file, raw or gzipped:
// its last tenth. Returns the exit code.
int cli_text_read(dpcr_context *context, const char *data, cli_text *text);
void cli_text_free(cli_text *text);

// The symbols of a text: 0 stands for every byte that is none of the others.
typedef struct cli_alphabet {
    int count;
    uint8_t symbol[256];  // by byte
} cli_alphabet;

// Of the bytes that make more than one in 100 000 of the text.
cli_alphabet cli_alphabet_of(const uint8_t *text, int64_t count);
void cli_alphabet_text(const cli_alphabet *alphabet, char hex[513]);
bool cli_alphabet_parse(const char *hex, cli_alphabet *alphabet);
// In place; the number of bytes that have no symbol.
int64_t cli_alphabet_encode(const cli_alphabet *alphabet, uint8_t *text, int64_t count);

// eval of a sequence model; `load` was found to be one.
typedef struct cli_eval_sequence {
    const cli_common *common;
    const cli_solver *solver;
    const char *load, *data, *split;  // data NULL: what the model is for; split: "test" or "train"
    int64_t limit, batch;
    bool batch_given;
} cli_eval_sequence;
int cli_eval_sequence_run(dpcr_context *context, const cli_eval_sequence *e);
// The exit status of a solve that is not supported: where it can be planned, it did not converge and was told not to
// fall back; else an option is refused.
int cli_eval_unsupported(dpcr_sequence *model, int64_t length, int64_t batch, bool packed,
                         const dpcr_solve_options *solve, const dpcr_error *error);
int cli_eval_text_run(dpcr_context *context, const cli_eval_sequence *e, dpcr_sequence *model);

#endif
