/* From a table to its codecs in units of z, and back. See refit_internal.h. */
#include <errno.h>
#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "alloc/refit/refit.h"
#include "alloc/refit/refit_internal.h"
#include "alloc/table/table_build.h"
#include "alloc/table/table_half.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"

/* ---- taking a table apart ---- */

/* Empty half-tiles are left out: table_build() adds them again. */
static int refit_side_init(struct refit_side *s, const struct codec *c, const struct levels *levels, size_t d)
{
    for (uint32_t b = 0; b < c->n_half; b++)
        if (c->bits[b] > 0)
            s->bits[s->n_bands++] = c->bits[b];
    s->n = 8 * s->n_bands;
    s->fast_planes = c->fast_planes;
    s->fast_halves = c->fast_halves;
    s->enc = malloc((s->n + 1) * d * sizeof(*s->enc));
    s->dec = malloc((s->n + 1) * d * sizeof(*s->dec));
    s->enc_mean = malloc(d * sizeof(*s->enc_mean));
    s->mean = malloc(d * sizeof(*s->mean));
    if (!s->enc || !s->dec || !s->enc_mean || !s->mean)
        return -ENOMEM;

    for (size_t i = 0; i < d; i++) {
        s->enc_mean[i] = (double) c->enc_mean[i];
        s->mean[i] = (double) c->mean[i];
    }
    for (size_t i = 0; i < s->n * d; i++)
        s->enc[i] = (double) c->enc[i];
    for (uint32_t b = 0; b < s->n_bands; b++)
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < 8; j++)
                s->dec[(b * d + i) * 8 + j] =
                    (double) c->dec[i * c->r_in + c->n_pred + 8 * b + j] / (double) levels[s->bits[b]].step;
    return 0;
}

void refit_get_prediction(const struct refit *f, uint32_t layer, uint32_t head, struct head_run run,
                          double *ret)
{
    const struct codec *v = table_codec(f->t, layer, head, SIDE_V);
    size_t d = f->g->d, column = 0;

    for (uint32_t h = run.first; h < run.first + run.n; h++) {
        const struct refit_side *k = &f->sides[head_side_index(f->g, layer, h, SIDE_K)];

        for (size_t j = 0; j < k->n; j++, ret += d) {
            double unit = k->scaled[j / 8] / (double) f->t->levels[SIDE_K][k->bits[j / 8]].step;

            for (size_t i = 0; i < d; i++)
                ret[i] = (double) codec_dec_row(v, i)[column + j] * unit;
        }

        column += table_codec(f->t, layer, h, SIDE_K)->r;
    }
}

/* The contrast that the table was solved with; tables of earlier versions have none. */
static void refit_init_contrast(struct refit *f)
{
    _cleanup_(json_decrefp) json_t *root = json_loads(f->t->provenance, 0, NULL);
    const json_t *contrast = json_object_get(json_object_get(root, "options"), "contrast");

    for (unsigned side = 0; side < 2; side++) {
        double x = json_number_value(json_array_get(contrast, side));

        f->contrast[side] = x > 0 && x <= 1 ? x : 0;
    }
}

int refit_init(struct refit *f, const struct table *t, const struct moments *m, double share)
{
    *f = (struct refit){
        .t = t, .m = m, .g = &t->geometry, .share = share, .n_sides = head_side_count(&t->geometry)};
    f->sides = calloc(f->n_sides, sizeof(*f->sides));
    for (unsigned side = 0; side < 2; side++) {
        f->signal[side] = calloc(f->g->n_layers, sizeof(double));
        f->error[side] = calloc(f->g->n_layers, sizeof(double));
        if (!f->signal[side] || !f->error[side])
            return -ENOMEM;
    }
    if (!f->sides)
        return -ENOMEM;

    for (uint32_t i = 0; i < f->n_sides; i++) {
        int r = refit_side_init(&f->sides[i], &t->codecs[i], t->levels[i % 2], f->g->d);

        if (r < 0)
            return r;
    }

    refit_init_contrast(f);
    return 0;
}

void refit_deinit(struct refit *f)
{
    for (uint32_t i = 0; f->sides && i < f->n_sides; i++) {
        free(f->sides[i].enc);
        free(f->sides[i].dec);
        free(f->sides[i].enc_mean);
        free(f->sides[i].mean);
        free(f->sides[i].predict);
    }
    for (unsigned side = 0; side < 2; side++) {
        free(f->signal[side]);
        free(f->error[side]);
    }
    free(f->sides);
}

