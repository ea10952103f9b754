// SPDX-License-Identifier: MIT
// Filters: SciPy's numbers; every length, order, dtype, layout and level against the plain loop; bits that depend on
// neither threads nor neighbours; streaming; the adjoint identity; numbers that are not finite, unstable filters and
// denormals; refusals and refused memory.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "budget.h"
#include "filtering.h"
#include "kern/filter.h"
#include "sampled.h"

// ---- a filter, its signals, and the loop ----

enum { MOST_SECTIONS = 40, MOST_ORDER = 128, MOST_STATES = 130 };

typedef struct design {
    int64_t sections, order;
    double b[MOST_SECTIONS * 3 + MOST_ORDER + 1], a[MOST_SECTIONS * 3 + MOST_ORDER + 1];
    dpcr_filter *filter;
} design;

// Biquads with poles at radius r and some angle.
static design biquads(int64_t sections, double r) {
    design d = {.sections = sections, .order = 2};
    double sos[MOST_SECTIONS * 6];
    for (int64_t s = 0; s < sections; s++) {
        const double angle = 0.2 + 0.3 * (double)s, a0 = s % 2 ? 2 : 1;
        const double row[6] = {0.4, -0.1 * (double)(s % 3), 0.2, 1, -2 * r * cos(angle), r * r};
        for (int i = 0; i < 6; i++) sos[6 * s + i] = row[i] * a0;
        for (int i = 0; i < 3; i++) d.b[3 * s + i] = row[i], d.a[3 * s + i] = row[3 + i];
    }
    assert_int_equal(dpcr_filter_create_sos(context, sections, sos, &d.filter, NULL), DPCR_OK);
    return d;
}

// One section of order p; without feedback it is a weighted mean.
static design direct(int64_t p, bool feedback) {
    design d = {.sections = 1, .order = p};
    for (int64_t i = 0; i <= p; i++) {
        d.b[i] = 1.0 / (double)(1 + p) * cos(0.3 * (double)i);
        d.a[i] = i == 0 ? 1 : feedback ? 0.9 / (double)p * sin((double)i) : 0;
    }
    assert_int_equal(dpcr_filter_create_ba(context, p + 1, d.b, feedback ? p + 1 : 1, d.a, &d.filter, NULL), DPCR_OK);
    return d;
}

static double loop_sample(const design *d, double x, double *z) {
    for (int64_t s = 0; s < d->sections; s++, z += d->order) {
        const double *b = d->b + s * (d->order + 1), *a = d->a + s * (d->order + 1);
        const double y = b[0] * x + (d->order ? z[0] : 0);
        for (int64_t i = 0; i < d->order; i++) z[i] = b[i + 1] * x + (i + 1 < d->order ? z[i + 1] : 0) - a[i + 1] * y;
        x = y;
    }
    return x;
}

typedef struct sound {
    dpcr_dtype dtype;
    int64_t channels, length, states;
    bool interleaved;
    void *memory[2];
    dpcr_array x, y, zi, zf;
} sound;

static dpcr_array signal_view(const sound *s, void *memory) {
    const int64_t apart[] = {s->channels, s->length}, together[] = {s->length, s->channels};
    dpcr_array view = dpcr_array_make(memory, s->dtype, 2, s->interleaved ? together : apart);
    if (s->interleaved) {
        view.shape[0] = s->channels, view.shape[1] = s->length;
        view.strides[0] = 1, view.strides[1] = s->channels;
    }
    return view;
}

static int64_t place(const dpcr_array *a, int64_t b, int64_t l) { return b * a->strides[0] + l * a->strides[1]; }
static double get(const dpcr_array *a, int64_t b, int64_t l) {
    return a->dtype == DPCR_F32 ? (double)((float *)a->data)[place(a, b, l)] : ((double *)a->data)[place(a, b, l)];
}
static void put(const dpcr_array *a, int64_t b, int64_t l, double v) {
    if (a->dtype == DPCR_F32)
        ((float *)a->data)[place(a, b, l)] = (float)v;
    else
        ((double *)a->data)[place(a, b, l)] = v;
}

static sound sound_make(const design *d, dpcr_dtype dtype, int64_t channels, int64_t length, bool interleaved) {
    sound s = {dtype, channels, length, d->sections * d->order, interleaved, {NULL, NULL}, {0}, {0}, {0}, {0}};
    const int64_t shape[] = {channels, d->sections, d->order};
    for (int i = 0; i < 2; i++) s.memory[i] = calloc((size_t)(channels * length) + 1, dpcr_dtype_size(dtype));
    s.x = signal_view(&s, s.memory[0]), s.y = signal_view(&s, s.memory[1]);
    s.zi = dpcr_array_make(calloc((size_t)(channels * s.states) + 1, 8), DPCR_F64, 3, shape);
    s.zf = dpcr_array_make(calloc((size_t)(channels * s.states) + 1, 8), DPCR_F64, 3, shape);
    for (int64_t b = 0; b < channels; b++)
        for (int64_t l = 0; l < length; l++) put(&s.x, b, l, noise());
    for (int64_t i = 0; i < channels * s.states; i++) ((double *)s.zi.data)[i] = noise();
    return s;
}

