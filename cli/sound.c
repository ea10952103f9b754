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

enum { HEAD = 8 };  // of a chunk: a name of four letters, and how many bytes follow

// Some formats of which libsndfile reads the samples that are there, however many the file says: in chunks, one of them
// with the samples, or (NULL) behind a header that says their place and size. Numbers begin with the last byte or, big,
// with the first.
typedef struct layout {
    const char *form, *samples;
    bool big;
} layout;

static const layout layouts[] = {{"RIFF", "data", false},
                                 {"RIFX", "data", true},
                                 {"FORM", "SSND", true},
                                 {".snd", NULL, true},
                                 {"dns.", NULL, false}};

static bool read_head(const layout *l, FILE *file, int64_t at, char name[4], uint32_t *size) {
    unsigned char head[HEAD];
    if (fseeko(file, at, SEEK_SET) != 0 || fread(head, 1, HEAD, file) != HEAD) return false;
    memcpy(name, head, 4);
    *size = 0;
    for (int i = 0; i < 4; i++) *size |= (uint32_t)head[4 + i] << (l->big ? 24 - 8 * i : 8 * i);
    return true;
}

// Where the chunk of samples begins behind its head, and how many bytes it says; 0: there is none.
static int64_t find_samples(const layout *l, FILE *file, uint32_t *size) {
    char name[4];
    for (int64_t at = HEAD + 4; read_head(l, file, at, name, size); at += HEAD + (int64_t)*size + *size % 2)
        if (!memcmp(name, l->samples, 4)) return at + HEAD;
    return 0;
}

static bool has_all_samples(const layout *l, FILE *file, int64_t bytes) {
    uint32_t size = 0;
    const int64_t at = find_samples(l, file, &size);
    return at > 0 && at + (int64_t)size <= bytes;
}

// Who writes into a pipe cannot say how long it is: 0, or about the most that 31 or 32 bits hold.
static bool is_said(uint32_t size) {
    const uint32_t near = 0x1000, half = UINT32_C(1) << 31;
    return size > 0 && size <= UINT32_MAX - near && (size < half - near || size > half + near);
}

// Some count 8 bytes too many for the whole, or a last pad byte that is not there: the samples are what matters.
static bool is_shorter(const layout *l, FILE *file, int64_t bytes) {
    char name[4];
    uint32_t said = 0, size = 0;
    if (!read_head(l, file, 0, name, &said) || memcmp(name, l->form, 4) != 0 || !is_said(said)) return false;
    if (l->samples) return bytes - HEAD < said && !has_all_samples(l, file, bytes);
    return read_head(l, file, 4, name, &size) && is_said(size) && (int64_t)said + size > bytes;
}

// WAV of 4 GiB and more: the size of all in 64 bits at the start of its first chunk.
static bool is_shorter_long(FILE *file, int64_t bytes) {
    enum { CHUNK = HEAD + 4, SIZE = CHUNK + HEAD, END = SIZE + 8 };
    unsigned char head[END];
    uint64_t said = 0;
    if (fseeko(file, 0, SEEK_SET) != 0 || fread(head, 1, END, file) != END) return false;
    if (memcmp(head, "RF64", 4) != 0 || memcmp(head + CHUNK, "ds64", 4) != 0) return false;
    for (int i = 0; i < 8; i++) said |= (uint64_t)head[SIZE + i] << 8 * i;
    return said < INT64_MAX && (uint64_t)(bytes - HEAD) + 1 < said;
}

// Are there bytes behind samples that are said to be none, and beyond what the whole is said to be? Its writer was
// stopped before he could say.
static bool goes_on(const layout *l, FILE *file, int64_t bytes) {
    char name[4];
    uint32_t said = 0, size = 0;
    if (!read_head(l, file, 0, name, &said) || memcmp(name, l->form, 4) != 0) return false;
    if (!l->samples) return read_head(l, file, 4, name, &size) && size == 0 && said < bytes;  // said: where they begin
    const int64_t at = find_samples(l, file, &size);
    return at > 0 && size == 0 && at < bytes && HEAD + (int64_t)said < bytes;
}

// What is wrong with a sound of so many samples, NULL: nothing.
static const char *fault_of(const char *path, int64_t samples) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return NULL;  // a pipe has no second opening
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    const int64_t bytes = (int64_t)info.st_size;
    bool cut = is_shorter_long(file, bytes), longer = false;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        cut = cut || is_shorter(&layouts[i], file, bytes);
        longer = longer || (samples == 0 && goes_on(&layouts[i], file, bytes));
    }
    fclose(file);
    return cut      ? "is cut short: it is shorter than it says"
           : longer ? "says that it has no samples, but has some"
                    : NULL;
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
    const char *const fault = fault_of(path, info.frames);
    int status = info.frames < 0 || info.frames > INT64_MAX / 8 || info.channels < 1
                     ? cli_fail(CLI_INPUT, "'%s' does not say how long it is", path)
                 : fault ? cli_fail(CLI_INPUT, "'%s' %s", path, fault)
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

