/* See fleet.h. */
#include "cluster/fleet.h"

#include <errno.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cluster/reply.h"
#include "cluster/router.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"

enum { FLEET_DEADLINE_MS = 2000 };

static void fleet_end(struct fleet *f, enum cluster_state state, uint64_t pause_ms)
{
    static const char *const names[] = {"joining", "ready", "refused"};

    if (state != f->state)
        log_event(state == CLUSTER_REFUSED ? LOG_ERR : LOG_INFO, "fleet", "state=%s message=\"%s\"",
                  names[state], f->why.text);
    f->runs = false;
    f->state = state;
    f->next_ms = ev_now_ms(f->ev) + pause_ms;
}

/* Why the ids were not compared yet. Said once, not at every attempt. */
__attribute__((format(printf, 2, 3))) static void fleet_retry(struct fleet *f, const char *fmt, ...)
{
    struct errmsg why;
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(why.text, sizeof(why.text), fmt, ap);
    va_end(ap);

    if (f->state == CLUSTER_JOINING && strcmp(why.text, f->why.text) != 0) {
        f->why = why;
        if (log_is_due(++f->n_reasons))
            log_event(LOG_WARNING, "fleet", "state=joining message=\"%s\"", why.text);
    }
    fleet_end(f, f->state, FLEET_RETRY_MS);
}

/* The value could not be read: the sentence of the router has the reason if a server or a node has it. */
static void fleet_on_no_value(struct fleet *f, int result, const struct reply *r)
{
    if (result == -EHOSTUNREACH)
        fleet_retry(f, "the key %.80sfleet is in a slot without a node: %.200s", f->prefix,
                    router_gap(f->router));
    else if (result < 0)
        fleet_retry(f, "%.300s", router_why(f->router)[0] ? router_why(f->router) : strerror(-result));
    else if (r->kind != REPLY_STRING)
        fleet_retry(
            f,
            "a server answers GETRANGE of the key %.80sfleet with something else than a string: servers "
            "must be Redis or Valkey, not a proxy that knows other commands",
            f->prefix);
    else
        fleet_retry(
            f, "the key %.80sfleet is not there after it was set: the servers take no writes, or evict it",
            f->prefix);
}

/* A value of this fleet; one that an earlier version stored has no number. */
static bool fleet_is_own(const struct fleet *f, const struct reply *r)
{
    return (r->n == FLEET_VALUE_CHARS || r->n == FLEET_ID_CHARS) &&
           memcmp(r->text, f->text, FLEET_ID_CHARS) == 0;
}

static void fleet_note(struct fleet *f, const struct reply *r)
{
    char value[FLEET_VALUE_CHARS + 1] = "";

    memcpy(value, r->text, r->n);
    f->n_missing += f->seen[0] != '\0' && strcmp(value, f->seen) != 0;
    memcpy(f->seen, value, sizeof(value));
}

static void fleet_on_get(struct command *c, int result, const struct reply *r)
{
    struct fleet *f = c->ctx;

    if (result < 0 || r->kind != REPLY_STRING || r->n == 0) {
        fleet_on_no_value(f, result, r);
        return;
    }
    if (fleet_is_own(f, r)) {
        fleet_note(f, r);
        errmsg_clear(&f->why);
        fleet_end(f, CLUSTER_READY, FLEET_PERIOD_MS);
        return;
    }

    errmsg_set(
        &f->why,
        "the cluster belongs to another fleet: give this host the key-file of that fleet, or set another "
        "key-prefix, or delete the key %sfleet if no host uses the cluster",
        f->prefix);
    fleet_end(f, CLUSTER_REFUSED, FLEET_PERIOD_MS);
}

/* Stored, or there already, or the cluster is full: the value decides. */
static void fleet_on_set(struct command *c, int result, const struct reply *r)
{
    struct fleet *f = c->ctx;

    (void) result;
    (void) r;
    c->kind = COMMAND_GET;
    c->value_bytes = FLEET_VALUE_CHARS;
    c->done = fleet_on_get;
    router_submit(f->router, c);
}

static void fleet_start(struct fleet *f)
{
    struct command *c = &f->command;
    uint8_t number[FLEET_NUMBER_BYTES];

    randombytes_buf(number, sizeof(number));
    (void) sodium_bin2hex(&f->text[FLEET_ID_CHARS + 1], 2 * sizeof(number) + 1, number, sizeof(number));
    *c = (struct command){.kind = COMMAND_SET,
                          .value = (const uint8_t *) f->text,
                          .value_bytes = strlen(f->text),
                          .done = fleet_on_set,
                          .ctx = f};
    c->key_bytes = (uint16_t) snprintf(c->key, sizeof(c->key), "%sfleet", f->prefix);
    f->runs = true;
    f->deadline_ms = ev_now_ms(f->ev) + FLEET_DEADLINE_MS;
    router_submit(f->router, c);
}

void fleet_set(struct fleet *f, const uint8_t id[static CLUSTER_FLEET_BYTES])
{
    fleet_clear(f);
    (void) sodium_bin2hex(f->text, FLEET_ID_CHARS + 1, id, CLUSTER_FLEET_BYTES);
    f->text[FLEET_ID_CHARS] = ' ';
    f->seen[0] = '\0';
    f->is_known = true;
    f->next_ms = 0;
}

void fleet_clear(struct fleet *f)
{
    if (f->runs)
        node_forget(&f->command, false);
    f->runs = f->is_known = false;
    f->state = CLUSTER_JOINING;
    errmsg_clear(&f->why);
}

void fleet_tick(struct fleet *f)
{
    uint64_t now_ms = ev_now_ms(f->ev);

    if (f->runs && now_ms > f->deadline_ms) {
        node_forget(&f->command, true);
        fleet_retry(f, "the server of the key %.80sfleet did not answer within %d ms", f->prefix,
                    FLEET_DEADLINE_MS);
    }
    if (router_mode(f->router) == ROUTER_CLUSTER || router_mode(f->router) == ROUTER_SINGLE)
        if (f->is_known && !f->runs && now_ms >= f->next_ms)
            fleet_start(f);
}
