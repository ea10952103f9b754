// SPDX-License-Identifier: MIT
// Row operations of the driver for one dtype. Parameters: REAL, BITS (as wide), SUFFIX(name). Included by rows.c once a
// dtype.

static REAL *SUFFIX(at)(const dpcr_array *array, int64_t step, int64_t row) {
    return (REAL *)array->data + step * array->strides[0] + row * array->strides[1];
}

static void SUFFIX(copy)(const dpcr_array *from, const dpcr_array *to) {
    for (int64_t l = 0; l < to->shape[0]; l++)
        for (int64_t b = 0; b < to->shape[1]; b++)
            memmove(SUFFIX(at)(to, l, b), SUFFIX(at)(from, l, b), (size_t)to->shape[2] * sizeof(REAL));
}

static void SUFFIX(add)(const dpcr_array *from, const dpcr_array *to) {
    for (int64_t l = 0; l < to->shape[0]; l++)
        for (int64_t b = 0; b < to->shape[1]; b++) {
            REAL *y = SUFFIX(at)(to, l, b);
            const REAL *x = SUFFIX(at)(from, l, b);
            for (int64_t i = 0; i < to->shape[2]; i++) y[i] += x[i];
        }
}

static void SUFFIX(fill)(const dpcr_array *to, double value) {
    for (int64_t l = 0; l < to->shape[0]; l++)
        for (int64_t b = 0; b < to->shape[1]; b++) {
            REAL *y = SUFFIX(at)(to, l, b);
            for (int64_t i = 0; i < to->shape[2]; i++) y[i] = (REAL)value;
        }
}

// x is finite exactly when x - x is 0. Without a branch and without an order of sums, so that it vectorises.
static bool SUFFIX(finite)(const REAL *x, int64_t n) {
    int bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= x[i] - x[i] != 0;
    return !bad;
}

static void SUFFIX(zero)(REAL *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = 0;
}

// r = f - z and whether every component is within tolerance; *worst collects the largest |r| / max(1, |z|).
static bool SUFFIX(residual_row)(const REAL *f, const REAL *z, REAL *r, int64_t w, REAL atol, REAL rtol,
                                 double *worst) {
    bool within = true;
    for (int64_t i = 0; i < w; i++) {
        r[i] = f[i] - z[i];
        const REAL size = (REAL)fabs((double)r[i]), value = (REAL)fabs((double)z[i]);
        const double relative = (double)(value > 1 ? size / value : size);
        if (!(relative <= *worst)) *worst = relative == relative ? relative : HUGE_VAL;
        // False for NaN. A difference of small numbers may have been flushed to 0.
        within = within && size <= atol + rtol * value && (atol + rtol > 0 || f[i] == z[i]);
    }
    return within;
}

// Numbers of a row of J.
static int64_t SUFFIX(run)(const dpcr_transition *t) {
    return t->structure == DPCR_DENSE ? t->cols : t->structure == DPCR_BLOCK ? t->block : 1;
}

