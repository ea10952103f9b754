// SPDX-License-Identifier: MIT
// Devices over the stand-in module: loading and each reason why not, memory, copies, streams, DLPack, linear chains as
// enqueued work: nothing read by the host, nothing done before the wait, the loop's results, and a usable device after
// memory or a launch was refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chain/plan.h"
#include "deeppcr/deeppcr.h"
#include "kern/device.h"
#include "rt/dev/device.h"

static const dpcr_device cpu = {.type = DPCR_HOST}, cuda = {.type = DPCR_CUDA};

static void expect(dpcr_status got, dpcr_status wanted, const dpcr_error *error, const char *words) {
    if (got != wanted || (got != DPCR_OK && !strstr(error->text, words)))
        fail_msg("got %s \"%s\", wanted %s with \"%s\"", dpcr_status_name(got), error->text, dpcr_status_name(wanted),
                 words);
}
#define OK(call)                                               \
    do {                                                       \
        dpcr_error ok_error = {0};                             \
        dpcr_error *error = &ok_error;                         \
        const dpcr_status ok_status = (call);                  \
        if (ok_status != DPCR_OK) fail_msg("%s", error->text); \
    } while (0)
#define REFUSED(wanted, words, call)              \
    do {                                          \
        dpcr_error refused_error = {0};           \
        dpcr_error *error = &refused_error;       \
        expect((call), (wanted), error, (words)); \
    } while (0)

// ---- loading ----

static void modules_that_cannot_serve(void **state) {
    (void)state;
    const dpcri_device_table *table = NULL;
    char path[] = P_tmpdir "/test_device.XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    FILE *damaged = fdopen(file, "w");
    fputs("no module at all", damaged);
    fclose(damaged);
    REFUSED(DPCR_ERROR_DEVICE, "cannot be loaded", dpcri_device_open(path, &table, error));
    remove(path);
    REFUSED(DPCR_ERROR_DEVICE, "cannot be loaded", dpcri_device_open(STAND_INS "/none.so", &table, error));
    REFUSED(DPCR_ERROR_DEVICE, "no module of deeppcr", dpcri_device_open("libm.so.6", &table, error));
    REFUSED(DPCR_ERROR_DEVICE, "speaks interface 99 of modules, this library",
            dpcri_device_open(STAND_INS "/libfake_device_abi.so", &table, error));
    REFUSED(DPCR_ERROR_DEVICE, "is of deeppcr 0.0.1, this library " DPCR_VERSION_STRING,
            dpcri_device_open(STAND_INS "/libfake_device_version.so", &table, error));
    REFUSED(DPCR_ERROR_DEVICE, "has a table of 8 bytes, this library's has",
            dpcri_device_open(STAND_INS "/libfake_device_size.so", &table, error));
    assert_null(table);
    OK(dpcri_device_open(STAND_INS "/libfake_device_kernels.so", &table, error));
    assert_null(dpcri_device_kernels_in(table->kernels));
    OK(dpcri_device_open(STAND_INS "/libfake_device.so", &table, error));
    assert_string_equal(table->name, "cuda");
    assert_non_null(dpcri_device_kernels_in(table->kernels));
}