static void sound_free(sound *s) { free(s->memory[0]), free(s->memory[1]), free(s->zi.data), free(s->zf.data); }

static void run(const design *d, const sound *s) {
    dpcr_error error = {0};
    const dpcr_status status = dpcr_filter_execute(d->filter, &s->x, &s->zi, &s->y, &s->zf, &error);
    if (status != DPCR_OK) print_message("%s\n", error.text);
    assert_int_equal(status, DPCR_OK);
}

// The sound's y and zf are the loop's; equal up to `tolerance` of the largest number of a channel.
static void agrees(const design *d, const sound *s, double tolerance) {
    for (int64_t b = 0; b < s->channels; b++) {
        double z[MOST_STATES], most = 1, defect = 0;
        memcpy(z, (double *)s->zi.data + b * s->states, (size_t)s->states * sizeof *z);
        for (int64_t l = 0; l < s->length; l++) {
            const double y = loop_sample(d, get(&s->x, b, l), z), got = get(&s->y, b, l);
            most = fmax(most, fabs(y));
            defect = isfinite(got) ? fmax(defect, fabs(got - y)) : HUGE_VAL;
        }
        assert_true(defect <= tolerance * most);
        for (int64_t i = 0; i < s->states; i++) most = fmax(most, fabs(z[i]));
        const double states = fmin(10 * tolerance, 1e-8);
        for (int64_t i = 0; i < s->states; i++)
            assert_true(fabs(z[i] - ((double *)s->zf.data)[b * s->states + i]) <= states * most);
    }
}

static void check(design d, const int64_t *lengths, int count, double tolerance) {
    static int64_t cases;
    for (int i = 0; i < count; i++)
        for (int64_t channels = 1; channels <= 35; channels += 17)
            for (int kind = 0; kind < 4; kind++) {
                if ((lengths[i] * channels > 100000 && kind > 1) || !sampled(cases++)) continue;
                sound s = sound_make(&d, kind % 2 ? DPCR_F32 : DPCR_F64, channels, lengths[i], kind > 1);
                run(&d, &s);
                agrees(&d, &s, kind % 2 ? 2e-7 : tolerance);
                sound_free(&s);
            }
    dpcr_filter_destroy(d.filter);
}

// ---- tests ----

// scipy 1.17: sosfilt(butter(4, [0.1, 0.3], 'bandpass', output='sos'), x, zi=sosfilt_zi(sos) * x[0]) and
// lfilter(2 * b, 2 * a, x, zi=[0.1, -0.2, 0.3]) with b, a = cheby1(3, 1, 0.2), x = ((arange(12) * 7) % 5 - 2) / 4.
static void scipys_numbers(void **state) {
    (void)state;
    static const double sos[4][6] = {{0.0048243433577162325, 0.009648686715432465, 0.0048243433577162325, 1,
                                      -1.1054716730116994, 0.4687266075334605},
                                     {1, 2, 1, 1, -1.487822020962843, 0.6317976253151563},
                                     {1, -2, 1, 1, -1.0443144473042658, 0.7206296425328353},
                                     {1, -2, 1, 1, -1.7806232470894252, 0.8780360334073346}};
    double zi[8] = {0.04829915641323843,
                    -0.020076054470227915,
                    1.4227793105679318,
                    -0.8793483909971193,
                    -1.4759028103388858,
                    1.4759028103388858,
                    0,
                    0};
    static const double y[12] = {0,
                                 0.002412171678858172,
                                 0.017894047662238396,
                                 0.055876353947269336,
                                 0.09399046538180794,
                                 0.07811826220845237,
                                 -0.023082322202507402,
                                 -0.1665146284308224,
                                 -0.2501749701201118,
                                 -0.20232664493602628,
                                 -0.05503183577029458,
                                 0.08620927384424676};
    static const double zf[8] = {-0.006586888106298947, 0.0014060457619272453, 0.11420371809787482,
                                 -0.09118183705309399,  -0.06954039452544855,  0.13324357736084788,
                                 0.1022359348313423,    -0.06691115300692121};
    double x[12], got[12], end[8];
    for (int i = 0; i < 12; i++) x[i] = (i * 7 % 5 - 2) / 4.0;
    for (int i = 0; i < 8; i++) zi[i] *= x[0];
    dpcr_filter *filter = NULL;
    const dpcr_array ax = dpcr_array_make(x, DPCR_F64, 2, (const int64_t[]){1, 12}),
                     ay = dpcr_array_make(got, DPCR_F64, 2, (const int64_t[]){1, 12}),
                     azi = dpcr_array_make(zi, DPCR_F64, 3, (const int64_t[]){1, 4, 2}),
                     azf = dpcr_array_make(end, DPCR_F64, 3, (const int64_t[]){1, 4, 2});
    assert_int_equal(dpcr_filter_create_sos(context, 4, &sos[0][0], &filter, NULL), DPCR_OK);
    assert_int_equal(dpcr_filter_sections(filter), 4);
    assert_int_equal(dpcr_filter_execute(filter, &ax, &azi, &ay, &azf, NULL), DPCR_OK);
    for (int i = 0; i < 12; i++) assert_true(fabs(got[i] - y[i]) < 1e-14);
    for (int i = 0; i < 8; i++) assert_true(fabs(end[i] - zf[i]) < 1e-14);
    dpcr_filter_destroy(filter);

    static const double b[4] = {0.011474656882020871, 0.03442397064606261, 0.03442397064606261, 0.011474656882020871};
    static const double a[4] = {1, -2.137789920887026, 1.7693455323398903, -0.5397583563966973};
    static const double y2[12] = {0.09426267155898957,  -0.01569819614833931, 0.08818266082663118,
                                  0.2757765940647883,   0.43652825057541383,  0.4928589377005908,
                                  0.4186376238027216,   0.2499353115650234,   0.06822530340294117,
                                  -0.05893274829568898, -0.11179529810938994, -0.10937194584790896};
    static const double zf2[3] = {-0.0821624966755535, 0.1274369889479046, -0.05903442172677593};
    double b2[4], a2[4], start[3] = {0.1, -0.2, 0.3};
    for (int i = 0; i < 4; i++) b2[i] = 2 * b[i], a2[i] = 2 * a[i];
    const dpcr_array az = dpcr_array_make(start, DPCR_F64, 3, (const int64_t[]){1, 1, 3});
    assert_int_equal(dpcr_filter_create_ba(context, 4, b2, 4, a2, &filter, NULL), DPCR_OK);
    assert_int_equal(dpcr_filter_order(filter), 3);
    assert_int_equal(dpcr_filter_execute(filter, &ax, &az, &ay, &az, NULL), DPCR_OK);  // zf is zi
    for (int i = 0; i < 12; i++) assert_true(fabs(got[i] - y2[i]) < 1e-14);
    for (int i = 0; i < 3; i++) assert_true(fabs(start[i] - zf2[i]) < 1e-14);
    dpcr_filter_destroy(filter);
}

