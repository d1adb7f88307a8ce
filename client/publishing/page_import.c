/*
 * kvc_client_import(): pages of a file (proto/page_file.h) to the daemon. A sequence gets them as private
 * pages, whose bytes and keys are those of the file, and publishes them like any others: the daemon checks
 * each of them at COMMIT. The sequence holds the pages until the end, so that those of a long file do not
 * evict each other.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/fd_io.h"
#include "base/options.h"
#include "client/kvcobra-tiers.h"
#include "client/model/model_tables.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_pool.h"
#include "proto/index.h"
#include "proto/page_file.h"

struct page_import {
    struct kvc_client *client;
    int fd;
    struct page_file_header header;
    struct page_file_keys keys;
    struct kvc_model *model;
    struct kvc_seq *seq;
    uint8_t *record;  /* of the larger class */
    size_t n_present; /* pages that the daemon had */
};

static void page_import_deinit(struct page_import *x)
{
    if (x->seq)
        seq_free(x->seq);
    x->model = kvc_model_free(x->model);
    free(x->record);
}

/* ---- the header ---- */

static int page_import_read_header(struct page_import *x)
{
    struct errmsg *e = &x->client->error;
    uint8_t stored[PAGE_FILE_HEADER_BYTES] = {0};
    size_t n;
    int r = fd_read_all(x->fd, stored, sizeof(stored), &n);

    if (r < 0)
        return fail(e, r, "cannot read the file of pages: %s", strerror(-r));
    return page_file_header_load(stored, n, &x->header, e);
}

static int page_import_open_model(struct page_import *x)
{
    struct errmsg *e = &x->client->error;
    kvc_model_id id = {.struct_bytes = sizeof(id), .geometry = {.struct_bytes = sizeof(kvc_geometry)}};
    double freq[KVC_ROPE_FREQ_MAX];
    char model[DIGEST_HEX_BYTES];
    int r = kvc_client_get_geometry(x->client, x->header.model_digest, &id.geometry, freq);

    if (r == -ENODATA)
        return fail(e, r, "the pages are of model %.12s, for which kvcobrad has no active table",
                    digest_hex(x->header.model_digest, model));
    if (r < 0)
        return r;

    memcpy(id.model_digest, x->header.model_digest, sizeof(id.model_digest));
    id.first_kv_head = x->header.first_head;
    id.n_kv_heads_here = x->header.n_heads;
    return kvc_model_open(x->client, &id, &x->model);
}

/* The sequence of the file's table, which the daemon must accept new sequences of. */
static int page_import_open_table(struct page_import *x)
{
    struct errmsg *e = &x->client->error;
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .table_digest = x->header.table_digest};
    char wanted[DIGEST_HEX_BYTES], active[DIGEST_HEX_BYTES];
    int r = kvc_seq_new_with(x->model, &o, &x->seq);

    if (r == -ENOENT || r == -ESTALE)
        return fail(e, r,
                    "the pages are of table %.12s, which is not active here: the active one of this model is "
                    "%.12s",
                    digest_hex(x->header.table_digest, wanted),
                    digest_hex(x->model->current->table->digest, active));
    return r;
}

static int page_import_begin(struct page_import *x)
{
    const size_t *page_bytes;
    int r = page_import_read_header(x);

    if (r == 0)
        r = page_import_open_model(x);
    if (r < 0)
        return r;

    page_file_keys_derive(x->model->remote.index_key, &x->keys);
    if (memcmp(x->keys.fleet, x->header.fleet, sizeof(x->keys.fleet)) != 0)
        return fail(&x->client->error, -EACCES,
                    "the pages are of another tenant or of a fleet with another key file: only its own hosts "
                    "can open them");
    r = page_import_open_table(x);
    if (r < 0)
        return r;

    page_bytes = x->seq->table->layout.page_bytes;
    x->record = malloc(page_file_record_bytes(
        page_bytes[PAGE_FIRST] > page_bytes[PAGE_REST] ? page_bytes[PAGE_FIRST] : page_bytes[PAGE_REST]));
    return x->record ? 0 : fail(&x->client->error, -ENOMEM, "out of memory for a sealed page");
}

/* ---- pages ---- */

/* That the header is the one that a page of this place has: what COMMIT asks for, before anything is sent. */
static int page_import_check(const struct page_import *x, size_t chunk, const struct chunk_key *key,
                             const uint8_t *bytes)
{
    struct errmsg *e = &x->client->error;
    struct page_header want, have;
    uint8_t stored[PAGE_HEADER_BYTES];
    int r = page_header_load(bytes, &have, e);

    if (r < 0)
        return r;

    seq_page_header(x->seq, chunk, key, &want);
    want.payload_crc32c = have.payload_crc32c;
    page_header_store(&want, stored);
    if (memcmp(stored, bytes, sizeof(stored)) != 0)
        return fail(e, -EBADMSG, "page %zu is of another place, table or model than the file's", chunk + 1);
    if (have.payload_crc32c != crc32c(bytes + PAGE_HEADER_BYTES, (size_t) have.payload_bytes))
        return fail(e, -EBADMSG, "the checksum of page %zu is wrong", chunk + 1);
    return 0;
}

