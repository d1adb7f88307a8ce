/*
 * Reads a table; see table.h. Hostile bytes become a view that needs no further checks, or an error with a
 * sentence. The bytes are copied first, so that no other process can change them between check and use; those
 * of a sealed memory object cannot change, and are mapped.
 */
#include "alloc/table/table.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "alloc/table/table_format.h"
#include "base/atomic_file.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_kind.h"

struct table_owner {
    struct table table; /* first member: a struct table * is also a pointer to the owner */
    atomic_uint refs;
    uint8_t *bytes;
    size_t mapped_bytes; /* 0: @bytes are allocated */
    struct codec *codecs;
    float *expanded; /* matrices of binary16 as binary32, or NULL */
};

static void table_owner_free(struct table_owner *o)
{
    if (!o)
        return;

    if (o->mapped_bytes > 0)
        (void) munmap(o->bytes, o->mapped_bytes);
    else
        free(o->bytes);
    free(o->codecs);
    free(o->expanded);
    free(o);
}

static void table_owner_freep(struct table_owner **o)
{
    table_owner_free(*o);
}

struct table *table_ref(struct table *t)
{
    struct table_owner *o = (struct table_owner *) t;
    unsigned before = atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);

    assert(before > 0 && before < UINT_MAX);
    (void) before;
    return t;
}

struct table *table_unref(struct table *t)
{
    struct table_owner *o = (struct table_owner *) t;

    /* release: our reads happen before the free; acquire: the thread that frees
     * comes after the reads of all others */
    if (o && atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) == 1)
        table_owner_free(o);
    return NULL;
}

/* ---- parsing ---- */

static int table_check_magic(const void *bytes, size_t n_bytes, struct errmsg *e)
{
    if (n_bytes >= strlen(TABLE_MAGIC) && memcmp(bytes, TABLE_MAGIC, strlen(TABLE_MAGIC)) == 0)
        return 0;
    return fail(e, -EBADMSG, "it is not an allocation table but %s", file_kind_of(bytes, n_bytes));
}

static int table_check_frame(const struct table *t, struct errmsg *e)
{
    const struct table_header *h = table_header(t);

    if (h->version != TABLE_VERSION && h->version != TABLE_VERSION_SCALAR)
        return fail(
            e, -EBADMSG,
            "it is a table of format version %u, this program reads versions %u and %u: solve it again "
            "from its statistics",
            h->version, TABLE_VERSION_SCALAR, TABLE_VERSION);
    if (h->n_bytes != t->n_bytes)
        return fail(e, -EBADMSG, "it has %zu bytes, its header says %llu: truncated or damaged", t->n_bytes,
                    (unsigned long long) h->n_bytes);

    return 0;
}

static const uint8_t *table_stored_digest(const struct table *t)
{
    return (const uint8_t *) t->bytes + t->n_bytes - DIGEST_BYTES;
}

static int table_check_digest(const struct table *t, struct errmsg *e)
{
    uint8_t digest[DIGEST_BYTES];

    (void) crypto_hash_sha256(digest, t->bytes, t->n_bytes - DIGEST_BYTES);
    return memcmp(digest, table_stored_digest(t), DIGEST_BYTES) == 0
               ? 0
               : fail(e, -EBADMSG, "it is damaged: its SHA-256 does not match its contents");
}

static bool table_all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* Refuses sections that do not follow each other, each at the next multiple of 64 with zeros between, and the
 * digest right after the last. */
static int table_check_sections(const struct table *t, struct errmsg *e)
{
    const struct table_header *h = table_header(t);
    const uint8_t *bytes = t->bytes;
    size_t end = sizeof(*h), limit = t->n_bytes - DIGEST_BYTES;

    for (unsigned i = 0; i < SECTION_COUNT; i++) {
        size_t off;

        if (!checked_align(end, TABLE_ALIGN, &off) || h->sections[i].off != off ||
            !range_inside(off, h->sections[i].bytes, limit) || !table_all_zero(bytes + end, off - end))
            return fail(e, -EBADMSG, "section %u is not where it must be", i);

        end = off + h->sections[i].bytes;
    }

    if (!checked_align(end, TABLE_ALIGN, &end) || end != limit ||
        !table_all_zero(bytes + h->sections[SECTION_GOLDEN].off + h->sections[SECTION_GOLDEN].bytes,
                        end - h->sections[SECTION_GOLDEN].off - h->sections[SECTION_GOLDEN].bytes))
        return fail(e, -EBADMSG, "it has bytes after its sections");

    return 0;
}

