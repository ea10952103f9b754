// SPDX-License-Identifier: MIT
// What training of sequence models adds on the CPU: batches of sequences and of a text, the embedding there and back,
// dropout, what the head reads, the loss in blocks: the library's own or the loop in the order of the definition, to
// the bit.
#include <cmath>

#include "base/random.h"
#include "cuda_testing.h"
#include "deeppcr/deeppcr.h"
#include "deeppcr/embedding.h"
#include "kern/cuda/launch.h"

extern "C" {
#include "train/loss.h"
}

namespace {

template <class T>
constexpr dpcr_dtype type = sizeof(T) == 4 ? DPCR_F32 : DPCR_F64;

template <class T>
std::vector<T> numbers(int64_t count) {
    std::vector<T> v((size_t)count);
    for (T &x : v) x = (T)((double)(random_bits() >> 11) * 0x1p-52 - 1.0);
    return v;
}

template <class T>
void assert_equal(const std::vector<T> &want, const std::vector<T> &got, const char *what) {
    for (size_t i = 0; i < want.size(); i++)
        if (std::memcmp(&want[i], &got[i], sizeof(T)) != 0)
            fail_msg("%s: number %d is %.17g, wanted %.17g", what, (int)i, (double)got[i], (double)want[i]);
}

// ---- labelled sequences ----

template <class T>
void sequences_are_gathered(int64_t first, int64_t rows, int64_t length, int64_t features, bool shuffled, bool packed) {
    const int64_t count = 20;
    const std::vector<float> data = numbers<float>(count * length * features);
    std::vector<uint8_t> labels((size_t)count), y((size_t)rows, 99);
    std::vector<int64_t> lengths((size_t)count), places((size_t)count), steps((size_t)rows, -1);
    for (int64_t s = 0; s < count; s++) {
        labels[(size_t)s] = (uint8_t)(s % 7);
        lengths[(size_t)s] = 1 + s % length;
        places[(size_t)s] = (s * 7 + 3) % count;
    }
    std::vector<T> x((size_t)(length * rows * features), T(NAN));
    dpcri_device_sequences c = {};
    c.dtype = type<T>, c.first = first, c.rows = rows, c.count = count, c.length = length, c.features = features;
    c.data = data.data(), c.labels = labels.data(), c.order = shuffled ? places.data() : nullptr;
    c.x = x.data(), c.y = y.data();
    if (packed) c.lengths = lengths.data(), c.steps = steps.data();
    order((uint64_t)(rows + length), 2);
    assert_int_equal(dpcri_cuda_sequences_run(c, nullptr), DPCRI_CUDA_OK);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = first + r < count ? first + r : count - 1, s = shuffled ? places[(size_t)at] : at;
        assert_int_equal(y[(size_t)r], labels[(size_t)s]);
        assert_int_equal(steps[(size_t)r], packed ? lengths[(size_t)s] : -1);
        for (int64_t t = 0; t < length; t++)
            for (int64_t i = 0; i < features; i++)
                assert_true(x[(size_t)((t * rows + r) * features + i)] ==
                            (T)data[(size_t)((s * length + t) * features + i)]);
    }
}

// The steps that a sequence has in each part of a batch's, counted from the end.
void steps_are_parted(int64_t length, int64_t part) {
    const int64_t rows = length + 1, parts = (length + part - 1) / part;
    const std::vector<float> data = numbers<float>(rows * length);
    std::vector<float> x((size_t)(rows * length));
    std::vector<uint8_t> labels((size_t)rows), y((size_t)rows);
    std::vector<int64_t> lengths((size_t)rows), steps((size_t)(parts * rows), -1);
    for (int64_t r = 0; r < rows; r++) lengths[(size_t)r] = r;
    dpcri_device_sequences c = {};
    c.dtype = DPCR_F32, c.rows = c.count = rows, c.length = length, c.features = 1, c.parts = parts, c.part = part;
    c.data = data.data(), c.labels = labels.data(), c.lengths = lengths.data(), c.x = x.data(), c.y = y.data();
    c.steps = steps.data();
    order((uint64_t)length, 2);
    assert_int_equal(dpcri_cuda_sequences_run(c, nullptr), DPCRI_CUDA_OK);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < parts; k++) {
            int64_t own = 0;  // t lies in the part that so many whole ones follow
            for (int64_t t = 0; t < r; t++) own += (length - 1 - t) / part == parts - 1 - k;
            assert_int_equal(steps[(size_t)(k * rows + r)], own);
        }
    if (parts < 2) return;
    c.part = length;
    assert_int_equal(dpcri_cuda_sequences_run(c, nullptr), DPCRI_CUDA_ARGUMENT);
}

