/* See model_filter.h. */
#include "client/model/model_filter.h"

#include "base/cleanup.h"
#include "client/model/model_types.h"
#include "gpu/device.h"

void model_filter_forget(struct model_remote *r)
{
    r->filter = extent_free(r->filter);
    r->filter_object = 0;
}

/* Return: 0; -ENOENT: there is no filter now; errno of the call or of the object. */
static int model_filter_import(struct kvc_model *m)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    _cleanup_(extent_freep) struct extent *x = NULL;
    Kvcobra__GetFilter get = KVCOBRA__GET_FILTER__INIT;
    struct errmsg e = {""};
    struct bloom_reader reader;
    uint64_t bytes;
    int r = connection_call(&m->client->connection, KVCOBRA__REQUEST__BODY_GET_FILTER, &get,
                            KVCOBRA__REPLY__BODY_GET_FILTER, &reply, &e);

    if (r < 0)
        return r;

    bytes = reply.message->get_filter->bytes;
    if (reply.packet.n_fds != 1 || bytes == 0 || bytes > SIZE_MAX)
        return -EPROTO;

    r = extent_import(reply_take_fd(&reply, 0), (size_t) bytes, EXTENT_READ, &x, &e);
    if (r == 0)
        r = bloom_reader_init(&reader, extent_data(x), extent_bytes(x), &e);
    if (r < 0)
        return r;

    m->remote.filter = take_ptr(x);
    m->remote.bloom = reader;
    return 0;
}

/*
 * Maps the filter that the control page names, if it is not mapped yet. A filter that cannot be had is not
 * asked for again before the page names another one.
 */
static bool model_filter_is_mapped(struct kvc_model *m)
{
    const struct control_page *page = m->remote.control ? extent_data(m->remote.control) : NULL;
    uint64_t object = page ? atomic_load_explicit(&page->filter, memory_order_relaxed) : 0;

    if (object != m->remote.filter_object) {
        model_filter_forget(&m->remote);
        if (object != 0 && model_filter_import(m) < 0 && !connection_is_open(&m->client->connection))
            return false;
        m->remote.filter_object = object;
    }
    return m->remote.filter != NULL;
}

bool model_filter_asks(struct kvc_model *m, const struct chunk_key *key)
{
    const struct control_page *page = m->remote.control ? extent_data(m->remote.control) : NULL;

    return (page && atomic_load_explicit(&page->asks, memory_order_relaxed) != 0) || model_filter_has(m, key);
}

bool model_filter_has(struct kvc_model *m, const struct chunk_key *key)
{
    return model_filter_is_mapped(m) && bloom_lookup(&m->remote.bloom, key) == BLOOM_PROBABLY;
}
