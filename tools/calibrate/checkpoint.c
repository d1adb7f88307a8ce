/* See checkpoint.h. The file has a header of 64 bytes, then the image of a statistics or moments file. */
#include "tools/calibrate/checkpoint.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/api/handles.h"
#include "alloc/moments/moments.h"
#include "alloc/stats/stats.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/calibration.h"

#define CHECKPOINT_MAGIC "KVCPARTL"
#define CHECKPOINT_VERSION 1
#define CHECKPOINT_BYTES_MAX ((size_t) 64 << 30)

struct checkpoint_header {
    char magic[8];
    uint32_t version, moments; /* image after the header: 1 moments, 0 statistics */
    uint64_t n_done, image_bytes;
    uint8_t plan[DIGEST_BYTES];
};

_Static_assert(sizeof(struct checkpoint_header) == 64, "without holes");

char *checkpoint_path(const char *output)
{
    char *path;

    return asprintf(&path, "%s.partial", output) < 0 ? NULL : path;
}

static void checkpoint_put(crypto_hash_sha256_state *sha, const void *bytes, size_t n)
{
    (void) crypto_hash_sha256_update(sha, bytes, n);
}

static void checkpoint_put_u64(crypto_hash_sha256_state *sha, uint64_t x)
{
    checkpoint_put(sha, &x, sizeof(x));
}

static void checkpoint_put_geometry(crypto_hash_sha256_state *sha, const struct geometry *g,
                                    const uint8_t *model)
{
    uint8_t digest[DIGEST_BYTES];

    geometry_digest(g, digest);
    checkpoint_put(sha, digest, sizeof(digest));
    checkpoint_put(sha, model, DIGEST_BYTES);
}

void checkpoint_plan(const struct calibration *cal, bool depth, uint8_t ret_plan[static DIGEST_BYTES])
{
    const struct corpus *c = cal->corpus;
    crypto_hash_sha256_state sha;

    (void) crypto_hash_sha256_init(&sha);
    checkpoint_put_u64(&sha, c->n_windows);
    checkpoint_put_u64(&sha, c->n_held);
    checkpoint_put(&sha, c->ends, (c->n_windows + c->n_held) * sizeof(*c->ends));
    checkpoint_put(&sha, c->documents, (c->n_windows + c->n_held) * sizeof(*c->documents));
    checkpoint_put_u64(&sha, cal->seed);
    checkpoint_put_u64(&sha, (uint64_t) cal->gradients << 1 | depth);
    if (cal->stats) {
        const struct stats_options *o = stats_get_options(cal->stats->sums);

        checkpoint_put_geometry(&sha, &o->geometry, o->model_digest);
        checkpoint_put_u64(&sha, o->n_sink);
        checkpoint_put_u64(&sha, o->n_samples);
        checkpoint_put_u64(&sha, o->key_stride);
        checkpoint_put_u64(&sha, (uint64_t) o->want_attention << 1 | o->want_output);
    } else {
        const struct moments_options *o = moments_get_options(cal->moments);

        checkpoint_put_geometry(&sha, &o->geometry, o->model_digest);
        checkpoint_put_u64(&sha, o->n_sink);
    }

    (void) crypto_hash_sha256_final(&sha, ret_plan);
}

static int checkpoint_put_moments(const struct moments *m, struct atomic_file *f, struct errmsg *e)
{
    size_t n = moments_bytes(&moments_get_options(m)->geometry, moments_get_options(m)->joint);
    _cleanup_(freep) void *image = malloc(n);

    if (!image)
        return fail(e, -ENOMEM, "out of memory for writing moments");

    moments_write(m, image);
    atomic_file_put(f, image, n);
    return 0;
}

int checkpoint_save(const char *path, const struct calibration *cal, const uint8_t plan[static DIGEST_BYTES],
                    struct errmsg *e)
{
    _cleanup_(atomic_file_deinit) struct atomic_file f = {.fd = -1};
    struct checkpoint_header h = {
        .magic = CHECKPOINT_MAGIC,
        .version = CHECKPOINT_VERSION,
        .moments = cal->moments != NULL,
        .n_done = cal->n_done,
        .image_bytes = cal->stats ? stats_file_bytes(cal->stats->sums)
                                  : moments_bytes(&moments_get_options(cal->moments)->geometry, false),
    };
    int r = atomic_file_start(path, &f, e);

    if (r < 0)
        return r;

    memcpy(h.plan, plan, sizeof(h.plan));
    atomic_file_put(&f, &h, sizeof(h));
    r = cal->stats ? stats_put(cal->stats->sums, &f, e) : checkpoint_put_moments(cal->moments, &f, e);
    return r < 0 ? r : atomic_file_commit(&f, e);
}

static int checkpoint_check(const char *path, const struct checkpoint_header *h, size_t n,
                            const struct calibration *cal, const uint8_t *plan, struct errmsg *e)
{
    if (n < sizeof(*h) || memcmp(h->magic, CHECKPOINT_MAGIC, sizeof(h->magic)) != 0 ||
        h->version != CHECKPOINT_VERSION)
        return fail(e, -EBADMSG, "%s is no interrupted calibration of this version", path);
    if (h->image_bytes != n - sizeof(*h))
        return fail(e, -EBADMSG, "%s is damaged: it has %zu bytes instead of %llu after its header", path,
                    n - sizeof(*h), (unsigned long long) h->image_bytes);
    if (memcmp(h->plan, plan, sizeof(h->plan)) != 0 || h->moments != (cal->moments != NULL) ||
        h->n_done > cal->corpus->n_windows)
        return fail(e, -EINVAL,
                    "%s belongs to another model, other texts or other options: give the same ones, or start "
                    "again without --resume",
                    path);

    return 0;
}

int checkpoint_load(const char *path, struct calibration *cal, const uint8_t plan[static DIGEST_BYTES],
                    kvc_stats **ret_stats, struct moments **ret_moments, struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *sums = NULL;
    _cleanup_(freep) uint8_t *bytes = NULL;
    struct errmsg why = {""};
    struct checkpoint_header h = {0};
    size_t n;
    int r = atomic_file_read(path, CHECKPOINT_BYTES_MAX, (void **) &bytes, &n, e);

    if (r == -ENOENT)
        return fail(e, r, "nothing to resume: there is no %s", path);
    if (r < 0)
        return r;

    memcpy(&h, bytes, n < sizeof(h) ? n : sizeof(h));
    r = checkpoint_check(path, &h, n, cal, plan, e);
    if (r < 0)
        return r;

    r = cal->moments ? moments_parse(bytes + sizeof(h), n - sizeof(h), ret_moments, &why)
                     : stats_parse(bytes + sizeof(h), n - sizeof(h), &sums, &why);
    if (r < 0)
        return fail(e, r, "%.120s: %.240s", path, why.text);
    if (sums) {
        r = alloc_api_adopt_stats(cal->alloc, sums, ret_stats);
        if (r < 0)
            return fail(e, r, "%s", kvc_alloc_error(cal->alloc));

        sums = NULL; /* the handle owns them */
    }

    cal->n_done = h.n_done;
    return 0;
}