static void any_length_is_the_loops(void **state) {
    (void)state;
    static const int64_t lengths[] = {0, 1, 7, 63, 64, 65, 200, 2047, 2048, 2049, 5000, 33000};
    check(biquads(1, 0.9), lengths, 12, 1e-12);
    if (TESTS_ONE_OF < 6) check(biquads(4, 0.8), lengths, 12, 1e-12);
    check(biquads(3, 0.9999), lengths, 12, 1e-11);  // remembers longer than a stretch, and amplifies
    check(biquads(3, 0.9), lengths, 12, 1e-12);
}

static void any_order_is_the_loops(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 100, 2050, 9001};
    for (int64_t p = 0; p <= 5; p++) check(direct(p, p > 0), lengths, 4, 1e-12);
    check(direct(32, true), lengths + 2, 2, 1e-12);
    check(direct(33, true), lengths + 2, 1, 1e-12);  // too wide for powers: in order
    check(direct(128, false), lengths + 1, TESTS_SANITIZED ? 1 : 3, 1e-12);
    check(biquads(40, 0.5), lengths + 2, 2, 1e-12);  // several stages
}

// Also between the stages of a long cascade, where a design's gain may have left the range of float.
static void float_signals_are_rounded_once(void **state) {
    (void)state;
    enum { SECTIONS = 40 };
    double sos[SECTIONS][6];
    for (int s = 0; s < SECTIONS; s++) {
        const double gain = s == 0 ? 0x1p-200 : s == SECTIONS - 1 ? 0x1p+200 : 1;
        const double row[6] = {0.9 * gain, -0.1 * gain, 0.2 * gain, 1, -0.9 * cos(0.1 * s), 0.2};
        memcpy(sos[s], row, sizeof row);
    }
    design d = {.sections = SECTIONS, .order = 2};
    assert_int_equal(dpcr_filter_create_sos(context, SECTIONS, &sos[0][0], &d.filter, NULL), DPCR_OK);
    // The last is more than the scratch between stages holds at once.
    static const int64_t lengths[] = {100, 5000, TESTS_SANITIZED ? 3000 : 1500000};
    for (int i = 0; i < 3; i++)
        for (int backward = 0; backward < 2; backward++) {
            sound s = sound_make(&d, DPCR_F32, 3, lengths[i], i == 1),
                  wide = sound_make(&d, DPCR_F64, 3, lengths[i], 0);
            memcpy(wide.zi.data, s.zi.data, (size_t)(3 * s.states) * 8);
            for (int64_t b = 0; b < 3; b++)
                for (int64_t l = 0; l < s.length; l++) put(&wide.x, b, l, get(&s.x, b, l));
            dpcr_status (*const call)(const dpcr_filter *, const dpcr_array *, const dpcr_array *, const dpcr_array *,
                                      const dpcr_array *, dpcr_error *) =
                backward ? dpcr_filter_adjoint : dpcr_filter_execute;
            assert_int_equal(call(d.filter, &s.x, NULL, &s.y, &s.zf, NULL), DPCR_OK);
            assert_int_equal(call(d.filter, &wide.x, NULL, &wide.y, &wide.zf, NULL), DPCR_OK);
            for (int64_t b = 0; b < 3; b++)
                for (int64_t l = 0; l < s.length; l++)
                    assert_true(get(&s.y, b, l) == (double)(float)get(&wide.y, b, l));
            assert_true(get(&s.y, 2, s.length / 2) != 0);
            assert_memory_equal(s.zf.data, wide.zf.data, (size_t)(3 * s.states) * 8);
            sound_free(&s), sound_free(&wide);
        }
    dpcr_filter_destroy(d.filter);
}

