// SPDX-License-Identifier: MIT
// Sound files by libsndfile, where the program was built with it: read whole, written whole through memory.
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

bool cli_sound_name(const char *path) {
    static const char *const ends[] = {".wav", ".flac", ".aiff", ".aif", ".au", ".ogg", ".mp3"};
    const char *end = strrchr(path, '.');
    for (size_t i = 0; end && i < sizeof ends / sizeof ends[0]; i++)
        if (!strcasecmp(end, ends[i])) return true;
    return false;
}

int cli_sound_check(const char *path, const dpcr_array *x) {
    const float *values = x->data;
    const int64_t channels = x->shape[1];
    for (int64_t i = 0; i < x->shape[0] * channels; i++)
        if (!(fabsf(values[i]) <= 1e30f))  // a transform of more may overflow
            return cli_fail(CLI_INPUT, "'%s': sample %lld is %g, wanted a finite number of at most 1e30", path,
                            (long long)(i / channels), (double)values[i]);
    return CLI_DONE;
}

#if defined(DEEPPCR_SNDFILE)
#include <sndfile.h>

enum { HEAD = 8 };  // of a chunk of a WAV file: a name of four letters, and how many bytes follow

static bool read_head(FILE *file, int64_t at, char name[4], uint32_t *size) {
    unsigned char head[HEAD];
    if (fseeko(file, at, SEEK_SET) != 0 || fread(head, 1, HEAD, file) != HEAD) return false;
    memcpy(name, head, 4);
    *size = head[4] | (uint32_t)head[5] << 8 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 24;
    return true;
}

static bool has_all_data(FILE *file, int64_t bytes) {
    char name[4];
    uint32_t size = 0;
    for (int64_t at = HEAD + 4; read_head(file, at, name, &size); at += HEAD + (int64_t)size + size % 2)
        if (!memcmp(name, "data", 4)) return at + HEAD + (int64_t)size <= bytes;
    return false;
}

// Of a WAV file that is shorter than it says libsndfile reads what is there. Who wrote it into a pipe could not say;
// and some count 8 bytes too many for the whole, or a last pad byte that is not there: the samples are what matters.
static bool is_cut_short(const char *path) {
    enum { UNSAID = 0x7fffff00 };  // sizes from there on, and 0
    char name[4];
    uint32_t said = 0;
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return false;  // a pipe has no second opening
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    const bool read = read_head(file, 0, name, &said) && fseeko(file, 0, SEEK_END) == 0;
    const int64_t bytes = read ? (int64_t)ftello(file) : -1;
    const bool shorter = read && !memcmp(name, "RIFF", 4) && said > 0 && said < UNSAID && bytes - HEAD < said;
    const bool cut = shorter && !has_all_data(file, bytes);
    fclose(file);
    return cut;
}

// A pipe whose writer has begun, or gone; -1: errno says why not, or a signal came first.
static int open_pipe(const char *path) {
    struct pollfd p = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), .events = POLLIN};
    while (p.fd >= 0 && !cli_signal() && poll(&p, 1, CLI_WAIT_MS) <= 0) continue;
    if (p.fd < 0 || (!cli_signal() && fcntl(p.fd, F_SETFL, 0) == 0)) return p.fd;
    const int code = errno;
    close(p.fd);
    errno = code;
    return -1;
}

// A pipe that nobody writes into yet is waited for, but not past a signal.
static int open_sound(const char *path, SNDFILE **file, SF_INFO *info) {
    struct stat is;
    const bool pipe = stat(path, &is) == 0 && S_ISFIFO(is.st_mode);
    const int fd = pipe ? open_pipe(path) : -1;
    if (pipe && fd < 0 && !cli_signal())
        return cli_fail(CLI_INPUT, "cannot read the sound '%s': %s", path, strerror(errno));
    *file = fd >= 0 ? sf_open_fd(fd, SFM_READ, info, 1) : pipe ? NULL : sf_open(path, SFM_READ, info);
    if (*file) return CLI_DONE;
    return cli_signal() ? cli_fail_stopped() : cli_fail(CLI_INPUT, "'%s' is no sound: %s", path, sf_strerror(NULL));
}

int cli_sound_read(const char *path, dpcr_array *x, int *rate) {
    SF_INFO info = {0};
    SNDFILE *file = NULL;
    if (!cli_readable("the sound", path)) return CLI_INPUT;
    const int opened = open_sound(path, &file, &info);
    if (opened) return opened;
    const int64_t shape[] = {info.frames, info.channels};
    int status = info.frames < 0 || info.frames > INT64_MAX / 8 || info.channels < 1
                     ? cli_fail(CLI_INPUT, "'%s' does not say how long it is", path)
                 : is_cut_short(path) ? cli_fail(CLI_INPUT, "'%s' is cut short: it is shorter than it says", path)
                                      : CLI_DONE;
    if (!status && !cli_array_create(DPCR_F32, 2, shape, x)) status = CLI_RESOURCES;
    if (!status && sf_readf_float(file, x->data, info.frames) != info.frames) {
        cli_array_destroy(x);
        status =
            cli_fail(CLI_INPUT, "'%s' ends before its %lld sample%s", path, (long long)info.frames, cli_s(info.frames));
    }
    sf_close(file);
    *rate = info.samplerate;
    return status;
}

