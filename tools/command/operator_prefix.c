/* The beginning of a prompt; see operator_prefix.h. */
#include "tools/command/operator_prefix.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "proto/protocol.h"
#include "tools/command/clock.h"

enum { KEYS_BYTES = 32, AGAIN_MS = 10, AGAIN_S_MAX = 10, PART_TOKENS = WIRE_ITEMS_MAX };

/* ---- parts ---- */

struct operator_parts {
    Kvcobra__Prefix message; /* of the present part; what it points at is the caller's */
    uint8_t keys[KEYS_BYTES];
    const uint32_t *tokens;
    size_t n, at; /* tokens of whole chunks; those of the parts before */
};

/* Return: 0; -EINVAL. */
static int operator_parts_init(struct operator_parts *p, const Kvcobra__Prefix *prefix,
                               const uint32_t *tokens, size_t n_tokens, struct errmsg *e)
{
    if (n_tokens < KVC_CHUNK_TOKENS)
        return fail(e, -EINVAL, "a prefix of %zu tokens has no page: pages have %d tokens", n_tokens,
                    KVC_CHUNK_TOKENS);

    *p = (struct operator_parts){
        .message = *prefix, .tokens = tokens, .n = n_tokens / KVC_CHUNK_TOKENS * KVC_CHUNK_TOKENS};
    return 0;
}

/* The next part, in p->message. False: there is none. */
static bool operator_parts_next(struct operator_parts *p)
{
    size_t left = p->n - p->at;

    p->message.parent_keys = (ProtobufCBinaryData){p->at > 0 ? sizeof(p->keys) : 0, p->keys};
    p->message.tokens = (uint32_t *) p->tokens + p->at; /* packing only reads */
    p->message.n_tokens = left < PART_TOKENS ? left : PART_TOKENS;
    return left > 0;
}

/* The keys of a reply to the present part, which is over then. Return: 0; -EPROTO. */
static int operator_parts_answered(struct operator_parts *p, ProtobufCBinaryData keys, struct errmsg *e)
{
    if (keys.len != sizeof(p->keys))
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: keys of %zu bytes", keys.len);

    memcpy(p->keys, keys.data, sizeof(p->keys));
    p->at += p->message.n_tokens;
    return 0;
}

/* ---- look-up ---- */

static int operator_check_places(const struct operator_parts *p, const Kvcobra__LookupReply *got,
                                 struct errmsg *e)
{
    if (got->n_places != p->message.n_tokens / KVC_CHUNK_TOKENS * OPERATOR_PLACES)
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: %zu places of %zu tokens", got->n_places,
                    p->message.n_tokens);
    if (got->tier_err < 0)
        return fail(e, got->tier_err,
                    "the disk or the cluster tier does not answer, so where the pages are is not known: see "
                    "'kvcobra tier'");
    return 0;
}

/* How the prompt goes on behind the present part: its next page is not another prompt's. */
static void operator_add_next(const struct operator_parts *p, Kvcobra__Lookup *m)
{
    size_t end = p->at + p->message.n_tokens;

    m->with_shared = true;
    if (p->n - end < KVC_CHUNK_TOKENS)
        return;
    m->next_tokens = (uint32_t *) p->tokens + end; /* packing only reads */
    m->n_next_tokens = KVC_CHUNK_TOKENS;
}

static int operator_lookup_part(kvc_client *c, struct operator_parts *p, bool with_shared,
                                Kvcobra__LookupReply **ret, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__LookupReply *got = NULL;
    Kvcobra__Lookup m = KVCOBRA__LOOKUP__INIT;
    int r;

    m.prefix = &p->message;
    if (with_shared)
        operator_add_next(p, &m);
    r = operator_call(c, KVCOBRA__REQUEST__BODY_LOOKUP, &m.base, &got, e);
    if (r == 0)
        r = operator_check_places(p, got, e);
    if (r == 0)
        r = operator_parts_answered(p, got->keys, e);
    if (r == 0)
        *ret = take_ptr(got);
    return r;
}

