/* See trellis_fit.h. */
#include "alloc/quantiser/trellis_fit.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "alloc/table/levels.h"
#include "alloc/table/trellis.h"
#include "base/cleanup.h"
#include "base/splitmix64.h"

/* Each round encodes more of the strings, up to all in the last: early ones need not be exact. */
enum { FIT_STRINGS = 3008, FIT_ROUNDS = 14, NORMAL_STARTS = 3 };

struct trellis_fit {
    unsigned b;
    size_t n;        /* strings, a multiple of TRELLIS_LANES */
    float *z;        /* [64][n] */
    int16_t *steps;  /* [64][n] */
    uint8_t *states; /* [64][n] */
    void *scratch;
};

static void trellis_fit_deinit(struct trellis_fit *f)
{
    free(f->z);
    free(f->steps);
    free(f->states);
    free(f->scratch);
}

static int trellis_fit_init(struct trellis_fit *f, unsigned b, size_t n)
{
    *f = (struct trellis_fit){.b = b, .n = n};
    f->z = malloc(n * TRELLIS_TOKENS * sizeof(*f->z));
    f->steps = malloc(n * TRELLIS_TOKENS * sizeof(*f->steps));
    f->states = malloc(n * TRELLIS_TOKENS);
    f->scratch = aligned_alloc(64, TRELLIS_SCRATCH);
    return f->z && f->steps && f->states && f->scratch ? 0 : -ENOMEM;
}

/* Strings of N(0,1) by Box and Muller's method. */
static void trellis_fit_draw(struct trellis_fit *f, uint64_t seed)
{
    for (size_t i = 0; i < f->n * TRELLIS_TOKENS; i++) {
        double u = ((double) (splitmix64_next(&seed) >> 11) + 0.5) * 0x1p-53;
        double v = (double) (splitmix64_next(&seed) >> 11) * 0x1p-53;

        f->z[i] = (float) (sqrt(-2 * log(u)) * cos(2 * M_PI * v));
    }
}

/* Codes the first @n strings. */
static void trellis_fit_encode(struct trellis_fit *f, const struct levels *l, size_t n)
{
    float inverse = 1 / l->step;

    for (size_t t = 0; t < TRELLIS_TOKENS; t++)
        for (size_t i = 0; i < n; i++)
            f->steps[t * f->n + i] = trellis_steps(f->z[t * f->n + i], inverse);
    trellis_encode_best()(l, f->b, f->steps, n, f->n, f->states, f->scratch);
}

/* Mean squared error of all strings; E c z and E c^2 of their levels. */
static double trellis_fit_measure(struct trellis_fit *f, const struct levels *l, double *ret_product,
                                  double *ret_square)
{
    double error = 0, product = 0, square = 0, n = (double) (f->n * TRELLIS_TOKENS);

    trellis_fit_encode(f, l, f->n);
    for (size_t i = 0; i < f->n * TRELLIS_TOKENS; i++) {
        double z = (double) f->z[i], c = level_z(l, f->states[i]);

        error += (z - c) * (z - c);
        product += c * z;
        square += c * c;
    }
    *ret_product = product / n;
    *ret_square = square / n;
    return error / n;
}

/* Rounds of Lloyd's iteration: every level becomes the mean of the numbers in its state. */
static int trellis_fit_run(struct trellis_fit *f, struct levels *l)
{
    double book[1 << TRELLIS_STATE_BITS_MAX];
    unsigned n_states = 1u << l->state_bits;

    for (unsigned s = 0; s < n_states; s++)
        book[s] = level_z(l, s);
    for (unsigned round = 0; round < FIT_ROUNDS; round++) {
        double sum[1 << TRELLIS_STATE_BITS_MAX] = {0};
        size_t count[1 << TRELLIS_STATE_BITS_MAX] = {0};
        size_t n = f->n * (round + 2) / (FIT_ROUNDS + 1) / TRELLIS_LANES * TRELLIS_LANES;

        n = n < TRELLIS_LANES ? TRELLIS_LANES : n;
        trellis_fit_encode(f, l, n);
        for (size_t t = 0; t < TRELLIS_TOKENS; t++)
            for (size_t i = 0; i < n; i++) {
                sum[f->states[t * f->n + i]] += (double) f->z[t * f->n + i];
                count[f->states[t * f->n + i]]++;
            }
        for (unsigned s = 0; s < n_states; s++)
            if (count[s] > 0)
                book[s] = sum[s] / (double) count[s];
        if (levels_from_book(book, l->state_bits, 0, 0, l) < 0)
            return -EINVAL;
    }
    return 0;
}