/* Reads the next page of the file into page @chunk of the sequence, which is claimed. */
static int page_import_read_page(struct page_import *x, size_t chunk)
{
    struct errmsg *e = &x->client->error;
    struct page *p = x->seq->pages[chunk];
    size_t page_bytes = x->seq->table->layout.page_bytes[p->class], n;
    size_t bytes = page_file_record_bytes(page_bytes);
    struct errmsg why = {""};
    struct index_hit hit;
    int r = fd_read_all(x->fd, x->record, bytes, &n);

    if (r < 0)
        return fail(e, r, "cannot read page %zu: %s", chunk + 1, strerror(-r));
    if (n < bytes)
        return fail(e, -ENODATA, "the file was cut: it ends in page %zu of %" PRIu64, chunk + 1,
                    x->header.n_pages);

    r = page_file_open(&x->keys, x->record, p->bytes, page_bytes, &p->key, &why);
    if (r < 0)
        return fail(e, r, "page %zu is damaged: %s", chunk + 1, why.text);

    r = page_import_check(x, chunk, &p->key, p->bytes);
    if (r < 0)
        return r;

    p->has_key = true;
    x->n_present += index_lookup(&x->model->remote.reader, &p->key, &hit) == INDEX_FOUND;
    return 0;
}

/* Private pages for the next batch, as many as the arena has room for. */
static int page_import_claim(struct page_import *x)
{
    size_t first = x->seq->n_pages, n = x->client->connection.items_per_message;
    int r = 0;

    if (n > x->header.n_pages - first)
        n = (size_t) (x->header.n_pages - first);
    while (r == 0 && x->seq->n_pages < first + n)
        r = seq_claim(x->seq, x->seq->n_pages + 1);
    if (x->seq->n_pages == first)
        return r;

    errmsg_clear(&x->client->error);
    return 0;
}

/* Pages that the daemon does not have are given up, with all behind them. */
static void page_import_keep_published(struct page_import *x)
{
    size_t n = 0;

    while (n < x->seq->n_pages && page_is_shared(x->seq->pages[n]))
        n++;
    seq_drop_pages(x->seq, n);
}

/* Return: 0; why the page after those that the sequence has was not taken. */
static int page_import_batch(struct page_import *x)
{
    size_t first = x->seq->n_pages, n_read = first, n;
    struct errmsg why = {""};
    int r = page_import_claim(x), published = 0;

    if (r < 0)
        return r;
    if (!model_is_connected(x->model))
        return fail(&x->client->error, -ENOTCONN, "the connection to kvcobrad was lost");

    while (r == 0 && n_read < x->seq->n_pages) {
        r = page_import_read_page(x, n_read);
        n_read += r == 0;
    }
    why = x->client->error;
    seq_drop_pages(x->seq, n_read);
    if (n_read > first)
        published = x->client->ops->publish(x->seq, first, n_read - first, 0, &n);
    page_import_keep_published(x);
    if (published < 0) /* of an earlier page than the one that could not be read */
        return published;

    x->client->error = why;
    return r;
}

static int page_import_pages(struct page_import *x)
{
    uint8_t more;
    size_t n = 0;
    int r = 0;

    while (r == 0 && x->seq->n_pages < x->header.n_pages)
        r = page_import_batch(x);
    if (r < 0)
        return r;

    r = fd_read_all(x->fd, &more, 1, &n);
    if (r == 0 && n > 0)
        r = fail(&x->client->error, -EBADMSG, "the file has more bytes than its %" PRIu64 " pages",
                 x->header.n_pages);
    return r;
}

int kvc_client_import(kvc_client *c, int fd, kvc_import *ret_import)
{
    _cleanup_(page_import_deinit) struct page_import x = {.client = c, .fd = fd};
    kvc_import result = {.struct_bytes = sizeof(result)};
    struct errmsg why;
    int r;

    if (!c)
        return -EINVAL;

    r = client_enter(c);
    if (r < 0)
        return r;
    if (!ret_import)
        return fail(&c->error, -EINVAL, "kvc_client_import: ret_import is NULL");

    if (c->gpu)
        return fail(&c->error, -EOPNOTSUPP,
                    "a file's pages go to the host's memory: use a client without a GPU");

    r = options_check(ret_import->struct_bytes, sizeof(result), "kvc_import", &c->error);
    if (r < 0)
        return r;

    r = page_import_begin(&x);
    if (r < 0)
        return r;

    result.end_err = page_import_pages(&x);
    result.n_pages = x.header.n_pages;
    result.n_taken = x.seq->n_pages;
    result.n_present = x.n_present < x.seq->n_pages ? x.n_present : x.seq->n_pages;
    memcpy(result.table_digest, x.header.table_digest, sizeof(result.table_digest));
    memcpy(result.model_digest, x.header.model_digest, sizeof(result.model_digest));
    why = c->error;
    page_import_deinit(&x); /* its messages have sentences of their own */
    x = (struct page_import){.client = c};
    errmsg_clear(&c->error);
    if (result.end_err < 0)
        c->error = why;
    return options_write(ret_import, &result, sizeof(result), sizeof(result), "kvc_import", &c->error);
}