static void names(void **state) {
    (void)state;
    dpcr_device d = {0};
    OK(dpcr_device_find("cpu", &d, error));
    assert_int_equal(d.type, DPCR_HOST);
    OK(dpcr_device_find("cuda", &d, error));
    assert_true(d.type == DPCR_CUDA && d.id == 0);
    OK(dpcr_device_find("cuda:17", &d, error));
    assert_int_equal(d.id, 17);
    static const char *const wrong[] = {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999", "CUDA", "cpu:0"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(DPCR_ERROR_ARGUMENT, "wanted cpu, cuda or cuda:N", dpcr_device_find(wrong[i], &d, error));
    REFUSED(DPCR_ERROR_ARGUMENT, "wanted a name", dpcr_device_find(NULL, &d, error));
    assert_string_equal(dpcr_device_type_name(DPCR_CUDA), "cuda");
    assert_string_equal(dpcr_device_type_name((dpcr_device_type)7), "unknown");
}

static void what_there_is(void **state) {
    (void)state;
    int count = 0;
    dpcr_device_info info = {.size = sizeof info};
    dpcr_device_rates rates = {.size = sizeof rates};
    OK(dpcr_device_count(DPCR_HOST, &count, error));
    assert_int_equal(count, 1);
    OK(dpcr_device_describe(cpu, &info, error));
    assert_true(info.processors > 0 && info.memory_bytes > 0 && info.name[0]);
    OK(dpcr_device_count(DPCR_CUDA, &count, error));
    assert_int_equal(count, 1);
    OK(dpcr_device_describe(cuda, &info, error));
    assert_string_equal(info.name, "stand-in on the host");
    assert_int_equal(info.major, 9);
    OK(dpcr_device_measure(cuda, &rates, error));
    assert_true(rates.copy > 0 && rates.to_device > 0 && rates.to_host > 0 && rates.launch > 0);
    const size_t before = info.free_bytes;
    setenv("DEEPPCR_FAKE_COPY", "2", 1);  // what is on its way by then lands before its memory goes
    assert_int_not_equal(dpcr_device_measure(cuda, &rates, NULL), DPCR_OK);
    unsetenv("DEEPPCR_FAKE_COPY");
    OK(dpcr_device_describe(cuda, &info, error));
    assert_true(info.free_bytes == before);
    REFUSED(DPCR_ERROR_UNSUPPORTED, "context_machine", dpcr_device_measure(cpu, &rates, error));
    dpcr_device third = {.type = DPCR_CUDA, .id = 2};
    REFUSED(DPCR_ERROR_DEVICE, "there is no cuda:2; there is 1", dpcr_device_describe(third, &info, error));
    third.id = -1;
    REFUSED(DPCR_ERROR_DEVICE, "there is no cuda:-1", dpcr_device_describe(third, &info, error));
    const dpcr_device unknown = {.type = (dpcr_device_type)9};
    REFUSED(DPCR_ERROR_ARGUMENT, "type is 9", dpcr_device_describe(unknown, &info, error));
    dpcr_device_info small = {.size = 4};
    REFUSED(DPCR_ERROR_ARGUMENT, "its size", dpcr_device_describe(cuda, &small, error));
    setenv("DEEPPCR_FAKE_DEVICES", "0", 1);
    REFUSED(DPCR_ERROR_DEVICE, "no NVIDIA driver", dpcr_device_count(DPCR_CUDA, &count, error));
    assert_int_equal(count, 0);
    REFUSED(DPCR_ERROR_DEVICE, "no NVIDIA driver", dpcr_device_describe(cuda, &info, error));
    unsetenv("DEEPPCR_FAKE_DEVICES");
    setenv("DEEPPCR_FAKE_OLD", "1", 1);
    REFUSED(DPCR_ERROR_DEVICE, "wanted 7.5 or newer", dpcr_device_describe(cuda, &info, error));
    unsetenv("DEEPPCR_FAKE_OLD");
}

// ---- memory and streams ----

static void memory_and_copies(void **state) {
    (void)state;
    void *memory = NULL, *host = NULL, *stream = NULL, *second = NULL;
    float numbers[300], back[300] = {0};
    dpcr_device_info before = {.size = sizeof before}, after = {.size = sizeof after};
    for (int i = 0; i < 300; i++) numbers[i] = (float)i;
    OK(dpcr_device_describe(cuda, &before, error));
    OK(dpcr_device_allocate(cuda, sizeof numbers, &memory, error));
    OK(dpcr_stream_create(cuda, &stream, error));
    OK(dpcr_device_copy(cuda, memory, cpu, numbers, sizeof numbers, stream, error));
    OK(dpcr_device_copy(cpu, back, cuda, memory, sizeof back, stream, error));
    assert_true(back[299] == 0);  // it stands in the stream
    setenv("DEEPPCR_FAKE_DEVICES", "0", 1);
    OK(dpcr_stream_wait(cuda, stream, error));  // and is waited for all the same
    unsetenv("DEEPPCR_FAKE_DEVICES");
    assert_memory_equal(back, numbers, sizeof back);
    OK(dpcr_device_allocate(cpu, sizeof numbers, &host, error));
    OK(dpcr_device_copy(cpu, host, cpu, numbers, sizeof numbers, NULL, error));
    assert_memory_equal(host, numbers, sizeof numbers);
    dpcr_device other = {.type = DPCR_CUDA, .id = 1};
    setenv("DEEPPCR_FAKE_DEVICES", "2", 1);
    REFUSED(DPCR_ERROR_UNSUPPORTED, "between two devices",
            dpcr_device_copy(other, memory, cuda, memory, 4, NULL, error));
    unsetenv("DEEPPCR_FAKE_DEVICES");
    REFUSED(DPCR_ERROR_ARGUMENT, "from is NULL", dpcr_device_copy(cuda, memory, cpu, NULL, 4, NULL, error));
    OK(dpcr_device_copy(cuda, memory, cpu, NULL, 0, NULL, error));
    REFUSED(DPCR_ERROR_MEMORY, "bytes were refused", dpcr_device_allocate(cuda, SIZE_MAX - 7, &second, error));
    REFUSED(DPCR_ERROR_MEMORY, "are free", dpcr_device_allocate(cuda, (size_t)1 << 40, &second, error));
    assert_null(second);
    OK(dpcr_device_allocate(cuda, 0, &second, error));
    assert_null(second);
    setenv("DEEPPCR_FAKE_DEVICES", "0", 1);  // what was taken goes all the same
    dpcr_device_release(cuda, memory);
    dpcr_device_release(cuda, NULL);
    dpcr_device_release(cpu, host);
    dpcr_stream_destroy(cuda, stream);
    unsetenv("DEEPPCR_FAKE_DEVICES");
    OK(dpcr_device_describe(cuda, &after, error));
    assert_true(after.free_bytes == before.free_bytes);
}

// ---- linear chains ----

enum { L = 37, B = 3, W = 4 };

typedef struct problem {
    dpcr_context *context;
    dpcr_chain_shape shape;
    dpcr_chain_plan *host, *device;
    dpcr_array a, b, z0, z;   // host
    void *on[4], *workspace;  // device: a, b, z0, z
    size_t bytes[4];
    char numbers[4][L * B * W * W * 8];
} problem;

static dpcr_array on_device(const problem *p, int which) {
    const dpcr_array *const all[] = {&p->a, &p->b, &p->z0, &p->z};
    dpcr_array array = *all[which];
    array.data = p->on[which];
    array.device = cuda;
    return array;
}

static void fill_numbers(dpcr_array *array, uint64_t seed) {
    int64_t count = 1;
    for (int d = 0; d < array->ndim; d++) count *= array->shape[d];
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const double value = (double)(int32_t)(seed >> 33) / (double)(1u << 30) - 1;
        if (array->dtype == DPCR_F32) ((float *)array->data)[i] = (float)(0.5 * value);
        if (array->dtype == DPCR_F64) ((double *)array->data)[i] = 0.5 * value;
        if (array->dtype == DPCR_U32) ((uint32_t *)array->data)[i] = (uint32_t)(seed >> 32);
    }
}