static int table_read_geometry(struct table *t, struct errmsg *e)
{
    const struct table_header *h = table_header(t);
    struct geometry *g = &t->geometry;
    struct errmsg why;

    *g = (struct geometry){
        .n_layers = h->n_layers,
        .n_heads = h->n_heads,
        .n_kv_heads = h->n_kv_heads,
        .d = h->d,
        .n_rot = h->n_rot,
        .attn_scale = h->attn_scale,
    };
    if (h->n_rot > GEOMETRY_DIM_MAX || h->sections[SECTION_FREQ].bytes != h->n_rot / 2 * sizeof(double))
        return fail(e, -EBADMSG, "its %u rotary dimensions have no frequencies", h->n_rot);

    memcpy(g->freq, table_section(t, SECTION_FREQ), h->sections[SECTION_FREQ].bytes);
    if (geometry_validate(g, &why) < 0)
        return fail(e, -EBADMSG, "%s", why.text);

    geometry_digest(g, t->geometry_digest);
    return 0;
}

static int table_read_header(struct table *t, struct errmsg *e)
{
    const struct table_header *h = table_header(t);

    if ((h->version == TABLE_VERSION_SCALAR && (h->matrix_form != MATRICES_SINGLE || h->exact.type != 0)) ||
        (h->exact.type == EXACT_NONE && (h->exact.after_rope != 0 || h->exact.interleaved != 0)) ||
        !table_all_zero(h->reserved1, sizeof(h->reserved1)))
        return fail(e, -EBADMSG, "its header uses unknown fields");
    if (h->matrix_form > MATRICES_HALF)
        return fail(e, -EBADMSG,
                    "its matrices have form %u, this program reads 0 (binary32) and 1 (binary16): use a "
                    "newer version of this program",
                    h->matrix_form);
    if (h->v_from > PREDICT_LAYER)
        return fail(e, -EBADMSG, "it predicts values by method %u, this program reads 0 to %u", h->v_from,
                    PREDICT_LAYER);
    if (h->n_sink > TABLE_SINKS_MAX)
        return fail(e, -EBADMSG, "it has %u sinks, at most %u are possible", h->n_sink, TABLE_SINKS_MAX);
    if (h->n_golden != (h->exact.type == EXACT_NONE ? TABLE_GOLDEN_TOKENS : 0))
        return fail(e, -EBADMSG, "its golden vectors are not of this format");

    t->v_from = (enum prediction) h->v_from;
    t->n_sink = h->n_sink;
    t->exact = h->exact;
    memcpy(t->model_digest, h->model_digest, DIGEST_BYTES);
    memcpy(t->digest, table_stored_digest(t), DIGEST_BYTES);
    return 0;
}

static int table_read_codecs(struct table_owner *o, bool with_numbers, struct errmsg *e)
{
    size_t n = head_side_count(&o->table.geometry);
    const struct table_section_entry *sections = table_header(&o->table)->sections;
    size_t n_entries = table_is_exact(&o->table) ? 0 : n;

    /* before the allocation: a small file must not make us allocate a large directory */
    if (sections[SECTION_CODECS].bytes != n_entries * sizeof(struct table_codec_entry))
        return fail(e, -EBADMSG, "its directory does not have one codec for each of %zu head-sides", n);
    if (table_is_exact(&o->table)) {
        int r = table_exact_check_size(&o->table.geometry, -EBADMSG, e);

        if (r < 0)
            return r;
    }

    o->codecs = calloc(n, sizeof(*o->codecs));
    if (!o->codecs)
        return fail(e, -ENOMEM, "out of memory");
    if (table_is_exact(&o->table))
        return table_check_exact(&o->table, o->codecs, e);
    if (table_matrix_form_of(&o->table) == MATRICES_HALF) {
        size_t bytes = table_expanded_bytes(sections[SECTION_MATRICES].bytes, n);

        o->expanded = aligned_alloc(TABLE_ALIGN, bytes / TABLE_ALIGN * TABLE_ALIGN + TABLE_ALIGN);
        if (!o->expanded)
            return fail(e, -ENOMEM, "out of memory: its matrices take %zu bytes as binary32", bytes);
    }

    return table_check_codecs(&o->table, o->codecs, o->expanded, with_numbers, e);
}