// Sums of a row's bits, mixed (of powers of two, sums of bits are often the same), row after row: which unit turned
// counts, too.
static uint64_t SUFFIX(sum_units)(const dpcr_transition *t, const REAL *a, int64_t values, int64_t step) {
    const int64_t n = SUFFIX(run)(t);
    uint64_t sum = (uint64_t)step + 1;
    for (int64_t i = 0; i < values; i += n) {
        BITS row = 0;
        for (int64_t j = 0; j < n; j++) {
            BITS bits;
            memcpy(&bits, a + i + j, sizeof bits);
            bits *= (BITS)UINT64_C(0x9E3779B97F4A7C15);
            row += bits ^ bits >> (4 * sizeof bits - 1);
        }
        sum = (sum ^ row) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return sum;
}

// The sum of |J_ij z_j|.
static double SUFFIX(products)(const dpcr_transition *t, const REAL *a, const REAL *in, int64_t i) {
    const int64_t n = SUFFIX(run)(t);
    const REAL *row = t->structure == DPCR_SCALAR ? a : a + i * n, *x = in + i / n * n;
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += fabs((double)row[j] * (double)x[j]);
    return sum;
}

static void SUFFIX(terms)(const dpcr_transition *t, const dpcr_array *a, const dpcr_array *z, const dpcr_array *to) {
    for (int64_t b = 0; b < to->shape[1]; b++)
        for (int64_t i = 0; i < to->shape[2]; i++)
            SUFFIX(at)(to, 0, b)[i] = (REAL)SUFFIX(products)(t, SUFFIX(at)(a, 0, b), SUFFIX(at)(z, 0, b), i);
}

// Whether f - z is rounding of every number's terms: f, J's row times the state that went in, number by number, and
// `more`. Of numbers that differ a difference of 0 was flushed, and tells nothing.
static bool SUFFIX(is_rounding)(const dpcri_rounding *rounding, const REAL *f, const REAL *z, const REAL *a,
                                const REAL *in, const REAL *more, bool turned, int64_t w) {
    for (int64_t i = 0; i < w; i++) {
        if (f[i] == z[i]) continue;
        const double r = fabs((double)f[i] - (double)z[i]);
        double terms = fabs((double)f[i]);
        if (turned || r == 0) return false;
        if (r <= rounding->part * terms) continue;
        if (a) terms += SUFFIX(products)(&rounding->transition, a, in, i);
        if (more) terms += (double)more[i];
        if (!(r <= rounding->part * terms && isfinite(terms))) return false;
    }
    return true;
}

// The same of step first + l of row b, if it is `asked`; notes its J for the next sweep.
static bool SUFFIX(settles)(const dpcri_rounding *rounding, const REAL *f, const dpcr_array *z, const REAL *a,
                            int64_t values, int64_t first, int64_t l, int64_t b, bool asked) {
    bool turned = false;
    if (rounding->units) {
        uint64_t *units = rounding->units + (first + l) % rounding->window * rounding->batch + rounding->row + b;
        const uint64_t now = SUFFIX(sum_units)(&rounding->transition, a, values, first + l);
        turned = now != *units;
        *units = now;
    }
    const REAL *in = l ? SUFFIX(at)(z, l - 1, b) : SUFFIX(at)(&rounding->before, 0, b);
    const REAL *more = rounding->more.data ? SUFFIX(at)(&rounding->more, l, b) : NULL;
    return asked && SUFFIX(is_rounding)(rounding, f, SUFFIX(at)(z, l, b), a, in, more, turned, z->shape[2]);
}

static void SUFFIX(residual)(const dpcr_array *f, const dpcr_array *z, const dpcr_array *r, const dpcr_array *a,
                             int64_t values, int64_t first, const int64_t *front, double atol, double rtol,
                             const double *scale, double damping, const dpcri_rounding *rounding, int64_t *good,
                             double *worst, unsigned char *front_bad) {
    const int64_t steps = f->shape[0], rows = f->shape[1], w = f->shape[2];
    for (int64_t b = 0; b < rows; b++) good[b] = 0, worst[b] = 0, front_bad[b] = 0;
    for (int64_t l = 0; l < steps; l++)
        for (int64_t b = 0; b < rows; b++) {
            const REAL *fl = SUFFIX(at)(f, l, b);
            REAL *rl = SUFFIX(at)(r, l, b), *al = values ? SUFFIX(at)(a, l, b) : NULL;
            if (first + l < front[b]) {
                SUFFIX(zero)(rl, w);
                if (al) SUFFIX(zero)(al, values);
                good[b]++;
                continue;
            }
            const bool finite = SUFFIX(finite)(fl, w);
            const double unit = scale ? scale[first + l] : 1;
            bool within = false;
            if (finite) {
                within = SUFFIX(residual_row)(fl, SUFFIX(at)(z, l, b), rl, w, (REAL)(unit * atol), (REAL)(unit * rtol),
                                              &worst[b]);
                if (!SUFFIX(finite)(rl, w)) {  // z itself is not finite: update resets it
                    SUFFIX(zero)(rl, w);
                    within = false;
                }
            } else {
                SUFFIX(zero)(rl, w);
                worst[b] = HUGE_VAL;
                if (first + l == front[b]) front_bad[b] = 1;
            }
            if (rounding) within = SUFFIX(settles)(rounding, fl, z, al, values, first, l, b, within && good[b] == l);
            if (al && (first + l == front[b] || !finite || !SUFFIX(finite)(al, values))) SUFFIX(zero)(al, values);
            if (al && damping != 1)
                for (int64_t i = 0; i < values; i++) al[i] *= (REAL)damping;
            if (within && good[b] == l) good[b]++;
        }
}

static double SUFFIX(growth_at)(const dpcr_array *growth, int64_t step, int64_t row) {
    if (!growth) return 1;
    return ((const double *)growth->data)[step * growth->strides[0] + row * growth->strides[1]];
}

static void SUFFIX(size)(const dpcr_array *z, double *most) {
    for (int64_t b = 0; b < z->shape[1]; b++) {
        const REAL *row = SUFFIX(at)(z, 0, b);
        double largest = 1;  // no fmax, at whose sums gcc 12 for 64-bit ARM ends
        for (int64_t i = 0; i < z->shape[2]; i++)
            if (fabs((double)row[i]) > largest) largest = fabs((double)row[i]);
        most[b] = largest;
    }
}

static void SUFFIX(grow)(const dpcr_array *m, int64_t run, const dpcr_array *z, double *most) {
    for (int64_t b = 0; b < m->shape[1]; b++) {
        const REAL *values = SUFFIX(at)(m, 0, b);
        const dpcr_array one = dpcri_slice(z, 0, 1, b, 1);
        double norm = 0, size;
        for (int64_t k = 0; k < m->shape[2]; k += run) {
            double sum = 0;
            for (int64_t i = 0; i < run; i++) sum += fabs((double)values[k + i]);
            if (sum > norm) norm = sum;
        }
        SUFFIX(size)(&one, &size);
        if (norm / size > most[b]) most[b] = norm / size;
    }
}

static void SUFFIX(update)(const dpcr_array *z, const dpcr_array *f, const dpcr_array *delta, int64_t first,
                           const int64_t *front, const void *const *reset, const int64_t *until, dpcri_hold_of hold,
                           bool mean, double atol, double rtol, const double *scale, const dpcr_array *growth,
                           int64_t *good, double *estimate) {
    const int64_t steps = z->shape[0], rows = z->shape[1], w = z->shape[2];
    for (int64_t b = 0; b < rows; b++) good[b] = 0, estimate[b] = 0;
    for (int64_t l = 0; l < steps; l++)
        for (int64_t b = 0; b < rows; b++) {
            if (first + l < front[b]) {
                good[b]++;
                continue;
            }
            REAL *zl = SUFFIX(at)(z, l, b);
            const REAL *fl = SUFFIX(at)(f, l, b), *dl = SUFFIX(at)(delta, l, b);
            bool within = true, finite = true;
            double largest = 0, most = 1, square = 0;
            const double unit = scale ? scale[first + l] : 1, limit = unit * atol,
                         grown = SUFFIX(growth_at)(growth, l, b);
            for (int64_t i = 0; i < w; i++) {
                const REAL size = (REAL)fabs((double)dl[i]), value = (REAL)fabs((double)zl[i]);
                within = within && grown * (double)size <= (double)((REAL)(unit * atol) + (REAL)(unit * rtol) * value);
                if (grown * (double)size > largest) largest = grown * (double)size;
                if ((double)value > most) most = (double)value;
                const double part = limit > 0 ? (double)size / limit : size == 0 ? 0 : HUGE_VAL;
                square += part * part;
                finite = finite && (zl[i] + dl[i]) - (zl[i] + dl[i]) == 0;
            }
            const bool made = (mean || !finite) && SUFFIX(finite)(fl, w);
            if (mean) within = square <= (double)w && made;
            if (first + l < until[b] && largest / most > estimate[b]) estimate[b] = largest / most;
            if (first + l < until[b] && (hold == DPCRI_HOLD_ALL || (hold == DPCRI_HOLD_CONFIRMED && within))) {
                // right as it is
            } else if (first + l == front[b] || (made && !finite)) {
                memcpy(zl, fl, (size_t)w * sizeof(REAL));
            } else if (finite) {
                for (int64_t i = 0; i < w; i++) zl[i] += dl[i];
            } else {
                memcpy(zl, reset[b], (size_t)w * sizeof(REAL));
            }
            if (within && finite && good[b] == l) good[b]++;
        }
}

static void SUFFIX(measure)(const dpcr_array *z, const dpcr_array *delta, const dpcr_array *growth, double *estimate,
                            const dpcr_array *carry) {
    const int64_t steps = z->shape[0], rows = z->shape[1], w = z->shape[2];
    for (int64_t l = 0; l < steps; l++)
        for (int64_t b = 0; b < rows; b++) {
            const REAL *zl = SUFFIX(at)(z, l, b), *dl = SUFFIX(at)(delta, l, b);
            const double grown = SUFFIX(growth_at)(growth, l, b);
            double most = 0, scale = 1;
            for (int64_t i = 0; i < w; i++) {
                const double size = grown * fabs((double)dl[i]), value = fabs((double)zl[i]);
                if (!(size <= most)) most = size == size ? size : HUGE_VAL;
                if (value > scale) scale = value;
            }
            if (most / scale > estimate[b]) estimate[b] = most / scale;
            if (l == steps - 1) memcpy(SUFFIX(at)(carry, 0, b), dl, (size_t)w * sizeof(REAL));
        }
}

static bool SUFFIX(close)(const void *x_, const void *y_, int64_t w, double atol, double rtol) {
    const REAL *x = x_, *y = y_;
    if (atol == 0 && rtol == 0) return memcmp(x, y, (size_t)w * sizeof(REAL)) == 0;
    for (int64_t i = 0; i < w; i++) {
        const double far = fabs((double)(x[i] - y[i]));
        if (!(isfinite(far) && far <= atol + rtol * fabs((double)y[i]))) return false;  // no limit is infinite
    }
    return true;
}

static double SUFFIX(distance)(const void *x_, const void *y_, int64_t w) {
    const REAL *x = x_, *y = y_;
    double largest = 0, scale = 1;
    for (int64_t i = 0; i < w; i++) {
        const double d = fabs((double)x[i] - (double)y[i]), value = fabs((double)y[i]);
        if (!(d <= largest)) largest = d == d ? d : HUGE_VAL;
        if (value > scale) scale = value;
    }
    return isinf(largest) ? HUGE_VAL : largest / scale;
}

static double SUFFIX(apart)(const void *x_, const void *y_, int64_t w) {
    const REAL *x = x_, *y = y_;
    double largest = 0, scale = 0;
    for (int64_t i = 0; i < w; i++) {
        const double a = (double)x[i], b = (double)y[i], d = fabs(a - b);
        if (!(d <= largest)) largest = d == d ? d : HUGE_VAL;
        scale = fmax(scale, fmax(fabs(a), fabs(b)));
    }
    return largest == 0 ? 0 : isinf(largest) ? HUGE_VAL : largest / scale;
}

static REAL SUFFIX(entry)(const dpcr_transition *t, const REAL *a, int64_t i, int64_t j) {
    switch (t->structure) {
        case DPCR_DENSE: return a[i * t->cols + j];
        case DPCR_BLOCK: return i / t->block == j / t->block ? a[i * t->block + j % t->block] : 0;
        case DPCR_DIAGONAL: return i == j ? a[i] : 0;
        case DPCR_SCALAR: return i == j ? a[0] : 0;
        default: return i == j && t->structure == DPCR_IDENTITY ? 1 : 0;
    }
}

static void SUFFIX(extract)(const dpcr_transition *from, const dpcr_array *a, const dpcr_transition *to,
                            const dpcr_array *b) {
    const int64_t w = to->structure == DPCR_SCALAR ? 1 : to->rows, k = to->structure == DPCR_BLOCK   ? to->block
                                                                       : to->structure == DPCR_DENSE ? w
                                                                                                     : 1;
    for (int64_t l = 0; l < b->shape[0]; l++)
        for (int64_t row = 0; row < b->shape[1]; row++) {
            const REAL *x = a->data ? SUFFIX(at)(a, l, row) : NULL;
            REAL *y = SUFFIX(at)(b, l, row);
            for (int64_t i = 0; i < w; i++)
                for (int64_t j = 0; j < k; j++) y[i * k + j] = SUFFIX(entry)(from, x, i, i / k * k + j);
        }
}

static const dpcri_row_ops SUFFIX(ops) = {
    .copy = SUFFIX(copy),
    .add = SUFFIX(add),
    .fill = SUFFIX(fill),
    .residual = SUFFIX(residual),
    .update = SUFFIX(update),
    .measure = SUFFIX(measure),
    .grow = SUFFIX(grow),
    .terms = SUFFIX(terms),
    .size = SUFFIX(size),
    .close = SUFFIX(close),
    .distance = SUFFIX(distance),
    .apart = SUFFIX(apart),
    .extract = SUFFIX(extract),
};