typedef struct memory {
    char *data;
    sf_count_t size, room, at;
} memory;

static sf_count_t memory_length(void *user) { return ((memory *)user)->size; }
static sf_count_t memory_tell(void *user) { return ((memory *)user)->at; }
static sf_count_t memory_seek(sf_count_t offset, int whence, void *user) {
    memory *m = user;
    m->at = offset + (whence == SEEK_CUR ? m->at : whence == SEEK_END ? m->size : 0);
    return m->at;
}
static sf_count_t memory_read(void *to, sf_count_t count, void *user) {
    memory *m = user;
    const sf_count_t left = m->size - m->at, n = count < left ? count : left;
    if (n <= 0) return 0;
    memcpy(to, m->data + m->at, (size_t)n);
    m->at += n;
    return n;
}
static sf_count_t memory_write(const void *from, sf_count_t count, void *user) {
    memory *m = user;
    const sf_count_t end = m->at + count;
    if (end > m->room) {
        const sf_count_t room = end + end / 2 + 4096;
        char *grown = realloc(m->data, (size_t)room);
        if (!grown) return 0;
        m->data = grown, m->room = room;
    }
    if (m->at > m->size) memset(m->data + m->size, 0, (size_t)(m->at - m->size));
    memcpy(m->data + m->at, from, (size_t)count);
    m->at = end;
    if (end > m->size) m->size = end;
    return count;
}

static int format_of(const char *path) {
    const char *end = strrchr(path, '.');
    if (end && !strcasecmp(end, ".flac")) return SF_FORMAT_FLAC | SF_FORMAT_PCM_24;
    if (end && (!strcasecmp(end, ".aiff") || !strcasecmp(end, ".aif"))) return SF_FORMAT_AIFF | SF_FORMAT_FLOAT;
    if (end && !strcasecmp(end, ".au")) return SF_FORMAT_AU | SF_FORMAT_FLOAT;
    return end && !strcasecmp(end, ".wav") ? SF_FORMAT_WAV | SF_FORMAT_FLOAT : 0;
}

static bool is_finite(const dpcr_array *x) {
    const float *values = x->data;
    const int64_t count = cli_array_count(x);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i])) return false;
    return true;
}

static void warn_of_clipping(const char *path, const dpcr_array *x) {
    const float *values = x->data;
    const int64_t count = cli_array_count(x);
    int64_t clipped = 0;
    float peak = 0;
    for (int64_t i = 0; i < count; i++) {
        clipped += values[i] > 1 || values[i] < -1;
        peak = fmaxf(peak, fabsf(values[i]));
    }
    if (clipped)
        cli_warn("'%s': %lld of %lld samples are louder than flac holds (peak %.4g) and are clipped; .wav keeps them",
                 path, (long long)clipped, (long long)count, (double)peak);
}

int cli_sound_write(const char *path, const dpcr_array *x, int rate) {
    SF_VIRTUAL_IO io = {memory_length, memory_seek, memory_read, memory_write, memory_tell};
    SF_INFO info = {.samplerate = rate, .channels = (int)x->shape[1], .format = format_of(path)};
    memory m = {0};
    if (!info.format) return cli_fail(CLI_USAGE, "'%s': sounds are written as .wav, .flac, .aiff or .au", path);
    const bool flac = info.format == (SF_FORMAT_FLAC | SF_FORMAT_PCM_24);
    if (flac && !is_finite(x))
        return cli_fail(CLI_RESOURCES, "cannot write '%s': flac holds no NaN and no infinity; .wav does", path);
    SNDFILE *file = sf_open_virtual(&io, SFM_WRITE, &info, &m);
    if (!file) return cli_fail(CLI_RESOURCES, "cannot write '%s': %s", path, sf_strerror(NULL));
    sf_command(file, SFC_SET_CLIPPING, NULL, SF_TRUE);  // flac is integers: louder than 1 is 1
    bool ok = sf_writef_float(file, x->data, x->shape[0]) == x->shape[0];
    char why[128];
    snprintf(why, sizeof why, "%s", ok ? "no memory" : sf_strerror(file));
    ok = sf_close(file) == 0 && ok;
    const int status =
        ok ? cli_write_file(path, m.data, (size_t)m.size) : cli_fail(CLI_RESOURCES, "cannot write '%s': %s", path, why);
    if (!status && flac) warn_of_clipping(path, x);
    free(m.data);
    return status;
}
#else
static int absent(const char *path) {
    return cli_fail(CLI_USAGE, "'%s': this program was built without libsndfile; npy files it reads and writes", path);
}
int cli_sound_read(const char *path, dpcr_array *x, int *rate) {
    (void)x, (void)rate;
    return absent(path);
}
int cli_sound_write(const char *path, const dpcr_array *x, int rate) {
    (void)x, (void)rate;
    return absent(path);
}
#endif