/* Everything but the frame; @with_numbers: whether the numbers are checked too. */
static int table_read(struct table_owner *o, bool with_numbers, struct errmsg *e)
{
    struct table *t = &o->table;
    int r = table_check_sections(t, e);

    if (r < 0)
        return r;

    r = table_read_header(t, e);
    if (r < 0)
        return r;

    r = table_read_geometry(t, e);
    if (r < 0)
        return r;

    r = table_is_exact(t) ? 0 : table_check_levels(t, e);
    if (r < 0)
        return r;

    r = table_read_codecs(o, with_numbers, e);
    if (r < 0)
        return r;

    return table_check_provenance(t, e);
}

static int table_check_size(size_t n_bytes, struct errmsg *e)
{
    if (n_bytes < sizeof(struct table_header) + DIGEST_BYTES)
        return fail(e, -EBADMSG, "it is too short to be an allocation table");
    if (n_bytes > TABLE_FILE_BYTES_MAX)
        return fail(e, -EBADMSG, "it has more than %zu bytes", TABLE_FILE_BYTES_MAX);
    return 0;
}

static int table_owner_new(size_t n_bytes, struct table_owner **ret, struct errmsg *e)
{
    struct table_owner *o;
    int r = table_check_size(n_bytes, e);

    if (r < 0)
        return r;

    o = calloc(1, sizeof(*o));
    if (!o)
        return fail(e, -ENOMEM, "out of memory");

    atomic_init(&o->refs, 1);
    o->table.n_bytes = n_bytes;
    *ret = o;
    return 0;
}

int table_parse(const void *bytes, size_t n_bytes, struct table **ret_table, struct errmsg *e)
{
    _cleanup_(table_owner_freep) struct table_owner *o = NULL;
    size_t room;
    int r = table_check_magic(bytes, n_bytes, e);

    if (r == 0)
        r = table_owner_new(n_bytes, &o, e);
    if (r < 0)
        return r;

    if (checked_align(n_bytes, TABLE_ALIGN, &room))
        o->bytes = aligned_alloc(TABLE_ALIGN, room);
    if (!o->bytes)
        return fail(e, -ENOMEM, "out of memory: the table has %zu bytes", n_bytes);

    memcpy(o->bytes, bytes, n_bytes);
    o->table.bytes = o->bytes;
    r = table_check_frame(&o->table, e);
    if (r == 0)
        r = table_check_digest(&o->table, e);
    if (r == 0)
        r = table_read(o, true, e);
    if (r == 0)
        r = table_is_exact(&o->table) ? 0 : table_check_golden(&o->table, e);
    if (r < 0)
        return r;

    *ret_table = &take_ptr(o)->table;
    return 0;
}

/* ---- shared memory ---- */

static int table_check_sealed(int fd, size_t n_bytes, struct errmsg *e)
{
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    struct stat st;
    int seals;

    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot look at its memory object: %s", strerror(errno));
    if ((uint64_t) st.st_size != n_bytes)
        return fail(e, -EBADMSG, "its memory object does not have %zu bytes", n_bytes);
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & needed) != needed) /* below 0: no memory object */
        return fail(e, -EPERM, "its memory object is not sealed, so it could change");
    return 0;
}

int table_map(int fd, size_t n_bytes, const uint8_t digest[DIGEST_BYTES], struct table **ret_table,
              struct errmsg *e)
{
    _cleanup_(table_owner_freep) struct table_owner *o = NULL;
    void *at;
    int r = table_owner_new(n_bytes, &o, e);

    if (r == 0)
        r = table_check_sealed(fd, n_bytes, e);
    if (r < 0)
        return r;

    /* private: Linux before 6.7 refuses shared mappings of sealed objects, and pages that are only read are
     * one copy all the same */
    at = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return fail(e, -errno, "cannot map its memory object: %s", strerror(errno));

    o->bytes = at;
    o->mapped_bytes = n_bytes;
    o->table.bytes = at;
    r = table_check_magic(at, n_bytes, e);
    if (r == 0)
        r = table_check_frame(&o->table, e);
    if (r == 0 && memcmp(table_stored_digest(&o->table), digest, DIGEST_BYTES) != 0)
        r = fail(e, -EBADMSG, "it is another table than the one that was asked for");
    if (r == 0)
        r = table_read(o, false, e);
    if (r < 0)
        return r;

    *ret_table = &take_ptr(o)->table;
    return 0;
}

int table_load(const char *path, struct table **ret_table, struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg why = {""};
    size_t n_bytes;
    int r;

    r = atomic_file_read(path, TABLE_FILE_BYTES_MAX, &bytes, &n_bytes, e);
    if (r < 0)
        return r;

    r = table_parse(bytes, n_bytes, ret_table, &why);
    if (r < 0)
        return fail(e, r, "%s: %s", path, why.text);

    return 0;
}
