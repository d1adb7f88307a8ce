/* See slots.h. */
#include "cluster/slots.h"

#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "cluster/reply.h"

/* CRC-16/XMODEM: polynomial 0x1021, begins with 0. A prompt has some thousand keys of 50 bytes: no table. */
static uint16_t slots_crc16(const char *p, size_t n)
{
    uint16_t crc = 0;

    for (size_t i = 0; i < n; i++) {
        crc ^= (uint16_t) ((uint8_t) p[i] << 8);
        for (unsigned bit = 0; bit < 8; bit++)
            crc = (uint16_t) (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
    }
    return crc;
}

uint16_t slots_of_key(const char *key, size_t n)
{
    const char *open = memchr(key, '{', n);
    const char *close = open ? memchr(open, '}', n - (size_t) (open - key)) : NULL;

    if (close && close > open + 1)
        return slots_crc16(open + 1, (size_t) (close - open - 1)) % SLOTS_N;
    return slots_crc16(key, n) % SLOTS_N;
}

/* ---- CLUSTER SLOTS ---- */

/* Hosts go into log lines and getaddrinfo(): letters, digits and what addresses have. */
static bool slots_host_load(const char *text, size_t n, char ret[static HOST_BYTES])
{
    if (n == 1 && text[0] == '?') /* the server does not know its own name */
        n = 0;
    if (n >= HOST_BYTES)
        return false;
    for (size_t i = 0; i < n; i++) {
        bool is_letter = (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z');

        if (!is_letter && !(text[i] >= '0' && text[i] <= '9') && (!memchr(".-_:%", text[i], 5)))
            return false;
    }

    memcpy(ret, text, n);
    ret[n] = '\0';
    return true;
}

static bool slots_number(const struct reply *r, long long max, uint16_t *ret)
{
    if (r->kind != REPLY_INTEGER || r->integer < 0 || r->integer > max)
        return false;
    *ret = (uint16_t) r->integer;
    return true;
}

/* [first, last, ...] */
static bool slots_is_range(const struct reply *r)
{
    return r->kind == REPLY_ARRAY && r->n >= 2 && r->items[0]->kind == REPLY_INTEGER &&
           r->items[1]->kind == REPLY_INTEGER;
}

/* [host, port, ...]. Return: NULL; else what is wrong with it. */
static const char *slots_node_load(const struct reply *r, bool over_tls, struct slots_range *ret)
{
    const struct reply *host;

    if (r->kind != REPLY_ARRAY || r->n < 2)
        return "names no node";
    if (!slots_number(r->items[1], UINT16_MAX, &ret->port))
        return "has a node without a port";

    host = r->items[0];
    if (ret->port == 0 && !over_tls)
        return "has a node with a port for TLS alone";
    if (host->kind == REPLY_NIL) { /* "the host that was asked" */
        ret->host[0] = '\0';
        return NULL;
    }
    if (host->kind != REPLY_STRING || !slots_host_load(host->text, host->n, ret->host))
        return "has a node whose host is no host";
    return ret->host[0] || ret->port > 0 ? NULL : "has a node without host and port";
}

/* [first, last, [host, port, ...], replicas...]. Return: NULL; else what is wrong with it. */
static const char *slots_range_load(const struct reply *r, bool over_tls, struct slots_range *ret)
{
    if (!slots_is_range(r))
        return "is no range";
    if (!slots_number(r->items[0], SLOTS_N - 1, &ret->first) ||
        !slots_number(r->items[1], SLOTS_N - 1, &ret->last) || ret->last < ret->first)
        return "has slots that no cluster has";
    return r->n < 3 ? "names no node" : slots_node_load(r->items[2], over_tls, ret);
}

int slots_parse(const struct reply *r, bool over_tls,
                void (*on_range)(void *ctx, const struct slots_range *s), void *ctx, struct errmsg *gap,
                struct errmsg *e)
{
    struct slots_range s;
    bool has_ranges = false;

    if (r->kind == REPLY_ERROR)
        return fail(e, -EBADMSG, "CLUSTER SLOTS failed: %.200s", r->text);
    if (r->kind != REPLY_ARRAY)
        return fail(e, -EBADMSG, "the reply to CLUSTER SLOTS is not a list");
    for (size_t i = 0; i < r->n; i++)
        has_ranges = has_ranges || slots_is_range(r->items[i]);
    if (r->n > 0 && !has_ranges)
        return fail(e, -EBADMSG, "the reply to CLUSTER SLOTS is not a list of ranges");

    errmsg_clear(gap);
    for (size_t i = 0; i < r->n; i++) {
        const char *wrong = slots_range_load(r->items[i], over_tls, &s);

        if (!wrong)
            on_range(ctx, &s);
        else if (gap->text[0] == '\0')
            errmsg_set(gap, "range %zu of the reply to CLUSTER SLOTS %s", i + 1, wrong);
    }
    return 0;
}

/* ---- MOVED, ASK ---- */

/* Reads decimal digits up to @end. */
static bool slots_digits(const char **at, const char *end, uint32_t max, uint16_t *ret)
{
    uint32_t v = 0;
    const char *p = *at;

    if (p == end)
        return false;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9')
            return false;
        v = 10 * v + (uint32_t) (*p - '0');
        if (v > max)
            return false;
    }

    *at = p;
    *ret = (uint16_t) v;
    return true;
}

int slots_parse_redirection(const struct reply *r, bool over_tls, struct redirection *ret)
{
    bool is_ask = reply_is_error(r, "ASK");
    struct redirection d = {.is_ask = is_ask};
    const char *at, *blank, *colon;

    if (!is_ask && !reply_is_error(r, "MOVED"))
        return -ENOENT;

    at = r->text + (is_ask ? 3 : 5);
    if (*at++ != ' ')
        return -EBADMSG;
    blank = strchr(at, ' ');
    colon = blank ? strrchr(blank, ':') : NULL; /* addresses of IPv6 have colons */
    if (!colon || strlen(r->text) != r->n || !slots_digits(&at, blank, SLOTS_N - 1, &d.slot))
        return -EBADMSG;
    if (!slots_host_load(blank + 1, (size_t) (colon - blank - 1), d.host))
        return -EBADMSG;

    colon++;
    if (!slots_digits(&colon, r->text + r->n, UINT16_MAX, &d.port) ||
        (d.port == 0 && (!d.host[0] || !over_tls)))
        return -EBADMSG;
    *ret = d;
    return 0;
}
