// SPDX-License-Identifier: MIT
// A diode clipper (clipper.h) over a recording: by the compiled loop and as the planner likes, bit for bit the same;
// the sound written as WAV, and a spectrogram of both.
//   cc -O3 -march=native -ffp-contract=off clipper.c $(pkg-config --cflags --libs deeppcr sndfile) -lm
//   clipper [-d VOLTS] [-t SECONDS] [-o OUT.wav] [-p OUT.png] [RECORDING ...]
#include "audio.h"
#include "clipper.h"

#include <unistd.h>

int main(int argc, char **argv) {
    double drive = 2, seconds = 60;
    const char *out = NULL, *picture = NULL;
    for (int option; (option = getopt(argc, argv, "d:t:o:p:")) != -1;) {
        if (option == 'd' && !audio_number(option, optarg, 0, 1000, &drive)) return 2;
        if (option == 't' && !audio_number(option, optarg, 0, 86400, &seconds)) return 2;
        if (option == 'o') out = optarg;
        if (option == 'p') picture = optarg;
        if (option == '?') return 2;
    }
    audio sound;
    dpcr_context *context = NULL;
    dpcr_error error = {.text = "not enough memory"};
    if (!audio_read(&sound, argc - optind, argv + optind, seconds)) return 1;
    float *z = malloc((size_t)sound.length * sizeof *z);
    if (!z || dpcr_context_create(NULL, &context, &error) != DPCR_OK) return fprintf(stderr, "%s\n", error.text), 1;
    clipper filter = clipper_make(sound.samples, sound.length, AUDIO_RATE, drive);
    const dpcr_steps steps = clipper_steps(&filter, 1);
    int ok = audio_filter(context, &steps, z);
    if (ok && out) ok = audio_write(out, z, sound.length, 1);
    if (ok && picture) ok = audio_spectrogram(picture, sound.samples, z, sound.length, 1, 12);
    dpcr_context_destroy(context);
    free(z), free(sound.samples);
    return ok ? 0 : 1;
}