static int trellis_fit_normal(unsigned b, unsigned state_bits, struct levels *ret, double *ret_mse)
{
    _cleanup_(trellis_fit_deinit) struct trellis_fit f = {0}, test = {0};
    double least = INFINITY, product, square;
    uint64_t seed = splitmix64_seed(b, state_bits);

    if (trellis_fit_init(&f, b, FIT_STRINGS) < 0 || trellis_fit_init(&test, b, FIT_STRINGS) < 0)
        return -ENOMEM;

    trellis_fit_draw(&f, splitmix64_seed(seed, 0));
    trellis_fit_draw(&test, splitmix64_seed(seed, 1));
    for (unsigned start = 0; start < NORMAL_STARTS; start++) {
        double book[1 << TRELLIS_STATE_BITS_MAX];
        struct levels l;
        double error;

        /* a random start: the first numbers of the strings, which are normal too */
        for (size_t s = 0; s < (size_t) 1 << state_bits; s++)
            book[s] = (double) f.z[start * ((size_t) 1 << TRELLIS_STATE_BITS_MAX) + s];
        if (levels_from_book(book, state_bits, 0, 0, &l) < 0 || trellis_fit_run(&f, &l) < 0)
            continue;
        error = trellis_fit_measure(&test, &l, &product, &square);
        if (error < least) {
            least = error;
            l.normal_product = (float) product;
            l.normal_square = (float) square;
            *ret = l;
        }
    }
    *ret_mse = least;
    return isfinite(least) ? 0 : -EINVAL;
}

/* Books for N(0,1) that this process has made: each takes some 50 ms of a processor, and a program that
 * solves many tables needs the same few. */
static struct {
    struct levels levels;
    double mse;
    bool made;
} normal_books[TRELLIS_BITS_MAX + 1][TRELLIS_STATE_BITS_MAX + 1];
static pthread_mutex_t normal_books_lock = PTHREAD_MUTEX_INITIALIZER;

int trellis_normal(unsigned b, unsigned state_bits, struct levels *ret, double *ret_mse)
{
    int r = 0;

    (void) pthread_mutex_lock(&normal_books_lock);
    if (!normal_books[b][state_bits].made)
        r = trellis_fit_normal(b, state_bits, &normal_books[b][state_bits].levels,
                               &normal_books[b][state_bits].mse);
    if (r == 0) {
        normal_books[b][state_bits].made = true;
        *ret = normal_books[b][state_bits].levels;
        *ret_mse = normal_books[b][state_bits].mse;
    }
    (void) pthread_mutex_unlock(&normal_books_lock);
    return r;
}

/* Numbers of a string come from places far apart, so that a string does not have one token many times. */
static void trellis_fit_take(struct trellis_fit *f, const float *samples, size_t n)
{
    size_t m = f->n * TRELLIS_TOKENS, step = n / m;

    for (size_t i = 0; i < m; i++)
        f->z[i] = samples[i * step];
}

/* E c z and E c^2 of a book for z ~ N(0,1). */
static int trellis_fit_describe(unsigned b, struct levels *l)
{
    _cleanup_(trellis_fit_deinit) struct trellis_fit f = {0};
    double product, square;

    if (trellis_fit_init(&f, b, FIT_STRINGS) < 0)
        return -ENOMEM;

    trellis_fit_draw(&f, b);
    (void) trellis_fit_measure(&f, l, &product, &square);
    l->normal_product = (float) product;
    l->normal_square = (float) square;
    return 0;
}

int trellis_scale(const struct levels *l, unsigned b, double factor, struct levels *ret)
{
    int r = levels_scale(l, b, factor, ret);

    return r == 0 && l->state_bits > 0 ? trellis_fit_describe(b, ret) : r;
}

int trellis_fit(const float *samples, size_t n, unsigned b, struct levels *l)
{
    _cleanup_(trellis_fit_deinit) struct trellis_fit f = {0};
    size_t strings = n / TRELLIS_TOKENS / TRELLIS_LANES * TRELLIS_LANES;
    struct levels fitted = *l;
    double product, square;

    if (n < TRELLIS_FIT_MIN)
        return 0;
    if (trellis_fit_init(&f, b, strings < FIT_STRINGS ? strings : FIT_STRINGS) < 0)
        return -ENOMEM;

    trellis_fit_take(&f, samples, n);
    if (trellis_fit_run(&f, &fitted) == 0 &&
        trellis_fit_measure(&f, &fitted, &product, &square) < trellis_fit_measure(&f, l, &product, &square))
        *l = fitted;
    return trellis_fit_describe(b, l);
}