static void make_problem(problem *p, dpcr_structure structure, dpcr_dtype dtype, int transposed) {
    memset(p, 0, sizeof *p);
    const dpcr_context_options one = {.size = sizeof one, .threads = 1};
    OK(dpcr_context_create(&one, &p->context, error));
    p->shape = (dpcr_chain_shape){.size = sizeof p->shape,
                                  .length = L,
                                  .batch = B,
                                  .transition = dpcr_transition_square(structure, W, 2),
                                  .dtype = dtype,
                                  .transposed = transposed};
    const dpcr_chain_options loop = {.size = sizeof loop, .scheme = DPCR_SCHEME_SEQUENTIAL};
    const dpcr_chain_options there = {.size = sizeof there, .device = cuda};
    OK(dpcr_chain_plan_create(p->context, &p->shape, &loop, &p->host, error));
    OK(dpcr_chain_plan_create(p->context, &p->shape, &there, &p->device, error));
    const int64_t values = dpcr_transition_values(&p->shape.transition);
    p->a = dpcr_array_make(p->numbers[0], dtype, 3, (const int64_t[]){L, B, values});
    p->b = dpcr_array_make(p->numbers[1], dtype, 3, (const int64_t[]){L, B, W});
    p->z0 = dpcr_array_make(p->numbers[2], dtype, 2, (const int64_t[]){B, W});
    p->z = dpcr_array_make(p->numbers[3], dtype, 3, (const int64_t[]){L, B, W});
    const dpcr_array *const all[] = {&p->a, &p->b, &p->z0, &p->z};
    for (int i = 0; i < 4; i++) {
        p->bytes[i] = dpcr_dtype_size(dtype);
        for (int d = 0; d < all[i]->ndim; d++) p->bytes[i] *= (size_t)all[i]->shape[d];
        if (i < 3) fill_numbers((dpcr_array *)all[i], 7 + (uint64_t)i);
        OK(dpcr_device_allocate(cuda, p->bytes[i], &p->on[i], error));
        if (i < 3) OK(dpcr_device_copy(cuda, p->on[i], cpu, p->numbers[i], p->bytes[i], NULL, error));
    }
    OK(dpcr_stream_wait(cuda, NULL, error));
    OK(dpcr_device_allocate(cuda, dpcr_chain_plan_workspace(p->device), &p->workspace, error));
}

static void free_problem(problem *p) {
    for (int i = 0; i < 4; i++) dpcr_device_release(cuda, p->on[i]);
    dpcr_device_release(cuda, p->workspace);
    dpcr_chain_plan_destroy(p->host);
    dpcr_chain_plan_destroy(p->device);
    dpcr_context_destroy(p->context);
}

static double largest_difference(const problem *p, const void *got) {
    double most = 0;
    for (int i = 0; i < L * B * W; i++) {
        const double d = p->z.dtype == DPCR_F32 ? ((const float *)got)[i] - ((const float *)p->z.data)[i]
                         : p->z.dtype == DPCR_F64
                             ? ((const double *)got)[i] - ((const double *)p->z.data)[i]
                             : (double)((const uint32_t *)got)[i] - ((const uint32_t *)p->z.data)[i];
        if (!(d <= most && -d <= most)) most = d < 0 ? -d : d;
    }
    return most;
}

static void solve_on_device(problem *p, bool with_z0, bool in_place, void *stream) {
    static char got[L * B * W * 8];
    const dpcr_array a = on_device(p, 0), b = on_device(p, 1), z0 = on_device(p, 2), z = on_device(p, in_place ? 1 : 3);
    OK(dpcr_chain_execute(p->host, &p->a, &p->b, with_z0 ? &p->z0 : NULL, &p->z, NULL, 0, NULL, error));
    memset(got, 0, sizeof got);
    OK(dpcr_chain_enqueue(p->device, &a, &b, with_z0 ? &z0 : NULL, &z, p->workspace,
                          dpcr_chain_plan_workspace(p->device), stream, error));
    OK(dpcr_device_copy(cpu, got, cuda, z.data, p->bytes[3], stream, error));
    for (size_t i = 0; i < p->bytes[3]; i++) assert_int_equal(got[i], 0);  // nobody has waited
    OK(dpcr_stream_wait(cuda, stream, error));
    const double most = largest_difference(p, got);
    // Sums of at most five products below 1, over a chain that contracts.
    const double allowed = p->z.dtype == DPCR_U32 ? 0 : p->z.dtype == DPCR_F32 ? 2e-5 : 4e-14;
    if (!(most <= allowed))
        fail_msg("%s %s transposed %d z0 %d: off by %g", dpcr_structure_name(p->shape.transition.structure),
                 dpcr_dtype_name(p->z.dtype), p->shape.transposed, with_z0, most);
    if (in_place) OK(dpcr_device_copy(cuda, p->on[1], cpu, p->numbers[1], p->bytes[1], NULL, error));
    OK(dpcr_stream_wait(cuda, NULL, error));
}

static void chains_are_the_loop(void **state) {
    (void)state;
    static problem p;
    void *stream = NULL;
    OK(dpcr_stream_create(cuda, &stream, error));
    for (int s = DPCR_ZERO; s <= DPCR_DENSE; s++)
        for (int dtype = DPCR_F32; dtype <= DPCR_U32; dtype++)
            for (int transposed = 0; transposed < 2; transposed++) {
                make_problem(&p, (dpcr_structure)s, (dpcr_dtype)dtype, transposed);
                solve_on_device(&p, false, false, stream);
                solve_on_device(&p, false, true, NULL);
                if (!transposed) solve_on_device(&p, true, false, stream);
                free_problem(&p);
            }
    dpcr_stream_destroy(cuda, stream);
}

static dpcr_status enqueue(problem *p, const dpcr_array *a, const dpcr_array *b, const dpcr_array *z, size_t bytes,
                           dpcr_error *error) {
    return dpcr_chain_enqueue(p->device, a, b, NULL, z, p->workspace, bytes, NULL, error);
}