// A cumulative sum never forgets, and is no multiple of anything that was cut off.
static void sums_do_not_forget(void **state) {
    (void)state;
    const double one = 1, a[2] = {1, -1};
    design d = {.sections = 1, .order = 1, .b = {1, 0}, .a = {1, -1}};
    assert_int_equal(dpcr_filter_create_ba(context, 1, &one, 2, a, &d.filter, NULL), DPCR_OK);
    assert_int_equal(dpcr_filter_memory(d.filter), 0);
    sound s = sound_make(&d, DPCR_F64, 1, 50000, false);
    for (int64_t l = 0; l < s.length; l++) put(&s.x, 0, l, (double)(l % 7 - 3));  // integers: exact
    ((double *)s.zi.data)[0] = 5;
    run(&d, &s);
    double sum = 5;
    for (int64_t l = 0; l < s.length; l++) sum += (double)(l % 7 - 3), assert_true(get(&s.y, 0, l) == sum);
    sound_free(&s);
    dpcr_filter_destroy(d.filter);
}

// Past the caches, in vectors of 64 bytes: from every place in a line.
static void large_signals_are_streamed(void **state) {
    (void)state;
    design d = biquads(2, 0.9);
    const int64_t length = (16 << 20) / 8 + 1001;
    sound s = sound_make(&d, DPCR_F64, 1, length + 16, false);
    double *const out = s.memory[1];
    for (int64_t at = 0; at < 8; at += 3) {
        sound part = s;
        part.length = part.x.shape[1] = part.y.shape[1] = length;
        part.y.data = out + at;
        out[length + at] = 77;
        run(&d, &part);
        agrees(&d, &part, 1e-12);
        assert_true(out[length + at] == 77);
    }
    sound_free(&s);
    dpcr_filter_destroy(d.filter);
}

static void bits_are_a_channels_own(void **state) {
    (void)state;
    design d = biquads(3, 0.95);
    sound s = sound_make(&d, DPCR_F64, 37, 12345, false);
    run(&d, &s);
    dpcr_context *const many = context;
    const dpcr_context_options options = {.size = sizeof options, .threads = 1};
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    design other = biquads(3, 0.95);
    for (int64_t b = 0; b < s.channels; b += 9) {
        sound alone = sound_make(&other, DPCR_F64, 1, s.length, true);
        memcpy(alone.memory[0], (double *)s.memory[0] + b * s.length, (size_t)s.length * 8);
        memcpy(alone.zi.data, (double *)s.zi.data + b * s.states, (size_t)s.states * 8);
        run(&other, &alone);
        assert_memory_equal(alone.memory[1], (double *)s.memory[1] + b * s.length, (size_t)s.length * 8);
        assert_memory_equal(alone.zf.data, (double *)s.zf.data + b * s.states, (size_t)s.states * 8);
        sound_free(&alone);
    }
    dpcr_filter_destroy(other.filter);
    dpcr_context_destroy(context);
    context = many;
    sound_free(&s);
    dpcr_filter_destroy(d.filter);
}

// Of dy . gy + dzf . gzf over any directions, which a linear filter's own values are.
static void adjoint_identity(void **state) {
    (void)state;
    for (int which = 0; which < 5; which++) {
        design d = which == 0   ? biquads(1, 0.9)
                   : which == 1 ? biquads(20, 0.7)
                   : which == 2 ? direct(5, true)
                   : which == 3 ? direct(70, false)
                                : biquads(2, 0.9999);
        for (int64_t length = 0; length <= 20000; length = length * 5 + 100) {
            sound s = sound_make(&d, DPCR_F64, 3, length, false), g = sound_make(&d, DPCR_F64, 3, length, true);
            run(&d, &s);
            assert_int_equal(dpcr_filter_adjoint(d.filter, &g.x, &g.zi, &g.y, &g.zf, NULL), DPCR_OK);
            double left = 0, right = 0, size = 1;
            for (int64_t b = 0; b < 3; b++)
                for (int64_t l = 0; l < length; l++) {
                    left += get(&s.y, b, l) * get(&g.x, b, l), right += get(&s.x, b, l) * get(&g.y, b, l);
                    size += fabs(get(&s.y, b, l) * get(&g.x, b, l));
                }
            for (int64_t i = 0; i < 3 * s.states; i++) {
                left += ((double *)s.zf.data)[i] * ((double *)g.zi.data)[i];
                right += ((double *)s.zi.data)[i] * ((double *)g.zf.data)[i];
            }
            assert_true(fabs(left - right) <= 1e-12 * size);
            sound_free(&s), sound_free(&g);
        }
        dpcr_filter_destroy(d.filter);
    }
}