void steps_in_parts(void **) {
    for (int64_t length = 1; length < 14; length++)
        for (int64_t part = 1; part <= length; part++) steps_are_parted(length, part);
}

void batches_of_sequences(void **) {
    sequences_are_gathered<float>(0, 1, 1, 1, true, false);
    sequences_are_gathered<float>(4, 16, 100, 1, true, false);
    sequences_are_gathered<double>(3, 5, 9, 12, true, true);
    sequences_are_gathered<float>(0, 20, 7, 3, false, true);
    sequences_are_gathered<double>(15, 9, 4, 2, false, true);  // beyond the last: the last again
}

// ---- a text ----

template <class T>
void embedding_is_the_librarys(dpcr_context *context, int64_t rows, int64_t length, int64_t symbols, int64_t width,
                               bool rare, uint64_t seed) {
    const int64_t stream = length + 3, first = 2, places = rows * length;
    std::vector<uint8_t> text((size_t)(first + rows * stream + 1)), indices((size_t)places, 255), labels = indices;
    for (uint8_t &s : text) s = (uint8_t)(rare && random_bits() % 9 ? 0 : random_bits() % (uint64_t)symbols);
    std::vector<T> weight = numbers<T>(symbols * width), x((size_t)(places * width), T(NAN));
    dpcri_device_embedding c = {};
    c.dtype = type<T>, c.first = first, c.rows = rows, c.length = length, c.stream = stream;
    c.symbols = symbols, c.width = width, c.text = text.data(), c.weight = weight.data(), c.x = x.data();
    c.indices = indices.data(), c.labels = labels.data();
    order(seed, 3);
    assert_int_equal(dpcri_cuda_embedding_run(c, nullptr), DPCRI_CUDA_OK);
    std::vector<int64_t> wide((size_t)places);
    for (int64_t t = 0; t < length; t++)
        for (int64_t r = 0; r < rows; r++) {
            const size_t n = (size_t)(t * rows + r), at = (size_t)(first + r * stream + t);
            assert_true(indices[n] == text[at] && labels[n] == text[at + 1]);
            wide[n] = text[at];
        }
    std::vector<T> want((size_t)(places * width));
    const int64_t table[] = {symbols, width}, rows_of[] = {places, width};
    const dpcr_array w = dpcr_array_make(weight.data(), type<T>, 2, table),
                     y = dpcr_array_make(want.data(), type<T>, 2, rows_of);
    assert_int_equal(dpcr_embedding_forward(context, &w, wide.data(), places, &y, nullptr), DPCR_OK);
    assert_equal(want, x, "x");
    std::vector<T> gradient = numbers<T>(symbols * width), sums = gradient, dx = numbers<T>(places * width);
    const dpcr_array dw = dpcr_array_make(sums.data(), type<T>, 2, table),
                     dy = dpcr_array_make(dx.data(), type<T>, 2, rows_of);
    assert_int_equal(dpcr_embedding_backward(context, &dy, wide.data(), places, -1, &dw, nullptr), DPCR_OK);
    c.backward = 1, c.x = dx.data(), c.weight_gradient = gradient.data();
    c.text = nullptr, c.weight = nullptr, c.labels = nullptr;
    order(seed + 1, 2);
    assert_int_equal(dpcri_cuda_embedding_run(c, nullptr), DPCRI_CUDA_OK);
    assert_equal(sums, gradient, "dweight");
}

void texts_and_their_embedding(void **) {
    dpcr_context *context = nullptr;
    assert_int_equal(dpcr_context_create(nullptr, &context, nullptr), DPCR_OK);
    uint64_t seed = 0;
    for (const int64_t width : {1, 31, 32, 33, 70})
        for (const int64_t rows : {1, 4, 33}) {
            embedding_is_the_librarys<float>(context, rows, 1 + (int64_t)(seed % 3) * 16, 97, width, seed % 2, seed);
            embedding_is_the_librarys<double>(context, rows, 32, 1 + (int64_t)seed % 5, width, false, seed);
            seed++;
        }
    embedding_is_the_librarys<float>(context, 2, 40, 256, 5, true, 9);
    dpcr_context_destroy(context);
}

// ---- what the head reads ----

template <class T>
void last_states(int64_t rows, int64_t own, int64_t parts) {
    std::vector<T> states = numbers<T>(parts * rows * own), v((size_t)(rows * own * parts), T(NAN)), back = states;
    dpcri_device_readout c = {};
    c.dtype = type<T>, c.rows = rows, c.width = own * parts, c.parts = parts, c.states = states.data(), c.v = v.data();
    order((uint64_t)rows, 2);
    assert_int_equal(dpcri_cuda_readout_run(c, nullptr), DPCRI_CUDA_OK);
    for (int64_t b = 0; b < rows; b++)
        for (int64_t d = 0; d < parts; d++)
            for (int64_t j = 0; j < own; j++)
                assert_true(v[(size_t)(b * own * parts + d * own + j)] == states[(size_t)((d * rows + b) * own + j)]);
    back.assign(back.size(), T(NAN));
    c.backward = 1, c.states = back.data();
    assert_int_equal(dpcri_cuda_readout_run(c, nullptr), DPCRI_CUDA_OK);
    assert_equal(states, back, "last states");
}

