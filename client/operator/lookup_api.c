/* Where a prompt's pages are, and keeping them in memory: kvc_lookup() and kvc_pin(). */
#include <errno.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "client/kvcobra-tiers.h"
#include "client/operator/operator_call.h"
#include "client/operator/prefix_call.h"

enum { PLACES_PER_CHUNK = 2 };

/* ---- look-up ---- */

static int lookup_read(kvc_client *c, const struct prefix_call *p, const Kvcobra__LookupReply *got,
                       struct options_list *places)
{
    if (got->n_places != p->message.n_tokens / KVC_CHUNK_TOKENS * PLACES_PER_CHUNK)
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: %zu places of %zu tokens",
                    got->n_places, p->message.n_tokens);
    if (got->tier_err < 0)
        return fail(&c->error, got->tier_err,
                    "the disk or the cluster tier does not answer, so where the pages are is not known: see "
                    "'kvcobra tier'");
    if (options_list_reserve(places, got->n_places) < 0)
        return fail(&c->error, -ENOMEM, "out of memory for %zu places", places->n + got->n_places);

    for (size_t i = 0; i < got->n_places; i++) {
        const Kvcobra__ChunkPlace *from = got->places[i];
        const kvc_chunk_place to = {
            .struct_bytes = sizeof(to),
            .repeatable = i % PLACES_PER_CHUNK,
            .first_token = p->at + i / PLACES_PER_CHUNK * KVC_CHUNK_TOKENS,
            .in_memory = from->in_memory,
            .on_disk = from->on_disk,
            .in_cluster = from->in_cluster,
            .holds = from->holds,
            .reason = (int) from->reason,
            .pinned_ms = from->pinned_ms,
            .is_shared = from->is_shared,
        };

        options_list_add(places, &to, sizeof(to));
    }

    return 0;
}

/* How the prompt goes on behind the present part: its next page is not another prompt's. */
static void lookup_add_next(const struct prefix_call *p, Kvcobra__Lookup *m)
{
    size_t end = p->at + p->message.n_tokens;

    m->with_shared = true;
    if (p->n - end < KVC_CHUNK_TOKENS)
        return;
    m->next_tokens = (uint32_t *) p->tokens + end;
    m->n_next_tokens = KVC_CHUNK_TOKENS;
}

static int lookup_send(kvc_client *c, struct prefix_call *p, bool with_shared, struct options_list *places)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__Lookup m = KVCOBRA__LOOKUP__INIT;
    int r;

    m.prefix = &p->message;
    if (with_shared)
        lookup_add_next(p, &m);
    r = operator_request(c, KVCOBRA__REQUEST__BODY_LOOKUP, &m.base, -1, &reply);
    if (r == 0)
        r = lookup_read(c, p, reply.message->lookup, places);
    return r < 0 ? r : prefix_call_answered(c, p, reply.message->lookup->keys);
}

int kvc_lookup(kvc_client *c, const kvc_prefix_options *options, const uint32_t *tokens, size_t n_tokens,
               size_t item_bytes, kvc_chunk_place **ret_places, size_t *ret_n)
{
    _cleanup_(options_list_deinit) struct options_list places = {.item_bytes = item_bytes};
    kvc_prefix_options o = {.tenant = NULL};
    struct prefix_call p = {.n = 0};
    int r = operator_enter(c, options && ret_places && ret_n,
                           "kvc_lookup: options, ret_places or ret_n are NULL");

    if (r == 0)
        r = options_check(item_bytes, sizeof(**ret_places), "kvc_chunk_place", &c->error);
    if (r == 0)
        r = prefix_call_init(c, "kvc_lookup", options, tokens, n_tokens, &o, &p);
    while (r == 0 && prefix_call_next(&p))
        r = lookup_send(c, &p, o.with_shared != 0, &places);
    if (r < 0)
        return r;

    *ret_n = places.n;
    *ret_places = take_ptr(places.items);
    return 0;
}

/* ---- pins ---- */

static int pin_send(kvc_client *c, struct prefix_call *p, uint64_t ms, kvc_pin_state *state)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__Pin m = KVCOBRA__PIN__INIT;
    const Kvcobra__PinReply *got;
    int r;

    m.prefix = &p->message;
    m.pin_ms = ms;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_PIN, &m.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->pin;
    state->pages += got->pages;
    state->missing += got->missing;
    state->pinned_bytes = got->pinned_bytes;
    state->limit_bytes = got->limit_bytes;
    return prefix_call_answered(c, p, got->keys);
}

int kvc_pin(kvc_client *c, const kvc_prefix_options *options, const uint32_t *tokens, size_t n_tokens,
            uint64_t ms, kvc_pin_state *ret_state)
{
    kvc_pin_state state = {.struct_bytes = sizeof(state)};
    kvc_prefix_options o = {.tenant = NULL};
    struct prefix_call p = {.n = 0};
    int r = operator_enter(c, options != NULL, "kvc_pin: options are NULL");

    if (r == 0 && ret_state)
        r = options_check(ret_state->struct_bytes, sizeof(*ret_state), "kvc_pin_state", &c->error);
    if (r == 0)
        r = prefix_call_init(c, "kvc_pin", options, tokens, n_tokens, &o, &p);
    while (r == 0 && prefix_call_next(&p))
        r = pin_send(c, &p, ms, &state);
    if (r < 0 || !ret_state)
        return r;

    state.tokens = p.n;
    return options_write(ret_state, &state, sizeof(state), sizeof(state), "kvc_pin_state", &c->error);
}
