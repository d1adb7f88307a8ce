/* kvc_seq_export(): the published pages of a sequence, sealed, to a file (proto/page_file.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd_io.h"
#include "client/kvcobra-tiers.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pool.h"
#include "proto/page_file.h"

/* Leading pages that lie in the daemon's pool, where their bytes are whole and never change. */
static size_t page_export_count(const struct kvc_seq *s)
{
    size_t n = 0;

    while (n < s->n_pages && page_is_shared(s->pages[n]) && s->pages[n]->has_key && s->pages[n]->bytes)
        n++;
    return n;
}

static int page_export_write(struct kvc_client *c, int fd, const void *bytes, size_t n)
{
    int r = fd_write_all(fd, bytes, n);

    return r < 0 ? fail(&c->error, r, "cannot write the pages: %s", strerror(-r)) : 0;
}

static int page_export_header(struct kvc_seq *s, int fd, size_t n_pages, const struct page_file_keys *keys)
{
    struct page_file_header h = {
        .first_head = s->model->shard.first_head, .n_heads = s->model->shard.n_heads, .n_pages = n_pages};
    uint8_t stored[PAGE_FILE_HEADER_BYTES];

    memcpy(h.table_digest, s->table->table->digest, sizeof(h.table_digest));
    memcpy(h.model_digest, s->model->model_digest, sizeof(h.model_digest));
    memcpy(h.fleet, keys->fleet, sizeof(h.fleet));
    page_file_header_store(&h, stored);
    return page_export_write(s->model->client, fd, stored, sizeof(stored));
}

static int page_export_pages(struct kvc_seq *s, int fd, size_t n_pages, const struct page_file_keys *keys)
{
    const struct page_layout *layout = &s->table->layout;
    size_t most = layout->page_bytes[PAGE_FIRST] > layout->page_bytes[PAGE_REST]
                      ? layout->page_bytes[PAGE_FIRST]
                      : layout->page_bytes[PAGE_REST];
    _cleanup_(freep) uint8_t *record = malloc(page_file_record_bytes(most));
    int r = 0;

    if (!record)
        return fail(&s->model->client->error, -ENOMEM, "out of memory for a sealed page");

    for (size_t i = 0; r == 0 && i < n_pages; i++) {
        size_t page_bytes = layout->page_bytes[class_of_chunk(i)];

        page_file_seal(keys, &s->pages[i]->key, s->pages[i]->bytes, page_bytes, record);
        r = page_export_write(s->model->client, fd, record, page_file_record_bytes(page_bytes));
    }
    return r;
}

int kvc_seq_export(kvc_seq *s, int fd, size_t *ret_tokens)
{
    struct page_file_keys keys;
    size_t n;
    int r = seq_enter(s);

    if (r == 0)
        r = seq_check_whole(s);
    if (r == 0)
        r = seq_check_position(s, 0); /* an import begins with the first chunk */
    if (r < 0)
        return r;

    n = page_export_count(s);
    if (n == 0)
        return fail(&s->model->client->error, -ENODATA,
                    "the sequence has no published page in the host's memory");

    page_file_keys_derive(s->model->remote.index_key, &keys);
    r = page_export_header(s, fd, n, &keys);
    if (r == 0)
        r = page_export_pages(s, fd, n, &keys);
    if (r == 0 && ret_tokens)
        *ret_tokens = n * CHUNK_TOKENS;
    return r;
}
