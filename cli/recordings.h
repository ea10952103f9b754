// SPDX-License-Identifier: MIT
// Folders of recordings, one sub-folder a class, as sequences of MFCC features, for train rnn|gru|lstm and eval.
#ifndef DEEPPCR_CLI_RECORDINGS_H
#define DEEPPCR_CLI_RECORDINGS_H

#include "cli.h"

#define CLI_SPEAKERS "speakers"
#define CLI_SPEAKERS_FOLDER "/usr/share/asterisk/sounds"

enum { CLI_MEL_FILTERS = 26, CLI_MOST_FRAME = 1 << 20, CLI_MOST_SECONDS = 1000000 };

// Mel-frequency cepstral coefficients. Zero in a field: chosen by the sampling rate.
typedef struct cli_features {
    int64_t frame, hop;    // samples; default: the largest power of two within 50 ms, and half of that
    int64_t coefficients;  // with the first, the loudness, which is dropped; default 13
    double seconds;        // of a recording, from its beginning; 0: all
    bool given;            // an option said something
} cli_features;
extern const struct argp cli_features_argp;
#define CLI_FEATURES_DEFAULTS \
    { .seconds = 3 }

// x [samples][channels] -> *features [frames][channels (coefficients - 1)]: by channel, frames of `frame` samples every
// `hop` (short recordings: one frame, filled with zeros):
//   p = |FFT(hann .* frame)|^2,   e_k = log(max(sum_j M_kj p_j, 1e-10)) over 26 triangles, even on the mel scale
//   c_i = sqrt(2 / 26) sum_k e_k cos(pi i (k + 1/2) / 26),   i = 1 .. coefficients - 1
// Returns the exit code.
int cli_features_of(const cli_features *options, const dpcr_array *x, int rate, dpcr_array *features);
// Fills in what is zero; refuses what cannot be.
int cli_features_settle(cli_features *options, int rate);

typedef struct cli_part {
    int64_t count, *first, *length;  // of each recording: its first row in rows, and how many
    uint8_t *label;
} cli_part;

typedef struct cli_recordings {
    cli_features options;  // settled
    int rate, channels;
    int64_t width;    // numbers a step
    int64_t longest;  // steps
    int64_t total, room;
    float *rows;               // [total][width]
    double *mean, *deviation;  // [width], of all frames trained on
    cli_part part[2];          // to train on, to test; by name, classes in turn
    int classes;
    char **names;              // of the classes: their folders', sorted
    int64_t silent, repeated;  // left out: below a thousandth of full scale; the same samples under two classes
    uint64_t hash;
} cli_recordings;

typedef struct cli_reader {
    const cli_recordings *recordings;
    int part;
} cli_reader;

bool cli_recordings_named(const char *data);  // "speakers", or a folder
// Reads all; one name in five, by the name without class and ending, is for testing in every class. Of names that end
// in __1, __2, ... (pieces of one recording, IRMAS) what stands before is the name. Returns the exit code.
int cli_recordings_read(const char *data, const cli_features *options, cli_recordings *recordings);
// What numbers of this mean and variance are divided by: 1 where they are all one, but for rounding.
double cli_deviation(double mean, double variance);
// Rows become (row - mean) / deviation.
void cli_recordings_scale(cli_recordings *recordings);
void cli_recordings_free(cli_recordings *recordings);
// For dpcr_sequence_data; user is a cli_reader.
void cli_recordings_sequence(void *user, int64_t index, float *x, int64_t *length, uint8_t *label);
dpcr_sequence_data cli_recordings_data(cli_reader *reader);

// What a model has to keep for eval: "audio.*" metadata; back from it.
int cli_recordings_note(const cli_recordings *recordings, dpcr_sequence *model);
bool cli_recordings_are(const dpcr_sequence *model);  // a model of recordings?
// Its features. Told, exit code 5, where they are none that training could have left.
int cli_recordings_noted(const dpcr_sequence *model, const char *path, cli_features *options);
// Do rate, channels and classes agree with the model's? Then rows are scaled as they were in training.
int cli_recordings_scale_as(cli_recordings *recordings, const dpcr_sequence *model, const char *path);

// Multinomial logistic regression on each recording's mean features: what a recurrent network has to beat.
typedef struct cli_baseline {
    double train_accuracy, test_accuracy, loss;
} cli_baseline;
int cli_baseline_of(dpcr_context *context, const cli_recordings *recordings, cli_baseline *baseline);

#endif
