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

// Where libsndfile stands in what we keep for it.
typedef struct place {
    sf_count_t size, at;
} place;

static sf_count_t place_length(void *user) { return ((place *)user)->size; }
static sf_count_t place_tell(void *user) { return ((place *)user)->at; }
static sf_count_t place_seek(sf_count_t offset, int whence, void *user) {
    place *p = user;
    const sf_count_t at = offset + (whence == SEEK_CUR ? p->at : whence == SEEK_END ? p->size : 0);
    return at < 0 ? -1 : (p->at = at);
}

// A file that is read through us: to libsndfile what cannot be read is the end. The first reason why is kept, and
// nothing is read after it. unsaid: its header's size of the samples, in bytes SIZE_AT .. SIZE_AT + 3, is not told to
// libsndfile, which goes by the file's end then.
typedef struct source {
    place place;  // first: place_seek and others get it
    int fd, code;
    bool unsaid;
} source;
enum { SIZE_AT = 8 };

static sf_count_t read_from(source *s, sf_count_t at, void *to, sf_count_t count) {
    sf_count_t got = 0;
    while (got < count && !s->code) {
        const ssize_t n = pread(s->fd, (char *)to + got, (size_t)(count - got), (off_t)(at + got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) s->code = errno;
        if (n <= 0) break;
        got += n;
    }
    return got;
}

static sf_count_t source_read(void *to, sf_count_t count, void *user) {
    source *s = user;
    const sf_count_t at = s->place.at, left = s->place.size - at, wanted = count < left ? count : left;
    const sf_count_t got = wanted > 0 ? read_from(s, at, to, wanted) : 0;
    for (sf_count_t i = SIZE_AT; s->unsaid && i < SIZE_AT + 4; i++)
        if (i >= at && i < at + got) ((unsigned char *)to)[i - at] = 0xff;
    s->place.at += got;
    return got;
}

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

static bool read_head(const layout *l, source *file, int64_t at, char name[4], uint32_t *size) {
    unsigned char head[HEAD];
    if (read_from(file, at, head, HEAD) != HEAD) return false;
    memcpy(name, head, 4);
    *size = 0;
    for (int i = 0; i < 4; i++) *size |= (uint32_t)head[4 + i] << (l->big ? 24 - 8 * i : 8 * i);
    return true;
}

// Whether the file has this form: what it says after the form's name, and, without chunks, the size of the samples.
static bool has_form(const layout *l, source *file, uint32_t *said, uint32_t *size) {
    char name[4];
    *size = 0;
    return read_head(l, file, 0, name, said) && !memcmp(name, l->form, 4) &&
           (l->samples || read_head(l, file, SIZE_AT - 4, name, size));
}

// Where the chunk of samples begins behind its head, and how many bytes it says; 0: there is none.
static int64_t find_samples(const layout *l, source *file, uint32_t *size) {
    char name[4];
    for (int64_t at = HEAD + 4; read_head(l, file, at, name, size); at += HEAD + (int64_t)*size + *size % 2)
        if (!memcmp(name, l->samples, 4)) return at + HEAD;
    return 0;
}

static bool has_all_samples(const layout *l, source *file) {
    uint32_t size = 0;
    const int64_t at = find_samples(l, file, &size);
    return at > 0 && at + (int64_t)size <= file->place.size;
}

// Who writes into a pipe cannot say how long it is: 0, or about the most that 31 or 32 bits hold.
static bool is_said(uint32_t size) {
    const uint32_t near = 0x1000, half = UINT32_C(1) << 31;
    return size > 0 && size <= UINT32_MAX - near && (size < half - near || size > half + near);
}

// Some count 8 bytes too many for the whole, or a last pad byte that is not there: the samples are what matters.
static bool is_shorter(const layout *l, source *file) {
    uint32_t said, size;
    if (!has_form(l, file, &said, &size) || !is_said(said)) return false;
    if (l->samples) return file->place.size - HEAD < said && !has_all_samples(l, file);
    return is_said(size) && (int64_t)said + size > file->place.size;
}

// WAV of 4 GiB and more: the size of all in 64 bits at the start of its first chunk.
static bool is_shorter_long(source *file) {
    enum { CHUNK = HEAD + 4, SIZE = CHUNK + HEAD, END = SIZE + 8 };
    unsigned char head[END];
    uint64_t said = 0;
    if (read_from(file, 0, head, END) != END) return false;
    if (memcmp(head, "RF64", 4) != 0 || memcmp(head + CHUNK, "ds64", 4) != 0) return false;
    for (int i = 0; i < 8; i++) said |= (uint64_t)head[SIZE + i] << 8 * i;
    return said < INT64_MAX && (uint64_t)(file->place.size - HEAD) + 1 < said;
}

// Are there bytes behind samples that are said to be none, and beyond what the whole is said to be? Its writer was
// stopped before he could say.
static bool goes_on(const layout *l, source *file) {
    uint32_t said, size;
    if (!has_form(l, file, &said, &size)) return false;
    if (!l->samples) return size == 0 && said < file->place.size;  // said: where they begin
    const int64_t at = find_samples(l, file, &size);
    return at > 0 && size == 0 && at < file->place.size && HEAD + (int64_t)said < file->place.size;
}

// libsndfile takes sizes of 2 GiB and more behind headers for negative ones, and their sounds for empty.
static void unsay_size(source *file) {
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        uint32_t said, size;
        if (layouts[i].samples || !has_form(&layouts[i], file, &said, &size)) continue;
        const int64_t end = (int64_t)said + size;
        file->unsaid = size >> 31;
        if (file->unsaid && is_said(size) && end < file->place.size) file->place.size = end;
    }
}