// sum of y . gy and zf . gzf, the loss whose gradients are gy and gzf.
static double loss_of(const design *d, const sound *s, const sound *g) {
    double sum = 0;
    for (int64_t b = 0; b < s->channels; b++) {
        double z[MOST_STATES];
        memcpy(z, (double *)s->zi.data + b * s->states, (size_t)s->states * sizeof *z);
        for (int64_t l = 0; l < s->length; l++) sum += loop_sample(d, get(&s->x, b, l), z) * get(&g->x, b, l);
        for (int64_t i = 0; i < s->states; i++) sum += z[i] * ((double *)g->zi.data)[b * s->states + i];
    }
    return sum;
}

static void gradients_are_differences(void **state) {
    (void)state;
    for (int which = 0; which < 4; which++)
        for (int64_t length = 0; length <= 5000; length = length * 70 + 1) {
            design d = which == 0 ? biquads(3, 0.8) : which == 1 ? direct(4, true) : direct(which == 2 ? 3 : 0, false);
            const int64_t count = d.sections * (d.order + 1);
            sound s = sound_make(&d, DPCR_F64, 2, length, false), g = sound_make(&d, DPCR_F64, 2, length, true);
            sound other = sound_make(&d, DPCR_F64, 2, length, true);
            double gb[MOST_SECTIONS] = {0}, ga[MOST_SECTIONS] = {0};
            assert_int_equal(dpcr_filter_gradient(d.filter, &s.x, &s.zi, &g.x, &g.zi, gb, ga, &g.y, &g.zf, NULL),
                             DPCR_OK);
            for (int64_t i = 0; i < count; i++) {
                for (int feedback = 0; feedback < 2; feedback++) {
                    if (feedback && i % (d.order + 1) == 0) continue;
                    double *value = feedback ? &d.a[i] : &d.b[i], kept = *value, h = 1e-5;
                    *value = kept + h;
                    const double up = loss_of(&d, &s, &g);
                    *value = kept - h;
                    const double slope = (up - loss_of(&d, &s, &g)) / (2 * h), got = feedback ? ga[i] : gb[i];
                    *value = kept;
                    assert_true(fabs(got - slope) <= 1e-6 * fmax(1, fabs(slope)));
                }
                if (i % (d.order + 1) == 0) assert_true(ga[i] == 0);
            }
            // by the signals and states: the adjoint's
            assert_int_equal(dpcr_filter_adjoint(d.filter, &g.x, &g.zi, &other.y, &other.zf, NULL), DPCR_OK);
            for (int64_t l = 0; l < 2 * length; l++)
                assert_true(fabs(get(&g.y, l % 2, l / 2) - get(&other.y, l % 2, l / 2)) < 1e-11);
            for (int64_t i = 0; i < 2 * s.states; i++)
                assert_true(fabs(((double *)g.zf.data)[i] - ((double *)other.zf.data)[i]) < 1e-11);
            sound_free(&s), sound_free(&g), sound_free(&other);
            dpcr_filter_destroy(d.filter);
        }
}

// A filter whose zeros lie on its poles but for 1e-5: what comes back through the poles alone is 1e10 times what comes
// back through all of it, and right beside that alone.
static void gradients_of_poles_beside_zeros(void **state) {
    (void)state;
    enum { LENGTH = 20000 };
    const double r = 1 - 1e-5, b[] = {1, -2, 1}, a[] = {1, -2 * r, r * r};
    dpcr_filter *filter = NULL;
    double *const memory = calloc(4 * LENGTH, sizeof *memory), gb[3] = {0}, ga[3] = {0};
    const int64_t shape[2] = {1, LENGTH};
    const dpcr_array x = dpcr_array_make(memory, DPCR_F64, 2, shape),
                     g = dpcr_array_make(memory + LENGTH, DPCR_F64, 2, shape),
                     gx = dpcr_array_make(memory + 2 * LENGTH, DPCR_F64, 2, shape),
                     adjoint = dpcr_array_make(memory + 3 * LENGTH, DPCR_F64, 2, shape);
    assert_int_equal(dpcr_filter_create_ba(context, 3, b, 3, a, &filter, NULL), DPCR_OK);
    for (int64_t l = 0; l < LENGTH; l++) memory[LENGTH + l] = 1;
    assert_int_equal(dpcr_filter_gradient(filter, &x, NULL, &g, NULL, gb, ga, &gx, NULL, NULL), DPCR_OK);
    assert_int_equal(dpcr_filter_adjoint(filter, &g, NULL, &adjoint, NULL, NULL), DPCR_OK);
    assert_memory_equal(gx.data, adjoint.data, LENGTH * sizeof *memory);
    dpcr_filter_destroy(filter);
    free(memory);
}