static void wrong_arguments(void **state) {
    (void)state;
    static problem p;
    make_problem(&p, DPCR_DENSE, DPCR_F32, 0);
    dpcr_array a = on_device(&p, 0), b = on_device(&p, 1), z = on_device(&p, 3);
    const size_t bytes = dpcr_chain_plan_workspace(p.device);
    REFUSED(DPCR_ERROR_ARGUMENT, "a lies on cpu:0, wanted cuda:0", enqueue(&p, &p.a, &b, &z, bytes, error));
    REFUSED(DPCR_ERROR_ARGUMENT, "z lies on cpu:0", enqueue(&p, &a, &b, &p.z, bytes, error));
    dpcr_array elsewhere = b;
    elsewhere.device.id = 1;
    REFUSED(DPCR_ERROR_ARGUMENT, "b lies on cuda:1", enqueue(&p, &a, &elsewhere, &z, bytes, error));
    REFUSED(DPCR_ERROR_MEMORY, "on the device", enqueue(&p, &a, &b, &z, bytes - 1, error));
    REFUSED(DPCR_ERROR_UNSUPPORTED, "where chain_execute solves",
            dpcr_chain_enqueue(p.host, &a, &b, NULL, &z, p.workspace, bytes, NULL, error));
    REFUSED(DPCR_ERROR_UNSUPPORTED, "where chain_enqueue solves",
            dpcr_chain_execute(p.device, &p.a, &p.b, NULL, &p.z, p.workspace, bytes, NULL, error));
    REFUSED(DPCR_ERROR_UNSUPPORTED, "where chain_enqueue solves",
            dpcr_chain_jvp(p.device, &p.a, NULL, &p.z, NULL, &p.b, NULL, &p.z, p.workspace, bytes, error));
    REFUSED(DPCR_ERROR_UNSUPPORTED, "lies on device type 2",
            dpcr_chain_execute(p.host, &a, &p.b, NULL, &p.z, NULL, 0, NULL, error));
    dpcr_array first = dpcr_array_make(z.data, z.dtype, 2, z.shape + 1);
    first.device = z.device;
    REFUSED(DPCR_ERROR_ARGUMENT, "z0 shares memory with z",
            dpcr_chain_enqueue(p.device, &a, &b, &first, &z, p.workspace, bytes, NULL, error));
    dpcr_array between = b;  // two numbers
    between.data = (char *)b.data + 2;
    REFUSED(DPCR_ERROR_ARGUMENT, "b lies 2 bytes off", enqueue(&p, &a, &between, &z, bytes, error));
    dpcr_array short_b = b;
    short_b.shape[0]--;
    REFUSED(DPCR_ERROR_ARGUMENT, "b", enqueue(&p, &a, &short_b, &z, bytes, error));
    dpcr_chain_plan *plan = NULL;
    dpcr_chain_options o = {.size = sizeof o, .scheme = DPCR_SCHEME_PCR, .device = cuda};
    REFUSED(DPCR_ERROR_UNSUPPORTED, "auto, chunked and sequential work there",
            dpcr_chain_plan_create(p.context, &p.shape, &o, &plan, error));
    o.scheme = DPCR_SCHEME_CHUNKED;
    o.device.id = 3;
    REFUSED(DPCR_ERROR_DEVICE, "there is no cuda:3", dpcr_chain_plan_create(p.context, &p.shape, &o, &plan, error));
    o.device.id = 0;
    dpcr_chain_shape wide = p.shape;
    wide.transition = dpcr_transition_square(DPCR_DENSE, 2000, 0);
    REFUSED(DPCR_ERROR_UNSUPPORTED, "width 2000", dpcr_chain_plan_create(p.context, &wide, &o, &plan, error));
    o.scheme = DPCR_SCHEME_SEQUENTIAL;
    REFUSED(DPCR_ERROR_UNSUPPORTED, "the loop is of csr, and of dense transitions and blocks wider than 16 there",
            dpcr_chain_plan_create(p.context, &p.shape, &o, &plan, error));
    // A pattern that is not one, there and here.
    const int64_t offsets[] = {0, 1, 2};
    const int32_t columns[] = {0, 7};
    const dpcr_pattern pattern = {.rows = 2, .cols = 2, .offsets = offsets, .columns = columns};
    dpcr_chain_shape csr = p.shape;
    csr.transition = dpcr_transition_csr(&pattern);
    o.scheme = DPCR_SCHEME_AUTO;
    REFUSED(DPCR_ERROR_ARGUMENT, "column", dpcr_chain_plan_create(p.context, &csr, &o, &plan, error));
    REFUSED(DPCR_ERROR_ARGUMENT, "column", dpcr_chain_plan_create(p.context, &csr, NULL, &plan, error));
    // An older caller's options, which end before the device.
    o.size = offsetof(dpcr_chain_options, device);
    o.scheme = DPCR_SCHEME_AUTO;
    OK(dpcr_chain_plan_create(p.context, &p.shape, &o, &plan, error));
    assert_int_equal(dpcr_chain_plan_options(plan)->device.type, 0);
    dpcr_chain_plan_destroy(plan);
    free_problem(&p);
}

// A launch that is refused and one that fails later: told, and the next one works.
static void failures_leave_it_usable(void **state) {
    (void)state;
    static problem p;
    make_problem(&p, DPCR_DIAGONAL, DPCR_F64, 0);
    dpcr_array a = on_device(&p, 0), b = on_device(&p, 1), z = on_device(&p, 3);
    const size_t bytes = dpcr_chain_plan_workspace(p.device);
    setenv("DEEPPCR_FAKE_LAUNCH", "1", 1);
    REFUSED(DPCR_ERROR_DEVICE, "too many resources", enqueue(&p, &a, &b, &z, bytes, error));
    unsetenv("DEEPPCR_FAKE_LAUNCH");
    solve_on_device(&p, true, false, NULL);
    setenv("DEEPPCR_FAKE_WAIT", "1", 1);
    OK(enqueue(&p, &a, &b, &z, bytes, error));
    unsetenv("DEEPPCR_FAKE_WAIT");
    REFUSED(DPCR_ERROR_DEVICE, "illegal memory access", dpcr_stream_wait(cuda, NULL, error));
    solve_on_device(&p, true, false, NULL);
    free_problem(&p);
}