template <class T>
void mean_states(int64_t rows, int64_t width, int64_t length, bool packed) {
    const std::vector<T> states = numbers<T>(length * rows * width);
    std::vector<T> v((size_t)(rows * width), T(NAN)), want = v, moved = states;
    std::vector<int64_t> lengths((size_t)rows);
    for (int64_t b = 0; b < rows; b++) lengths[(size_t)b] = packed ? b % (length + 1) : length;
    for (int64_t b = 0; b < rows; b++)
        for (int64_t j = 0; j < width; j++) {
            const int64_t steps = lengths[(size_t)b];
            const T share = (T)(1.0 / (double)(steps > 0 ? steps : 1));
            T sum = 0;
            for (int64_t t = 0; t < steps; t++) {
                const T term = share * states[(size_t)((t * rows + b) * width + j)];
                sum += term;
            }
            want[(size_t)(b * width + j)] = sum;
        }
    dpcri_device_readout c = {};
    c.dtype = type<T>, c.mean = 1, c.length = length, c.rows = rows, c.width = width;
    c.lengths = packed ? lengths.data() : nullptr, c.states = moved.data(), c.v = v.data();
    order((uint64_t)length, 3);
    assert_int_equal(dpcri_cuda_readout_run(c, nullptr), DPCRI_CUDA_OK);
    assert_equal(want, v, "mean");
    assert_equal(states, moved, "states");
    moved.assign(moved.size(), T(NAN));
    c.backward = 1;
    assert_int_equal(dpcri_cuda_readout_run(c, nullptr), DPCRI_CUDA_OK);
    for (int64_t t = 0; t < length; t++)
        for (int64_t b = 0; b < rows; b++)
            for (int64_t j = 0; j < width; j++) {
                const int64_t steps = lengths[(size_t)b];
                const T share = (T)(1.0 / (double)(steps > 0 ? steps : 1));
                const T term = t < steps ? share * v[(size_t)(b * width + j)] : T(0);
                assert_true(moved[(size_t)((t * rows + b) * width + j)] == term);
            }
}

void what_the_head_reads(void **) {
    last_states<float>(1, 1, 1), last_states<float>(16, 20, 1), last_states<double>(5, 7, 2);
    last_states<float>(300, 3, 2);
    mean_states<float>(3, 40, 9, false), mean_states<float>(16, 20, 30, true), mean_states<double>(5, 3, 4, true);
    mean_states<double>(1, 300, 2, false);
}

// ---- dropout ----

template <class T>
void drops_are_the_librarys(int64_t length, int64_t rows, int64_t width, double p, bool in_place) {
    const uint64_t seed = random_bits(), below = (uint64_t)(p * 0x1p32);
    const double scale = p < 1 ? 1 / (1 - p) : 0;
    std::vector<T> from = numbers<T>(length * rows * width), to((size_t)(length * rows * width), T(NAN)), want = to;
    if (p == 1) from[0] = T(INFINITY);
    int64_t kept = 0;
    for (int64_t t = 0; t < length; t++)
        for (int64_t b = 0; b < rows; b++)
            for (int64_t i = 0; i < width; i++) {
                const size_t at = (size_t)((t * rows + b) * width + i);
                uint32_t words[4];
                dpcri_random_block(seed, (uint64_t)t << 32 | (uint64_t)b, (uint64_t)i / 4, words);
                want[at] = words[i % 4] < below || scale == 0 ? T(0) : from[at] * (T)scale;
                kept += words[i % 4] >= below;
            }
    if (from.size() > 1000) assert_true(std::fabs((double)kept / (double)from.size() - (1 - p)) < 0.05);
    std::vector<T> &place = in_place ? from : to;
    dpcri_device_drop c = {type<T>, length, rows, width, seed, below, scale, from.data(), place.data()};
    order(seed, 2);
    assert_int_equal(dpcri_cuda_drop_run(c, nullptr), DPCRI_CUDA_OK);
    assert_equal(want, place, "what dropout leaves");
}