// In pieces too short to be cut: the loop of the kernel itself.
static void run_in_order(const design *d, const sound *s) {
    memcpy(s->zf.data, s->zi.data, (size_t)(s->channels * s->states) * 8);
    for (int64_t l = 0; l < s->length; l += 1500) {
        dpcr_array x = s->x, y = s->y;
        const int64_t count = s->length - l < 1500 ? s->length - l : 1500, bytes = (int64_t)dpcr_dtype_size(s->dtype);
        x.data = (char *)x.data + l * x.strides[1] * bytes, y.data = (char *)y.data + l * y.strides[1] * bytes;
        x.shape[1] = y.shape[1] = count;
        assert_int_equal(dpcr_filter_execute(d->filter, &x, &s->zf, &y, &s->zf, NULL), DPCR_OK);
    }
}

static void same_as_in_order(const design *d, sound *s) {
    const size_t bytes = (size_t)(s->channels * s->length) * dpcr_dtype_size(s->dtype);
    run(d, s);
    void *y = malloc(bytes), *zf = malloc((size_t)(s->channels * s->states) * 8);
    memcpy(y, s->memory[1], bytes), memcpy(zf, s->zf.data, (size_t)(s->channels * s->states) * 8);
    run_in_order(d, s);
    assert_memory_equal(y, s->memory[1], bytes);
    assert_memory_equal(zf, s->zf.data, (size_t)(s->channels * s->states) * 8);
    free(y), free(zf);
}

static void streaming_goes_on(void **state) {
    (void)state;
    design d = biquads(4, 0.9);
    sound s = sound_make(&d, DPCR_F32, 2, 7000, true);
    run_in_order(&d, &s);
    agrees(&d, &s, 2e-7);
    sound_free(&s);
    dpcr_filter_destroy(d.filter);
}

// An unstable filter runs in order, far into the infinite.
static void unstable_filters_have_the_loops_bits(void **state) {
    (void)state;
    design d = biquads(2, 1.01);
    assert_int_equal(dpcr_filter_memory(d.filter), 0);
    sound s = sound_make(&d, DPCR_F64, 2, 80000, false);
    same_as_in_order(&d, &s);
    assert_false(isfinite(get(&s.y, 0, s.length - 1)));
    assert_true(isfinite(get(&s.y, 0, 10000)));
    sound_free(&s);
    dpcr_filter_destroy(d.filter);
}

// A filter that grows a little is cut, and right.
static void slow_growth_is_right(void **state) {
    (void)state;
    design d = biquads(1, 1.0001);
    sound s = sound_make(&d, DPCR_F64, 1, 50000, false);
    run(&d, &s);
    agrees(&d, &s, 1e-9);
    sound_free(&s);
    dpcr_filter_destroy(d.filter);
}

// Low passes far below the sampling rate make hundreds of times more of what seams are off: as near to the filter in
// long double as the loop comes, but for a few times.
static void slow_low_passes_are_as_near_as_the_loop(void **state) {
    (void)state;
    static const double corners[] = {100, 20, 1, 0.1};
    static const int64_t lengths[] = {3000, 5000, 8000, 12000, 16000};
    for (int i = 0; i < 4 * 5 * 2; i++) {
        const double k = tan(acos(-1) * corners[i % 4] / 48000), q = sqrt(2), scale = 1 / (1 + k * q + k * k);
        const double sos[6] = {k * k * scale,           2 * k * k * scale,          k * k * scale, 1,
                               2 * (k * k - 1) * scale, (1 - k * q + k * k) * scale};
        design d = {.sections = 1, .order = 2};
        memcpy(d.b, sos, sizeof sos / 2), memcpy(d.a, sos + 3, sizeof sos / 2);
        assert_int_equal(dpcr_filter_create_sos(context, 1, sos, &d.filter, NULL), DPCR_OK);
        sound s = sound_make(&d, DPCR_F64, i < 20 ? 12 : 37, lengths[i / 4 % 5], false);
        double ratio = 0;
        memset(s.zi.data, 0, (size_t)(s.channels * s.states) * 8);
        run(&d, &s);
        for (int64_t b = 0; b < s.channels; b++) {
            long double z0 = 0, z1 = 0, most = 0, error = 0, own = 0;
            double z[2] = {0};
            for (int64_t l = 0; l < s.length; l++) {
                const long double x = get(&s.x, b, l), y = sos[0] * x + z0;
                z0 = sos[1] * x + z1 - sos[4] * y, z1 = sos[2] * x - sos[5] * y;
                most = fmaxl(most, fabsl(y));
                error = fmaxl(error, fabsl((long double)get(&s.y, b, l) - y));
                own = fmaxl(own, fabsl((long double)loop_sample(&d, (double)x, z) - y));
            }
            const long double floor = 1e-14L * most;
            ratio += log((double)((error + floor) / (own + floor))) / (double)s.channels;
        }
        if (!(exp(ratio) <= 8))
            fail_msg("%g Hz, %lld samples: %g times the loop's error", corners[i % 4], (long long)s.length, exp(ratio));
        sound_free(&s);
        dpcr_filter_destroy(d.filter);
    }
}