// ---- nonlinear chains ----

enum { CELL_STEPS = 5, CELL_ROWS = 2, CELL_WIDTH = 2 };

typedef struct nonlinear {
    dpcr_context *context;
    dpcr_cell *cell;
    dpcr_steps steps;
    dpcr_array weight, x, z;  // on the device
    void *workspace;
    size_t bytes;
} nonlinear;

// Zeros on the device.
static dpcr_array device_numbers(int ndim, const int64_t *shape) {
    static const float zeros[CELL_STEPS * CELL_ROWS * CELL_WIDTH];
    dpcr_array array = dpcr_array_make(NULL, DPCR_F32, ndim, shape);
    size_t bytes = 4;
    for (int i = 0; i < ndim; i++) bytes *= (size_t)shape[i];
    assert_true(bytes <= sizeof zeros);
    array.device = cuda;
    OK(dpcr_device_allocate(cuda, bytes, &array.data, error));
    OK(dpcr_device_copy(cuda, array.data, cpu, zeros, bytes, NULL, error));
    return array;
}

static void make_nonlinear(nonlinear *n) {
    const int64_t w[2] = {CELL_WIDTH, CELL_WIDTH}, states[3] = {CELL_STEPS, CELL_ROWS, CELL_WIDTH};
    *n = (nonlinear){.steps = {.size = sizeof n->steps}, .bytes = 4096};
    OK(dpcr_context_create(NULL, &n->context, error));
    n->weight = device_numbers(2, w);
    n->x = device_numbers(3, states);
    n->z = device_numbers(3, states);
    OK(dpcr_device_allocate(cuda, n->bytes, &n->workspace, error));
    const dpcr_cell_options o = {.size = sizeof o,
                                 .kind = DPCR_CELL_DENSE,
                                 .length = CELL_STEPS,
                                 .batch = CELL_ROWS,
                                 .width = CELL_WIDTH,
                                 .weight = n->weight,
                                 .input = n->x};
    OK(dpcr_cell_create(n->context, &o, &n->cell, error));
    OK(dpcr_cell_steps(n->cell, &n->steps, error));
}

static void free_nonlinear(nonlinear *n) {
    dpcr_device_release(cuda, n->weight.data);
    dpcr_device_release(cuda, n->x.data);
    dpcr_device_release(cuda, n->z.data);
    dpcr_device_release(cuda, n->workspace);
    dpcr_cell_destroy(n->cell);
    dpcr_context_destroy(n->context);
}

static dpcr_status plan_there(const nonlinear *n, dpcr_solve_options o, dpcr_solve_plan **plan, dpcr_error *error) {
    o.size = sizeof o;
    if (!o.device.type) o.device = cuda;
    return dpcr_solve_plan_create(n->context, &n->steps, &o, plan, error);
}

// What the kernels wrote of the sequences, by the host's rules.
static void reports_follow_the_hosts_rules(void **state) {
    (void)state;
    static const struct {
        dpcr_method method;
        double atol;
        int no_fallback;
        const char *locked;
        dpcr_reason reason, other;
    } cases[] = {
        {DPCR_METHOD_SEQUENTIAL, 0, 0, "5", DPCR_REASON_SEQUENTIAL, DPCR_REASON_SEQUENTIAL},
        {DPCR_METHOD_NEWTON, 0, 0, "5", DPCR_REASON_CONVERGED, DPCR_REASON_CONVERGED},
        {DPCR_METHOD_NEWTON, 0, 0, "2", DPCR_REASON_FALLBACK, DPCR_REASON_CONVERGED},
        {DPCR_METHOD_NEWTON, 0, 1, "2", DPCR_REASON_NOT_CONVERGED, DPCR_REASON_CONVERGED},
        {DPCR_METHOD_NEWTON, 0, 0, "0", DPCR_REASON_NONFINITE, DPCR_REASON_CONVERGED},
        {DPCR_METHOD_OVERLAP, 0, 0, "5", DPCR_REASON_RESIDUAL_ONLY, DPCR_REASON_CONVERGED},
        {DPCR_METHOD_OVERLAP, -1, 0, "5", DPCR_REASON_EXACT, DPCR_REASON_EXACT},
        {DPCR_METHOD_OVERLAP, -1, 0, "3", DPCR_REASON_FALLBACK, DPCR_REASON_EXACT},
        {DPCR_METHOD_OVERLAP, 0, 0, "0", DPCR_REASON_FALLBACK, DPCR_REASON_CONVERGED},
    };
    nonlinear n;
    make_nonlinear(&n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dpcr_solve_plan *plan = NULL;
        int reasons[2], sweeps[2];
        int64_t locked[2];
        dpcr_solve_report r = {.size = sizeof r,
                               .batch_capacity = 2,
                               .sequence_reason = reasons,
                               .sequence_sweeps = sweeps,
                               .sequence_locked = locked};
        OK(plan_there(
            &n,
            (dpcr_solve_options){.method = cases[i].method, .atol = cases[i].atol, .no_fallback = cases[i].no_fallback},
            &plan, error));
        assert_true(dpcr_solve_plan_workspace(plan) <= n.bytes);
        OK(dpcr_solve_enqueue(plan, NULL, &n.z, n.workspace, n.bytes, NULL, error));
        setenv("DEEPPCR_FAKE_LOCKED", cases[i].locked, 1);  // it runs when it is waited for
        OK(dpcr_solve_collect(plan, n.workspace, n.bytes, NULL, &r, error));
        unsetenv("DEEPPCR_FAKE_LOCKED");
        assert_int_equal(r.reason, cases[i].reason);
        assert_int_equal(reasons[0], cases[i].reason);
        assert_int_equal(reasons[1], cases[i].other);
        assert_int_equal(locked[0], atoi(cases[i].locked));
        assert_int_equal(locked[1], CELL_STEPS);
        assert_int_equal(r.sweeps, cases[i].method == DPCR_METHOD_SEQUENTIAL ? 0 : 3);
        assert_true(r.residual == 0.5 && r.method == cases[i].method && r.bytes == dpcr_solve_plan_workspace(plan));
        assert_non_null(strstr(r.sentence, "asked for"));
        // What the plan says it uses makes the same plan.
        dpcr_solve_plan *again = NULL;
        OK(dpcr_solve_plan_create(n.context, &n.steps, dpcr_solve_plan_options(plan), &again, error));
        assert_memory_equal(dpcr_solve_plan_options(plan), dpcr_solve_plan_options(again), sizeof(dpcr_solve_options));
        dpcr_solve_plan_destroy(again);
        dpcr_solve_plan_destroy(plan);
    }
    free_nonlinear(&n);
}

