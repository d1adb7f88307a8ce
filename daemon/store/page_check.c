/* See page_check.h. */
#include "daemon/store/page_check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/dtype.h"

static int page_check_identity(const struct page_header *h, const struct page_expectation *x,
                               struct errmsg *e)
{
    const struct shard *shard = &x->layout->shard;
    unsigned codec = table_is_exact(x->layout->table) ? PAGE_CODEC_BYTES : PAGE_CODEC_HALF_TILES;

    if (h->codec_id != codec)
        return fail(e, -EBADMSG, "page header: codec %u is not %u", h->codec_id, codec);
    if (memcmp(h->table_digest, x->layout->table->digest, DIGEST_BYTES) != 0)
        return fail(e, -EBADMSG, "page header: another table than the reservation's");
    if (memcmp(h->model_digest, x->model_digest, DIGEST_BYTES) != 0)
        return fail(e, -EBADMSG, "page header: another model than the reservation's");
    if (memcmp(&h->key, x->key, sizeof(h->key)) != 0)
        return fail(e, -EBADMSG, "page header: another chunk key than the commit's");
    if (h->first_head != shard->first_head || h->n_heads != shard->n_heads)
        return fail(e, -EBADMSG,
                    "page header: %" PRIu32 " heads from %" PRIu32 " on, the model's shard has %" PRIu32
                    " from %" PRIu32,
                    h->n_heads, h->first_head, shard->n_heads, shard->first_head);

    return 0;
}

static int page_check_shape(const struct page_header *h, const struct page_expectation *x, struct errmsg *e)
{
    bool first = x->page_class == PAGE_FIRST;

    if (h->n_tokens != CHUNK_TOKENS)
        return fail(e, -EBADMSG, "page header: %" PRIu32 " tokens instead of %d", h->n_tokens, CHUNK_TOKENS);
    if (h->flags != (first ? PAGE_FLAG_FIRST : 0))
        return fail(e, -EBADMSG, "page header: flags %" PRIu32 " for a page of class %s", h->flags,
                    first ? "first" : "rest");
    if (h->first_position % CHUNK_TOKENS != 0 || (h->first_position == 0) != first)
        return fail(e, -EBADMSG, "page header: position %" PRIu64 " for a page of class %s",
                    h->first_position, first ? "first" : "rest");
    if (h->payload_bytes != x->layout->payload_bytes[x->page_class])
        return fail(e, -EBADMSG, "page header: %" PRIu64 " payload bytes instead of %zu", h->payload_bytes,
                    x->layout->payload_bytes[x->page_class]);
    return 0;
}

/*
 * binary16: an exponent of all ones is infinity or NaN, which would spread over every query of every reader.
 */
static int page_check_sinks(const uint8_t *payload, const struct page_expectation *x, struct errmsg *e)
{
    const struct page_layout *l = x->layout;

    if (x->page_class != PAGE_FIRST)
        return 0;

    for (size_t at = l->sinks_off; at + 2 <= l->payload_bytes[PAGE_FIRST]; at += 2) {
        uint16_t v = (uint16_t) (payload[at] | payload[at + 1] << 8);

        if ((v & 0x7c00) == 0x7c00)
            return fail(e, -EBADMSG, "page: the sinks hold a value that is not finite");
    }

    return 0;
}

/* The vectors of an exact table, for the same reason. */
static int page_check_vectors(const uint8_t *payload, const struct page_expectation *x, struct errmsg *e)
{
    const struct table *t = x->layout->table;
    size_t n;

    if (!table_is_exact(t))
        return 0;

    n = x->layout->payload_bytes[x->page_class] / exact_number_bytes(t->exact.type);
    return dtype_all_finite(exact_dtype(t), payload, n)
               ? 0
               : fail(e, -EBADMSG, "page: the vectors hold a number that is not finite");
}

int page_check(const uint8_t *page, const struct page_expectation *x, uint32_t *ret_payload_crc32c,
               struct errmsg *e)
{
    const uint8_t *payload = page + PAGE_HEADER_BYTES;
    struct page_header h;
    int r = page_header_load(page, &h, e);

    if (r < 0)
        return r;

    r = page_check_identity(&h, x, e);
    if (r < 0)
        return r;

    r = page_check_shape(&h, x, e);
    if (r < 0)
        return r;
    if (crc32c(payload, h.payload_bytes) != h.payload_crc32c)
        return fail(e, -EBADMSG, "page: the payload's checksum is wrong");

    r = page_check_sinks(payload, x, e);
    if (r == 0)
        r = page_check_vectors(payload, x, e);
    if (r < 0)
        return r;

    *ret_payload_crc32c = h.payload_crc32c;
    return 0;
}