static void what_is_not_finite_stays_in_its_channel(void **state) {
    (void)state;
    static const double bad[] = {NAN, HUGE_VAL, 1e308};
    for (int i = 0; i < 3; i++)
        for (int finite = 0; finite < 2; finite++) {
            design d = finite ? direct(3, false) : biquads(2, 0.9);  // without feedback it passes
            sound s = sound_make(&d, DPCR_F64, 3, 20000, false);
            put(&s.x, 1, 3000, bad[i]), put(&s.x, 1, 3001, -bad[i]);
            sound alone = s;  // channel 1
            alone.channels = alone.x.shape[0] = alone.y.shape[0] = alone.zi.shape[0] = alone.zf.shape[0] = 1;
            alone.x.data = (double *)s.x.data + s.length, alone.y.data = (double *)s.y.data + s.length;
            alone.memory[1] = alone.y.data;
            if (i < 2 || finite) same_as_in_order(&d, &alone);
            run(&d, &s);
            if (i < 2) assert_true(isfinite(get(&s.y, 1, 19999)) == finite);
            assert_true(isfinite(get(&s.y, 0, 19999)) && isfinite(get(&s.y, 2, 19999)));
            for (int b = 0; b < 3; b += 2) {
                alone.x.data = (double *)s.x.data + b * s.length, alone.y.data = (double *)s.y.data + b * s.length;
                alone.zi.data = (double *)s.zi.data + b * s.states, alone.zf.data = (double *)s.zf.data + b * s.states;
                agrees(&d, &alone, 1e-12);
            }
            sound_free(&s);
            dpcr_filter_destroy(d.filter);
        }
}

// A sound that ends, and the filter's tail through the denormal numbers, kept and flushed.
static void tails_become_denormal(void **state) {
    (void)state;
    design d = biquads(2, 0.9);
    for (int flushed = 0; flushed < 2; flushed++) {
#if defined(__SSE2__)
        const unsigned mode = _mm_getcsr();
        if (flushed) _mm_setcsr(mode | 0x8040);  // flush to zero, denormals are zero
#endif
        sound s = sound_make(&d, DPCR_F64, 1, 40000, false);
        for (int64_t l = 1000; l < s.length; l++) put(&s.x, 0, l, 0);
        run(&d, &s);
#if defined(__SSE2__)
        assert_int_equal(_mm_getcsr() & 0x8040, flushed ? 0x8040 : mode & 0x8040);
        _mm_setcsr(mode);
#endif
        agrees(&d, &s, 1e-12);
        assert_true(fabs(get(&s.y, 0, 39999)) < DBL_MIN);
        sound_free(&s);
    }
    dpcr_filter_destroy(d.filter);
}

// ---- refusals ----

static void refused(dpcr_status status, const dpcr_error *error, const char *word) {
    if (!strstr(error->text, word)) print_message("'%s' lacks '%s'\n", error->text, word);
    assert_int_equal(status, DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error->text, word));
}