static void nonlinear_refusals(void **state) {
    (void)state;
    nonlinear n;
    make_nonlinear(&n);
    dpcr_solve_plan *plan = NULL, *made = NULL;
    const dpcr_solve_options wrong[] = {{.method = DPCR_METHOD_PICARD},
                                        {.scheme = DPCR_SCHEME_PCR},
                                        {.backward = DPCR_SCHEME_CHUNKED},
                                        {.guess = DPCR_GUESS_GIVEN},
                                        {.window = 3},
                                        {.lock = DPCR_LOCK_MEAN_SQUARE},
                                        {.confirm = 1},
                                        {.consume_tape = 1},
                                        {.damping = 0.5},
                                        {.block = 3},
                                        {.order = 3},
                                        {.method = DPCR_METHOD_NEWTON, .mixed = 2},
                                        {.backward_chunk = 8},
                                        {.backward_warm_up = 8}};
    static const char *const words[] = {"auto, sequential, overlap and newton",
                                        "a scheme",
                                        "a backward scheme",
                                        "a guess",
                                        "a window",
                                        "step_scale or lock",
                                        "confirm",
                                        "consume_tape",
                                        "damping or block",
                                        "damping or block",
                                        "order or mixed",
                                        "order or mixed",
                                        "backward_chunk or backward_warm_up",
                                        "backward_chunk or backward_warm_up"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(DPCR_ERROR_UNSUPPORTED, words[i], plan_there(&n, wrong[i], &made, error));
    REFUSED(DPCR_ERROR_ARGUMENT, "planning is 9",
            plan_there(&n, (dpcr_solve_options){.planning = (dpcr_planning)9}, &made, error));
    REFUSED(DPCR_ERROR_UNSUPPORTED, "at most 100",
            plan_there(&n, (dpcr_solve_options){.max_sweeps = 101}, &made, error));
    REFUSED(DPCR_ERROR_MEMORY, "the limit is 100",
            plan_there(&n, (dpcr_solve_options){.memory_limit = 100}, &made, error));
    REFUSED(DPCR_ERROR_DEVICE, "there is no cuda:3",
            plan_there(&n, (dpcr_solve_options){.device = {DPCR_CUDA, 3}}, &made, error));
    REFUSED(DPCR_ERROR_ARGUMENT, "on a device, wanted option device",
            plan_there(&n, (dpcr_solve_options){.device = cpu}, &made, error));
    assert_null(made);
    OK(plan_there(&n, (dpcr_solve_options){0}, &plan, error));
    const size_t bytes = dpcr_solve_plan_workspace(plan);
    REFUSED(DPCR_ERROR_MEMORY, "on the device",
            dpcr_solve_enqueue(plan, NULL, &n.z, n.workspace, bytes - 1, NULL, error));
    REFUSED(DPCR_ERROR_ARGUMENT, "256-byte",
            dpcr_solve_enqueue(plan, NULL, &n.z, (char *)n.workspace + 8, bytes, NULL, error));
    dpcr_array off = n.z;
    off.data = (char *)off.data + 2;
    REFUSED(DPCR_ERROR_ARGUMENT, "aligned", dpcr_solve_enqueue(plan, NULL, &off, n.workspace, bytes, NULL, error));
    off = n.z;
    off.device = cpu;
    REFUSED(DPCR_ERROR_ARGUMENT, "on cuda:0", dpcr_solve_enqueue(plan, NULL, &off, n.workspace, bytes, NULL, error));
    dpcr_array first = dpcr_array_make(n.z.data, n.z.dtype, 2, n.z.shape + 1);
    first.device = n.z.device;
    REFUSED(DPCR_ERROR_ARGUMENT, "z0 shares memory with z",
            dpcr_solve_enqueue(plan, &first, &n.z, n.workspace, bytes, NULL, error));
    off = n.z;
    off.strides[0] = 0;
    REFUSED(DPCR_ERROR_ARGUMENT, " z is written",
            dpcr_solve_enqueue(plan, NULL, &off, n.workspace, bytes, NULL, error));
    REFUSED(DPCR_ERROR_ARGUMENT, "lambda is written",
            dpcr_solve_enqueue_backward(plan, NULL, &n.z, &n.z, &off, NULL, n.workspace, bytes, NULL, error));
    first.strides[0] = 0;
    REFUSED(DPCR_ERROR_ARGUMENT, "dz0 is written",
            dpcr_solve_enqueue_backward(plan, NULL, &n.z, &n.z, &n.z, &first, n.workspace, bytes, NULL, error));
    REFUSED(DPCR_ERROR_ARGUMENT, "direct is",
            dpcr_solve_enqueue_backward(plan, NULL, &n.z, NULL, &n.z, NULL, n.workspace, bytes, NULL, error));
    REFUSED(DPCR_ERROR_UNSUPPORTED, "where solve_enqueue",
            dpcr_solve_execute(plan, &n.z, &n.z, NULL, n.workspace, bytes, NULL, error));
    setenv("DEEPPCR_FAKE_WAIT", "1", 1);
    OK(dpcr_solve_enqueue(plan, NULL, &n.z, n.workspace, bytes, NULL, error));
    unsetenv("DEEPPCR_FAKE_WAIT");
    REFUSED(DPCR_ERROR_DEVICE, "illegal memory access",
            dpcr_solve_collect(plan, n.workspace, bytes, NULL, NULL, error));
    OK(dpcr_solve_enqueue(plan, NULL, &n.z, n.workspace, bytes, NULL, error));
    OK(dpcr_solve_collect(plan, n.workspace, bytes, NULL, NULL, error));
    dpcr_solve_plan_destroy(plan);
    // A plan of the host, and a chain whose numbers lie there.
    float zeros[CELL_STEPS * CELL_ROWS * CELL_WIDTH] = {0};
    dpcr_cell_options o = *dpcr_cell_get_options(n.cell);
    dpcr_cell *host = NULL;
    o.weight.data = o.input.data = zeros;
    o.weight.device = cpu;
    REFUSED(DPCR_ERROR_ARGUMENT, "on the host", dpcr_cell_create(n.context, &o, &host, error));
    o.input.device = cpu;
    OK(dpcr_cell_create(n.context, &o, &host, error));
    nonlinear there = n;
    there.steps = (dpcr_steps){.size = sizeof there.steps};
    OK(dpcr_cell_steps(host, &there.steps, error));
    REFUSED(DPCR_ERROR_UNSUPPORTED, "its numbers lie on the host",
            plan_there(&there, (dpcr_solve_options){0}, &made, error));
    OK(plan_there(&there, (dpcr_solve_options){.device = cpu}, &made, error));
    REFUSED(DPCR_ERROR_UNSUPPORTED, "where solve_execute solves",
            dpcr_solve_enqueue(made, NULL, &n.z, n.workspace, n.bytes, NULL, error));
    dpcr_solve_plan_destroy(made);
    dpcr_cell_destroy(host);
    o = *dpcr_cell_get_options(n.cell);
    o.input_gradient = n.z;
    REFUSED(DPCR_ERROR_UNSUPPORTED, "gradients of a cell on a device", dpcr_cell_create(n.context, &o, &host, error));
    free_nonlinear(&n);
}

static void recurrent_refusals(void **state) {
    (void)state;
    dpcr_context *context = NULL;
    dpcr_recurrent *networks[3] = {NULL};
    dpcr_recurrent_plan *plan = NULL;
    OK(dpcr_context_create(NULL, &context, error));
    for (int i = 0; i < 3; i++) {
        const dpcr_recurrent_options o = {.size = sizeof o,
                                          .kind = i == 1 ? DPCR_MINGRU : DPCR_GRU,
                                          .inputs = 2,
                                          .hidden = 3,
                                          .clip = i == 2 ? 0.5 : 0};
        OK(dpcr_recurrent_create(context, &o, &networks[i], error));
    }
    const dpcr_recurrent_plan_options good = {
        .size = sizeof good, .length = 4, .batch = 1, .solve = {.size = sizeof good.solve, .device = cuda}};
    OK(dpcr_recurrent_plan_create(networks[2], &good, &plan, error));
    dpcr_recurrent_plan_destroy(plan);
    plan = NULL;
    dpcr_recurrent_plan_options o = good;
    o.training = 1, o.dropout = 0.5;
    OK(dpcr_recurrent_plan_create(networks[0], &o, &plan, error));  // one layer: there is nothing to drop between
    dpcr_recurrent_plan_destroy(plan);
    plan = NULL, o.dropout = 1.5;
    REFUSED(DPCR_ERROR_ARGUMENT, "dropout is 1.5", dpcr_recurrent_plan_create(networks[0], &o, &plan, error));
    o = good, o.solve.method = DPCR_METHOD_NEWTON;
    REFUSED(DPCR_ERROR_UNSUPPORTED, "newton is of paragru", dpcr_recurrent_plan_create(networks[0], &o, &plan, error));
    OK(dpcr_recurrent_plan_create(networks[1], &o, &plan, error));
    dpcr_recurrent_plan_destroy(plan);
    plan = NULL;
    o = good, o.solve.memory_limit = 100;
    REFUSED(DPCR_ERROR_MEMORY, "the limit is 100", dpcr_recurrent_plan_create(networks[0], &o, &plan, error));
    assert_null(plan);
    OK(dpcr_recurrent_plan_create(networks[0], &good, &plan, error));
    const size_t bytes = dpcr_recurrent_plan_workspace(plan);
    void *workspace = NULL;
    OK(dpcr_device_allocate(cuda, bytes, &workspace, error));
    const dpcr_recurrent_pass pass = {.size = sizeof pass};
    REFUSED(DPCR_ERROR_UNSUPPORTED, "where recurrent_enqueue runs",
            dpcr_recurrent_execute(plan, &pass, NULL, NULL, 0, NULL, error));
    REFUSED(DPCR_ERROR_MEMORY, "on the device", dpcr_recurrent_enqueue(plan, &pass.x, &pass, NULL, 0, NULL, error));
    dpcr_recurrent_pass with_c = pass;
    with_c.c0 = dpcr_array_make(workspace, DPCR_F32, 3, (int64_t[]){1, 1, 3});
    REFUSED(DPCR_ERROR_ARGUMENT, "c of what is no LSTM or ParaLSTM",
            dpcr_recurrent_enqueue(plan, &pass.x, &with_c, workspace, bytes, NULL, error));
    assert_null(dpcr_recurrent_plan_chain(plan, 0));
    REFUSED(DPCR_ERROR_ARGUMENT, "not for training",
            dpcr_recurrent_collect_backward(plan, workspace, bytes, NULL, NULL, error));
    dpcr_recurrent_plan_destroy(plan);
    o = good, o.training = 1;
    OK(dpcr_recurrent_plan_create(networks[0], &o, &plan, error));
    assert_int_equal(dpcr_recurrent_plan_tape(plan), 0);
    REFUSED(DPCR_ERROR_MEMORY, "on the device",
            dpcr_recurrent_enqueue_backward(plan, &pass.x, &pass, NULL, NULL, workspace, 256, NULL, error));
    dpcr_recurrent_plan_destroy(plan);
    dpcr_device_release(cuda, workspace);
    for (int i = 0; i < 3; i++) dpcr_recurrent_destroy(networks[i]);
    dpcr_context_destroy(context);
}

static void empty_chains(void **state) {
    (void)state;
    dpcr_context *context = NULL;
    dpcr_chain_plan *plan = NULL;
    OK(dpcr_context_create(NULL, &context, error));
    const dpcr_chain_shape none = {.size = sizeof none,
                                   .length = 0,
                                   .batch = 2,
                                   .transition = dpcr_transition_square(DPCR_DIAGONAL, 3, 0),
                                   .dtype = DPCR_F32};
    const dpcr_chain_options there = {.size = sizeof there, .device = cuda};
    OK(dpcr_chain_plan_create(context, &none, &there, &plan, error));
    assert_int_equal(dpcr_chain_plan_workspace(plan), 0);
    dpcr_array empty = dpcr_array_make(NULL, DPCR_F32, 3, (const int64_t[]){0, 2, 3});
    empty.device = cuda;
    OK(dpcr_chain_enqueue(plan, &empty, &empty, NULL, &empty, NULL, 0, NULL, error));
    dpcr_chain_plan_destroy(plan);
    dpcr_context_destroy(context);
}

// ---- DLPack ----

static void dlpack_views(void **state) {
    (void)state;
    double numbers[24];
    dpcr_array array = dpcr_array_make(numbers, DPCR_F64, 3, (const int64_t[]){2, 3, 4}), back;
    array.device = (dpcr_device){.type = DPCR_CUDA, .id = 3};
    array.strides[0] = 0;
    dpcr_dlpack t = {0};
    OK(dpcr_array_to_dlpack(&array, &t, error));
    assert_true(t.data == numbers && t.device_type == 2 && t.device_id == 3 && t.code == 2 && t.bits == 64);
    OK(dpcr_array_from_dlpack(&t, &back, error));
    assert_memory_equal(back.shape, array.shape, 3 * sizeof *array.shape);
    assert_memory_equal(back.strides, array.strides, 3 * sizeof *array.strides);
    assert_true(back.data == numbers && back.device.id == 3 && back.dtype == DPCR_F64);
    t.strides = NULL;  // contiguous
    t.byte_offset = 16;
    t.device_type = 3;  // pinned
    OK(dpcr_array_from_dlpack(&t, &back, error));
    assert_true(back.data == numbers + 2 && back.device.type == DPCR_HOST);
    assert_true(back.strides[0] == 12 && back.strides[1] == 4 && back.strides[2] == 1);
    t.device_type = 10;  // ROCm
    REFUSED(DPCR_ERROR_UNSUPPORTED, "device type 10", dpcr_array_from_dlpack(&t, &back, error));
    t.device_type = 1;
    t.bits = 16;
    REFUSED(DPCR_ERROR_UNSUPPORTED, "16 bits", dpcr_array_from_dlpack(&t, &back, error));
    t.bits = 64;
    t.lanes = 4;
    REFUSED(DPCR_ERROR_UNSUPPORTED, "4 lanes", dpcr_array_from_dlpack(&t, &back, error));
    t.lanes = 1;
    t.ndim = DPCR_MAX_DIMS + 1;
    REFUSED(DPCR_ERROR_UNSUPPORTED, "dimensions", dpcr_array_from_dlpack(&t, &back, error));
    t.ndim = 3;
    int64_t huge[] = {INT64_MAX, INT64_MAX, 2};
    t.shape = huge;
    REFUSED(DPCR_ERROR_OVERFLOW, "extent", dpcr_array_from_dlpack(&t, &back, error));
    huge[0] = -1;
    huge[1] = 1;
    REFUSED(DPCR_ERROR_ARGUMENT, "extent 0 is -1, wanted 0 or more", dpcr_array_from_dlpack(&t, &back, error));
    array.dtype = (dpcr_dtype)9;
    REFUSED(DPCR_ERROR_ARGUMENT, "dtype 9", dpcr_array_to_dlpack(&array, &t, error));
}

int main(void) {
    setenv("DEEPPCR_CUDA_MODULE", STAND_INS "/libfake_device.so", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_that_cannot_serve),
        cmocka_unit_test(names),
        cmocka_unit_test(what_there_is),
        cmocka_unit_test(memory_and_copies),
        cmocka_unit_test(chains_are_the_loop),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(failures_leave_it_usable),
        cmocka_unit_test(empty_chains),
        cmocka_unit_test(reports_follow_the_hosts_rules),
        cmocka_unit_test(nonlinear_refusals),
        cmocka_unit_test(recurrent_refusals),
        cmocka_unit_test(dlpack_views),
    };
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