// What is wrong with a sound of so many samples, NULL: nothing, or it cannot be read.
static const char *fault_of(source *file, int64_t samples) {
    bool cut = is_shorter_long(file), longer = false;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        cut = cut || is_shorter(&layouts[i], file);
        longer = longer || (samples == 0 && goes_on(&layouts[i], file));
    }
    return file->code ? NULL
           : cut      ? "is cut short: it is shorter than it says"
           : longer   ? "says that it has no samples, but has some"
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

// A pipe that nobody writes into yet is waited for, but not past a signal; it has no places to go to, and libsndfile
// reads it by itself.
static SNDFILE *open_sound(const char *path, source *from, SF_INFO *info) {
    SF_VIRTUAL_IO io = {place_length, place_seek, source_read, NULL, place_tell};
    struct stat is;
    const bool pipe = stat(path, &is) == 0 && S_ISFIFO(is.st_mode);
    const int fd = pipe ? open_pipe(path) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (!pipe && fstat(fd, &is) != 0)) from->code = errno;
    if (!pipe) from->fd = fd;
    if (fd < 0 || from->code) return NULL;  // without a code: a signal came
    errno = 0;
    if (pipe) return sf_open_fd(fd, SFM_READ, info, 1);
    from->place.size = (sf_count_t)is.st_size;
    unsay_size(from);
    return sf_open_virtual(&io, SFM_READ, info, from);
}

// Of a sound that libsndfile gave no more of: why, in its words or ours.
static int fail_short(const char *path, const source *from, const SF_INFO *info, bool opened) {
    const int code = errno;  // all that libsndfile says of a lack of memory
    if (from->code || code == ENOMEM) return cli_fail_reading("the sound", path, from->code ? from->code : code);
    if (!opened) return cli_fail(CLI_INPUT, "'%s' is no sound: %s", path, sf_strerror(NULL));
    return cli_fail(CLI_INPUT, "'%s' ends before its %lld sample%s", path, (long long)info->frames,
                    cli_s(info->frames));
}

static int check_length(const char *path, source *from, const SF_INFO *info) {
    const char *const fault = from->fd >= 0 ? fault_of(from, info->frames) : NULL;
    if (from->code) return cli_fail_reading("the sound", path, from->code);
    if (info->frames < 0 || info->frames > INT64_MAX / 8 || info->channels < 1)
        return cli_fail(CLI_INPUT, "'%s' does not say how long it is", path);
    return fault ? cli_fail(CLI_INPUT, "'%s' %s", path, fault) : CLI_DONE;
}

static int read_samples(const char *path, SNDFILE *file, const source *from, const SF_INFO *info, dpcr_array *x) {
    const int64_t shape[] = {info->frames, info->channels};
    if (!cli_array_create(DPCR_F32, 2, shape, x)) return CLI_RESOURCES;
    errno = 0;
    if (sf_readf_float(file, x->data, info->frames) == info->frames && !from->code) return CLI_DONE;
    const int status = fail_short(path, from, info, true);
    cli_array_destroy(x);
    return status;
}

int cli_sound_read(const char *path, dpcr_array *x, int *rate) {
    SF_INFO info = {0};
    source from = {.fd = -1};
    if (!cli_readable("the sound", path)) return CLI_INPUT;
    SNDFILE *const file = open_sound(path, &from, &info);
    int status = file ? CLI_DONE : cli_signal() ? cli_fail_stopped() : fail_short(path, &from, &info, false);
    if (!status) status = check_length(path, &from, &info);
    if (!status) status = read_samples(path, file, &from, &info, x);
    if (file) sf_close(file);
    if (from.fd >= 0) close(from.fd);
    *rate = info.samplerate;
    return status;
}

typedef struct memory {
    place place;  // first, as a source's
    char *data;
    sf_count_t room;
} memory;

static sf_count_t memory_read(void *to, sf_count_t count, void *user) {
    memory *m = user;
    const sf_count_t left = m->place.size - m->place.at, n = count < left ? count : left;
    if (n <= 0) return 0;
    memcpy(to, m->data + m->place.at, (size_t)n);
    m->place.at += n;
    return n;
}
static sf_count_t memory_write(const void *from, sf_count_t count, void *user) {
    memory *m = user;
    place *const p = &m->place;
    const sf_count_t end = p->at + count;
    if (end > m->room) {
        const sf_count_t room = end + end / 2 + 4096;
        char *grown = realloc(m->data, (size_t)room);
        if (!grown) return 0;
        m->data = grown, m->room = room;
    }
    if (p->at > p->size) memset(m->data + p->size, 0, (size_t)(p->at - p->size));
    memcpy(m->data + p->at, from, (size_t)count);
    p->at = end;
    if (end > p->size) p->size = end;
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
    const sf_count_t header = m->place.size < HEADER ? m->place.size : HEADER;
    char *const peak = memmem(m->data, (size_t)header, "PEAK", 4);
    if (peak && peak + TIME + BYTES <= m->data + header) memset(peak + TIME, 0, BYTES);
}

int cli_sound_write(const char *path, const dpcr_array *x, int rate) {
    SF_VIRTUAL_IO io = {place_length, place_seek, memory_read, memory_write, place_tell};
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
    const int status = ok ? cli_write_file(path, m.data, (size_t)m.place.size)
                          : cli_fail(CLI_RESOURCES, "cannot write '%s': %s", path, why);
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