static void misuse_is_refused_in_words(void **state) {
    (void)state;
    dpcr_error e = {0};
    dpcr_filter *f = NULL;
    double sos[6] = {1, 0, 0, 1, 0, 0};
    refused(dpcr_filter_create_sos(NULL, 1, sos, &f, &e), &e, "NULL");
    refused(dpcr_filter_create_sos(context, 0, sos, &f, &e), &e, "0 sections");
    sos[3] = 0, refused(dpcr_filter_create_sos(context, 1, sos, &f, &e), &e, "a_0");
    sos[3] = 1, sos[5] = NAN, refused(dpcr_filter_create_sos(context, 1, sos, &f, &e), &e, "not finite");
    refused(dpcr_filter_create_ba(context, 0, sos, 1, sos, &f, &e), &e, "coefficients");
    refused(dpcr_filter_create_ba(context, 1, sos, 130, sos, &f, &e), &e, "coefficients");
    assert_null(f);

    design d = biquads(2, 0.5);
    sound s = sound_make(&d, DPCR_F64, 2, 10, false), t = sound_make(&d, DPCR_F32, 2, 10, false);
    refused(dpcr_filter_execute(d.filter, &s.x, NULL, &s.x, NULL, &e), &e, "x shares memory with y");
    refused(dpcr_filter_execute(d.filter, &s.x, NULL, &t.y, NULL, &e), &e, "float32");
    refused(dpcr_filter_execute(d.filter, NULL, NULL, &t.y, NULL, &e), &e, "NULL");
    dpcr_array vast = s.x;  // 2^66 numbers, and 0 where that wraps
    vast.data = NULL, vast.shape[0] = vast.shape[1] = (int64_t)1 << 33;
    refused(dpcr_filter_execute(d.filter, &vast, NULL, &s.y, NULL, &e), &e, "no data");
    refused(dpcr_filter_execute(d.filter, &s.zi, NULL, &s.y, NULL, &e), &e, "[channels][samples]");
    refused(dpcr_filter_execute(d.filter, &s.x, &s.x, &s.y, NULL, &e), &e, "zi");
    refused(dpcr_filter_adjoint(d.filter, &s.x, NULL, &s.y, &s.x, &e), &e, "gzi");
    sound g = sound_make(&d, DPCR_F64, 2, 10, false);
    double gb[6] = {0}, ga[6] = {0};
    for (int k = 0; k < 2; k++) {  // one channel for both, and channels one sample apart
        dpcr_array y = s.y, zf = s.zf;
        y.strides[0] = k, zf.strides[0] = k;
        assert_int_equal(dpcr_filter_execute(d.filter, &y, &zf, &s.x, NULL, NULL), DPCR_OK);
        refused(dpcr_filter_execute(d.filter, &s.x, NULL, &y, NULL, &e), &e, "y is written, but its strides");
        refused(dpcr_filter_execute(d.filter, &s.x, NULL, &s.y, &zf, &e), &e, "zf is written, but its strides");
        refused(dpcr_filter_adjoint(d.filter, &s.x, NULL, &y, NULL, &e), &e, "gx is written, but its strides");
        refused(dpcr_filter_adjoint(d.filter, &s.x, NULL, &s.y, &zf, &e), &e, "gzi is written, but its strides");
        refused(dpcr_filter_gradient(d.filter, &s.x, NULL, &g.x, NULL, gb, ga, &y, NULL, &e), &e, "gx is written");
        refused(dpcr_filter_gradient(d.filter, &s.x, NULL, &g.x, NULL, gb, ga, NULL, &zf, &e), &e, "gzi is written");
    }
    sound_free(&g);
    sound_free(&s), sound_free(&t);
    dpcr_filter_destroy(d.filter);
    dpcr_filter_destroy(NULL);
}

static void refused_memory_is_told(void **state) {
    (void)state;
    dpcr_context *const own = context;
    for (int64_t granted = 0, done = 0; !done; granted++) {
        budget b = {.left = 1000};
        const dpcr_context_options options = budget_options(&b);
        assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
        b.left = granted;
        const double sos[12] = {1, 2, 1, 1, -0.5, 0.1, 1, 0, 0, 1, 0.3, 0};
        double x[3000] = {1}, y[3000];
        const dpcr_array ax = dpcr_array_make(x, DPCR_F64, 2, (const int64_t[]){1, 3000}),
                         ay = dpcr_array_make(y, DPCR_F64, 2, (const int64_t[]){1, 3000});
        dpcr_filter *f = NULL;
        dpcr_error e = {0};
        dpcr_status status = dpcr_filter_create_sos(context, 2, sos, &f, &e);
        if (status == DPCR_OK) status = dpcr_filter_execute(f, &ax, NULL, &ay, NULL, &e);
        double gb[6] = {0}, ga[6] = {0};
        if (status == DPCR_OK) status = dpcr_filter_gradient(f, &ax, NULL, &ay, NULL, gb, ga, NULL, NULL, &e);
        done = status == DPCR_OK;
        if (!done) assert_int_equal(status, DPCR_ERROR_MEMORY);
        if (!done) assert_non_null(strstr(e.text, "memory"));
        dpcr_filter_destroy(f);
        dpcr_context_destroy(context);
        assert_int_equal(b.live, 0);
        assert_true(granted < 200);
    }
    context = own;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scipys_numbers),
        cmocka_unit_test(any_length_is_the_loops),
        cmocka_unit_test(any_order_is_the_loops),
        cmocka_unit_test(float_signals_are_rounded_once),
        cmocka_unit_test(sums_do_not_forget),
        cmocka_unit_test(large_signals_are_streamed),
        cmocka_unit_test(bits_are_a_channels_own),
        cmocka_unit_test(adjoint_identity),
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(gradients_of_poles_beside_zeros),
        cmocka_unit_test(streaming_goes_on),
        cmocka_unit_test(unstable_filters_have_the_loops_bits),
        cmocka_unit_test(slow_growth_is_right),
        cmocka_unit_test(slow_low_passes_are_as_near_as_the_loop),
        cmocka_unit_test(what_is_not_finite_stays_in_its_channel),
        cmocka_unit_test(tails_become_denormal),
        cmocka_unit_test(misuse_is_refused_in_words),
        cmocka_unit_test(refused_memory_is_told),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