/* ---- provenance ---- */

/* Six digits: the rest depends on the BLAS, and the same moments must give the same digest. */
static json_t *refit_build_rounded(double x)
{
    char text[32];

    (void) snprintf(text, sizeof(text), "%.6g", x);
    return json_real(strtod(text, NULL));
}

/* That of the first table, with the errors expected now and what the table was refitted from. */
static int refit_build_provenance(const struct refit *f, const struct refit_report *report, char **ret)
{
    char table[DIGEST_HEX_BYTES], moments[DIGEST_HEX_BYTES];
    uint8_t digest[DIGEST_BYTES] = {0};
    json_t *root = json_loads(f->t->provenance, 0, NULL), *expected, *from;
    const size_t flags = JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(15);
    int r = moments_digest(f->m, digest);

    if (!json_is_object(root)) {
        json_decref(root);
        root = json_object();
    }

    expected = json_pack("{s:o, s:o}", "error_k", refit_build_rounded(report->error[SIDE_K]), "error_v",
                         refit_build_rounded(report->error[SIDE_V]));
    from = json_pack("{s:s, s:s, s:o}", "table", digest_hex(f->t->digest, table), "moments",
                     digest_hex(digest, moments), "share", refit_build_rounded(f->share));
    if (json_object_set_new(root, "expected", expected) < 0)
        r = -ENOMEM;
    if (json_object_set_new(root, "refitted_from", from) < 0) /* takes the reference in any case */
        r = -ENOMEM;
    *ret = r == 0 ? json_dumps(root, flags) : NULL;
    json_decref(root);
    return *ret ? 0 : -ENOMEM;
}

bool refit_was_from(const struct table *t, const struct moments *m)
{
    _cleanup_(json_decrefp) json_t *root = json_loads(t->provenance, 0, NULL);
    const char *from = json_string_value(json_object_get(json_object_get(root, "refitted_from"), "moments"));
    char hex[DIGEST_HEX_BYTES];
    uint8_t digest[DIGEST_BYTES];

    return from && moments_digest(m, digest) == 0 && strcmp(from, digest_hex(digest, hex)) == 0;
}

/* ---- building ---- */

int refit_build(const struct refit *f, const struct refit_report *report, void **ret_bytes,
                size_t *ret_n_bytes, struct errmsg *e)
{
    _cleanup_(freep) struct codec_spec *codecs = calloc(f->n_sides, sizeof(*codecs));
    _cleanup_(freep) struct band_spec *bands =
        calloc((size_t) f->n_sides * TABLE_HALF_TILES_MAX, sizeof(*bands));
    _cleanup_(freep) char *provenance = NULL;
    _cleanup_(freep) void *bytes = NULL;
    size_t d = f->g->d, n;
    int r;

    if (!codecs || !bands || refit_build_provenance(f, report, &provenance) < 0)
        return fail(e, -ENOMEM, "out of memory for the table");

    for (uint32_t i = 0; i < f->n_sides; i++) {
        const struct refit_side *s = &f->sides[i];
        struct band_spec *own = bands + (size_t) i * TABLE_HALF_TILES_MAX;

        for (uint32_t b = 0; b < s->n_bands; b++)
            own[b] = (struct band_spec){s->bits[b], 8, s->enc + b * 8 * d, s->dec + b * 8 * d,
                                        s->fast_halves >> b & 1};
        codecs[i] = (struct codec_spec){
            .mean = s->mean,
            .n_bands = s->n_bands,
            .bands = own,
            .predict = s->predict,
            .enc_mean = s->enc_mean,
            .fast_planes = s->fast_planes,
        };
    }

    r = table_build(
        &(struct table_spec){
            .geometry = f->g,
            .model_digest = f->t->model_digest,
            .n_sink = f->t->n_sink,
            .v_from = f->t->v_from,
            .levels = f->t->levels,
            .codecs = codecs,
            .provenance = provenance,
        },
        &bytes, &n, e);
    if (r == 0 && table_has_half_matrices(f->t)) { /* the new table has them too */
        void *single = take_ptr(bytes);

        r = table_half_convert(single, n, &bytes, &n, e);
        free(single);
    }
    if (r < 0)
        return r;

    *ret_bytes = take_ptr(bytes);
    *ret_n_bytes = n;
    return 0;
}