enum { FLAC = SF_FORMAT_FLAC | SF_FORMAT_PCM_24, AU = SF_FORMAT_AU | SF_FORMAT_FLOAT };

static int format_of(const char *path) {
    const char *end = strrchr(path, '.');
    if (end && !strcasecmp(end, ".flac")) return FLAC;
    if (end && (!strcasecmp(end, ".aiff") || !strcasecmp(end, ".aif"))) return SF_FORMAT_AIFF | SF_FORMAT_FLOAT;
    if (end && !strcasecmp(end, ".au")) return AU;
    return end && !strcasecmp(end, ".wav") ? SF_FORMAT_WAV | SF_FORMAT_FLOAT : 0;
}

static bool has_chunks(int format) { return format != FLAC && format != AU; }

// A frame's header has the rate in 16 bits: hertz, or tens of them. What would stand at the file's start alone, in 20
// bits, libFLAC refuses to write, as no part of the streamable subset.
static bool flac_holds_rate(int rate) {
    enum { HERTZ = UINT16_MAX, TENS = 10 * UINT16_MAX };
    return rate > 0 && (rate <= HERTZ || (rate <= TENS && rate % 10 == 0));
}

int cli_sound_fits(const char *path, const dpcr_array *x, int rate) {
    enum { FLAC_CHANNELS = 8, HEADERS = 4096 };
    const int format = format_of(path);
    const int64_t bytes = cli_array_count(x) * (int64_t)sizeof(float);
    if (!format) return cli_fail(CLI_USAGE, "'%s': sounds are written as .wav, .flac, .aiff or .au", path);
    if (format == FLAC && (x->shape[0] == 0 || x->shape[1] > FLAC_CHANNELS))
        return cli_fail(CLI_RESOURCES,
                        "cannot write '%s': flac holds 1 to %d channels of 1 sample or more, not %lld of %lld; .wav "
                        "does",
                        path, FLAC_CHANNELS, (long long)x->shape[1], (long long)x->shape[0]);
    if (format == FLAC && !flac_holds_rate(rate))
        return cli_fail(CLI_RESOURCES,
                        "cannot write '%s': flac holds rates of 1 to 65535 Hz, and tens of Hz to 655350, not %d Hz; "
                        ".wav does",
                        path, rate);
    if (has_chunks(format) && bytes > (int64_t)UINT32_MAX - HEADERS)
        return cli_fail(CLI_RESOURCES, "cannot write '%s': %lld bytes are more than its format counts; .au does", path,
                        (long long)bytes);
    return CLI_DONE;
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

// The time of writing, by which two files of one sound would differ: in WAV and AIFF it stands in the chunk PEAK,
// before the samples, behind the chunk's name, size and version.
static void clear_time(const memory *m) {
    enum { TIME = 12, BYTES = 4, HEADER = 128 };
    const sf_count_t header = m->size < HEADER ? m->size : HEADER;
    char *const peak = memmem(m->data, (size_t)header, "PEAK", 4);
    if (peak && peak + TIME + BYTES <= m->data + header) memset(peak + TIME, 0, BYTES);
}

int cli_sound_write(const char *path, const dpcr_array *x, int rate) {
    SF_VIRTUAL_IO io = {memory_length, memory_seek, memory_read, memory_write, memory_tell};
    SF_INFO info = {.samplerate = rate, .channels = (int)x->shape[1], .format = format_of(path)};
    memory m = {0};
    const bool flac = info.format == FLAC;
    if (flac && !is_finite(x))
        return cli_fail(CLI_RESOURCES, "cannot write '%s': flac holds no NaN and no infinity; .wav does", path);
    SNDFILE *file = sf_open_virtual(&io, SFM_WRITE, &info, &m);
    if (!file) return cli_fail(CLI_RESOURCES, "cannot write '%s': %s", path, sf_strerror(NULL));
    sf_command(file, SFC_SET_CLIPPING, NULL, SF_TRUE);  // flac is integers: louder than 1 is 1
    bool ok = sf_writef_float(file, x->data, x->shape[0]) == x->shape[0];
    char why[128];
    snprintf(why, sizeof why, "%s", ok ? "no memory" : sf_strerror(file));
    ok = sf_close(file) == 0 && ok;
    if (ok && has_chunks(info.format)) clear_time(&m);
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
int cli_sound_fits(const char *path, const dpcr_array *x, int rate) {
    (void)x, (void)rate;
    return absent(path);
}
int cli_sound_write(const char *path, const dpcr_array *x, int rate) {
    (void)x, (void)rate;
    return absent(path);
}
#endif