void masks_of_dropout(void **) {
    for (const double p : {0.0, 0.25, 0.5, 0.999, 1.0})
        for (const int64_t width : {1, 3, 4, 5, 70}) {
            drops_are_the_librarys<float>(1 + width % 7, 3, width, p, width % 2 == 0);
            drops_are_the_librarys<double>(17, 1, width, p, width % 2 == 1);
        }
    drops_are_the_librarys<float>(40, 9, 10, 0.3, true);
    drops_are_the_librarys<double>(5, 70, 33, 0.6, false);
}

// ---- the loss ----

void loss_in_blocks(void **) {
    for (const int64_t rows : {1, 63, 64, 65, 128, 300})
        for (const int64_t block : {1, 5, 64}) {
            const int64_t classes = 6;
            std::vector<float> y = numbers<float>(rows * classes);
            std::vector<uint8_t> labels((size_t)rows);
            for (uint8_t &l : labels) l = (uint8_t)(random_bits() % (uint64_t)classes);
            std::vector<double> parts((size_t)(2 * rows), NAN);
            double told[2] = {NAN, NAN}, total = 0;
            int64_t correct = 0;
            for (int64_t first = 0; first < rows; first += block) {
                const int64_t shape[] = {rows - first < block ? rows - first : block, classes};
                const dpcr_array piece = dpcr_array_make(y.data() + first * classes, DPCR_F32, 2, shape);
                double sum = 0;
                assert_int_equal(dpcri_loss_cross_entropy_part(&piece, labels.data() + first, rows, &sum, nullptr,
                                                               &correct, nullptr),
                                 DPCR_OK);
                total += sum;
            }
            dpcri_device_loss c = {DPCR_F32, rows,         classes, y.data(), labels.data(),
                                   nullptr,  parts.data(), told,    block};
            order((uint64_t)rows, 2);
            assert_int_equal(dpcri_cuda_loss_run(c, nullptr), DPCRI_CUDA_OK);
            assert_true(told[0] == total / (double)rows && told[1] == (double)correct);
        }
}

void what_cannot_be_is_refused(void **) {
    dpcri_device_sequences s = {};
    dpcri_device_embedding e = {};
    dpcri_device_readout r = {};
    dpcri_device_drop d = {};
    d.dtype = DPCR_F32, d.length = d.rows = d.width = 1;
    assert_int_equal(dpcri_cuda_drop_run(d, nullptr), DPCRI_CUDA_ARGUMENT);
    d.length = 0;
    assert_int_equal(dpcri_cuda_drop_run(d, nullptr), DPCRI_CUDA_OK);
    d.rows = (int64_t)1 << 32;
    assert_int_equal(dpcri_cuda_drop_run(d, nullptr), DPCRI_CUDA_ARGUMENT);
    d.dtype = DPCR_U32;
    assert_int_equal(dpcri_cuda_drop_run(d, nullptr), DPCRI_CUDA_UNSUPPORTED);
    s.dtype = e.dtype = r.dtype = DPCR_F32;
    s.rows = s.count = s.length = s.features = e.rows = e.length = e.symbols = e.width = r.rows = r.width = r.parts = 1;
    assert_int_equal(dpcri_cuda_sequences_run(s, nullptr), DPCRI_CUDA_ARGUMENT);
    assert_int_equal(dpcri_cuda_embedding_run(e, nullptr), DPCRI_CUDA_ARGUMENT);
    assert_int_equal(dpcri_cuda_readout_run(r, nullptr), DPCRI_CUDA_ARGUMENT);
    r.width = 3, r.parts = 2, r.rows = 0;
    assert_int_equal(dpcri_cuda_readout_run(r, nullptr), DPCRI_CUDA_ARGUMENT);
    s.rows = e.rows = 0, r.parts = 1;
    assert_int_equal(dpcri_cuda_sequences_run(s, nullptr), DPCRI_CUDA_OK);
    assert_int_equal(dpcri_cuda_embedding_run(e, nullptr), DPCRI_CUDA_OK);
    assert_int_equal(dpcri_cuda_readout_run(r, nullptr), DPCRI_CUDA_OK);
    s.dtype = e.dtype = r.dtype = DPCR_U32;
    assert_int_equal(dpcri_cuda_sequences_run(s, nullptr), DPCRI_CUDA_UNSUPPORTED);
    assert_int_equal(dpcri_cuda_embedding_run(e, nullptr), DPCRI_CUDA_UNSUPPORTED);
    assert_int_equal(dpcri_cuda_readout_run(r, nullptr), DPCRI_CUDA_UNSUPPORTED);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(batches_of_sequences),
        cmocka_unit_test(texts_and_their_embedding),
        cmocka_unit_test(steps_in_parts),
        cmocka_unit_test(masks_of_dropout),
        cmocka_unit_test(what_the_head_reads),
        cmocka_unit_test(loss_in_blocks),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
