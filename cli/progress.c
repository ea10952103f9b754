// SPDX-License-Identifier: MIT
// The progress bar: one line on stderr, redrawn, and only when stderr is a terminal.
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

static int terminal_columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void cli_progress_start(cli_progress *progress, const cli_common *common) {
    progress->shown = !common->quiet && isatty(STDERR_FILENO);
    progress->last = 0;
}

static void time_left(double seconds, char *text, size_t bytes) {
    if (!(seconds >= 0 && seconds < 360000))
        snprintf(text, bytes, "--:--");
    else if (seconds < 3600)
        snprintf(text, bytes, "%d:%02d", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(text, bytes, "%d:%02d h", (int)seconds / 3600, (int)seconds / 60 % 60);
}

// "[###...] " of what is left beside `text`, on a line of `columns`; nothing where there is hardly room.
static void make_bar(double done, int text, int columns, char *bar) {
    enum { MOST = 24, LEAST = 4 };
    int width = columns - text - 3, at = 0;
    if (width > MOST) width = MOST;
    if (width >= LEAST) {
        bar[at++] = '[';
        for (int i = 0; i < width; i++) bar[at++] = i < (int)(done * width) ? '#' : '.';
        bar[at++] = ']';
        bar[at++] = ' ';
    }
    bar[at] = 0;
}

void cli_progress_draw(cli_progress *progress, const dpcr_train_state *state, bool now) {
    const double time = cli_now();
    if (!progress->shown || (!now && time - progress->last < 0.1)) return;
    progress->last = time;
    char bar[64], left[32], text[256];
    time_left(state->seconds_left, left, sizeof left);
    int n = snprintf(text, sizeof text, "epoch %lld/%lld  loss %.4f  accuracy %.1f %%  %.0f images/s  %s left",
                     (long long)state->epoch, (long long)state->epochs, state->loss, 100 * state->accuracy,
                     state->images_per_second, left);
    const int columns = terminal_columns() - 1;  // the last column stays free: some terminals wrap there
    make_bar(state->steps > 0 ? (double)state->step / (double)state->steps : 0, n, columns, bar);
    if (n > columns) n = columns;
    fprintf(stderr, "\r\033[K%s%.*s", bar, n, text);
    fflush(stderr);
}

void cli_progress_clear(cli_progress *progress) {
    if (!progress->shown) return;
    fprintf(stderr, "\r\033[K");
    fflush(stderr);
    progress->last = 0;
}