int operator_lookup(kvc_client *c, const Kvcobra__Prefix *p, const uint32_t *tokens, size_t n_tokens,
                    bool with_shared, Kvcobra__LookupReply **ret, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__LookupReply *all = NULL;
    struct operator_parts parts;
    int r = operator_parts_init(&parts, p, tokens, n_tokens, e);

    while (r == 0 && operator_parts_next(&parts)) {
        _cleanup_(operator_message_freep) Kvcobra__LookupReply *got = NULL;

        r = operator_lookup_part(c, &parts, with_shared, &got, e);
        if (r == 0 && all)
            r = operator_merge(&all->base, &got->base, e);
        else if (r == 0)
            all = take_ptr(got);
    }
    if (r == 0)
        *ret = take_ptr(all);
    return r;
}

/* ---- flushing ---- */

/* Tokens of the present part whose pages go. */
static size_t operator_flushed_of_part(const struct operator_parts *p, size_t n_flushed)
{
    size_t end = p->at + p->message.n_tokens, first = p->n - n_flushed;

    if (end <= first)
        return 0;
    return first > p->at ? end - first : p->message.n_tokens;
}

/* One request. *ret_again: a page is on its way to the disk; else the part is over. */
static int operator_flush_part(kvc_client *c, struct operator_parts *p, size_t n_flushed,
                               Kvcobra__FlushReply *sum, bool *ret_again, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__FlushReply *got = NULL;
    size_t n = operator_flushed_of_part(p, n_flushed);
    Kvcobra__Flush m = KVCOBRA__FLUSH__INIT;
    int r;

    m.prefix = &p->message;
    m.goes_on = n == 0;
    m.chunks = (uint32_t) (n / KVC_CHUNK_TOKENS);
    r = operator_call(c, KVCOBRA__REQUEST__BODY_FLUSH, &m.base, &got, e);
    if (r < 0)
        return r;

    sum->pages += got->pages;
    sum->held += got->held;
    *ret_again = got->on_the_way > 0;
    return *ret_again ? 0 : operator_parts_answered(p, got->keys, e);
}

int operator_flush(kvc_client *c, const Kvcobra__Prefix *p, const uint32_t *tokens, size_t n_tokens,
                   size_t n_flushed, Kvcobra__FlushReply *ret, struct errmsg *e)
{
    Kvcobra__FlushReply sum = KVCOBRA__FLUSH_REPLY__INIT;
    struct operator_parts parts;
    double until = clock_seconds() + AGAIN_S_MAX;
    bool again = false;
    int r = operator_parts_init(&parts, p, tokens, n_tokens, e);

    if (r == 0 && (n_flushed == 0 || n_flushed % KVC_CHUNK_TOKENS != 0 || n_flushed > parts.n))
        return fail(e, -EINVAL, "%zu tokens to flush are no multiple of %d up to the %zu of the prefix",
                    n_flushed, KVC_CHUNK_TOKENS, parts.n);

    while (r == 0 && operator_parts_next(&parts)) {
        if (again && clock_seconds() >= until)
            return fail(e, -EAGAIN,
                        "pages are still on their way to the disk tier, which may keep them: flush again");
        if (again)
            (void) poll(NULL, 0, AGAIN_MS);
        r = operator_flush_part(c, &parts, n_flushed, &sum, &again, e);
    }
    if (r == 0 && ret)
        *ret = sum;
    return r;
}

/* ---- pins ---- */

static int operator_pin_part(kvc_client *c, struct operator_parts *p, uint64_t ms, Kvcobra__PinReply *sum,
                             struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__PinReply *got = NULL;
    Kvcobra__Pin m = KVCOBRA__PIN__INIT;
    int r;

    m.prefix = &p->message;
    m.pin_ms = ms;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_PIN, &m.base, &got, e);
    if (r < 0)
        return r;

    sum->pages += got->pages;
    sum->missing += got->missing;
    sum->pinned_bytes = got->pinned_bytes;
    sum->limit_bytes = got->limit_bytes;
    return operator_parts_answered(p, got->keys, e);
}

int operator_pin(kvc_client *c, const Kvcobra__Prefix *p, const uint32_t *tokens, size_t n_tokens,
                 uint64_t ms, Kvcobra__PinReply *ret, struct errmsg *e)
{
    Kvcobra__PinReply sum = KVCOBRA__PIN_REPLY__INIT;
    struct operator_parts parts;
    int r = operator_parts_init(&parts, p, tokens, n_tokens, e);

    while (r == 0 && operator_parts_next(&parts))
        r = operator_pin_part(c, &parts, ms, &sum, e);
    if (r == 0 && ret)
        *ret = sum;
    return r;
}
