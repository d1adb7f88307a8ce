/* See router.h. */
#include "cluster/router.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "cluster/reply.h"
#include "cluster/resolve.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"

enum {
    ROUTER_EVENTS = 64,
    ROUTER_REFRESH_DEADLINE_MS = 2000,
    ROUTER_UNUSED_MS = 10000, /* a node without slots stays so long: slots may be on their way to it */
    ROUTER_NO_NODE = 0,       /* in the map; else a place in nodes, plus 1 */
};

/*
 * Each server has two connections. Replies of a server come in order, so a question on the same connection
 * would wait for all values that were asked for before it: 16 MiB take 140 ms at 1 Gbit/s.
 */
enum router_lane {
    ROUTER_QUESTIONS, /* small and urgent */
    ROUTER_VALUES,    /* values, and what must keep its order with them */
    ROUTER_LANES
};

struct router {
    const struct router_settings *settings;
    struct ev *ev;
    struct node_env env;
    struct ev_source *watch;
    /* by place: the first n_servers stay; NULL, in both lanes: free */
    struct node *nodes[ROUTER_NODES_MAX][ROUTER_LANES];
    uint64_t used_ms[ROUTER_NODES_MAX]; /* when a server named the node, or it had slots */
    uint64_t drop_ms;                   /* when unused nodes are looked for */
    uint8_t owner[SLOTS_N];             /* ROUTER_NO_NODE, or place + 1 */
    unsigned n_unserved;                /* slots without a node, in the last map */
    struct errmsg gap;                  /* their number, and why the first of them has none; "" */
    uint64_t n_gaps_changed, n_maps_refused;
    enum router_mode mode;
    struct command refresh; /* CLUSTER SLOTS */
    bool wants_refresh;
    uint64_t refreshed_ms, refresh_deadline_ms;
    unsigned asked; /* the node that is asked next */
    struct router_counts counts;
    uint64_t n_logged;
    struct errmsg why;
};

/* ---- nodes ---- */

static enum router_lane router_lane(enum command_kind kind)
{
    return kind == COMMAND_EXISTS || kind == COMMAND_EXPIRE || kind == COMMAND_SLOTS ? ROUTER_QUESTIONS
                                                                                     : ROUTER_VALUES;
}

static unsigned router_place(const struct router *r, const struct node *n)
{
    for (unsigned i = 0; i < ROUTER_NODES_MAX; i++)
        if (r->nodes[i][ROUTER_QUESTIONS] == n || r->nodes[i][ROUTER_VALUES] == n)
            return i;
    assert(false);
    return 0;
}

static bool router_has(const struct router *r, unsigned place)
{
    return r->nodes[place][ROUTER_QUESTIONS] != NULL;
}

static void router_free_node(struct router *r, unsigned place)
{
    for (unsigned k = 0; k < ROUTER_LANES; k++)
        r->nodes[place][k] = node_free(r->nodes[place][k]);
}

/* Return: 0; -ENOMEM. */
static int router_add(struct router *r, unsigned place, const char *host, uint16_t port)
{
    for (unsigned k = 0; k < ROUTER_LANES; k++) {
        r->nodes[place][k] = node_new(&r->env, host, port);
        if (!r->nodes[place][k]) {
            router_free_node(r, place);
            return -ENOMEM;
        }
    }
    return 0;
}

/* The connection of a server that is not READY. NULL: the server answers. */
static const struct node *router_down(const struct router *r, unsigned place)
{
    for (unsigned k = 0; k < ROUTER_LANES; k++)
        if (node_state(r->nodes[place][k]) != NODE_READY)
            return r->nodes[place][k];
    return NULL;
}

static uint64_t router_n_failures(const struct router *r, unsigned place)
{
    return node_n_failures(r->nodes[place][ROUTER_QUESTIONS]) +
           node_n_failures(r->nodes[place][ROUTER_VALUES]);
}

/*
 * The place, plus 1, of the server that @from named: an empty host is its own, and so is port 0, as of a
 * server that has only a port for TLS, over TLS. ROUTER_NO_NODE: there are ROUTER_NODES_MAX, or no memory.
 */
static uint8_t router_find(struct router *r, const struct node *from, const char *host, uint16_t port)
{
    unsigned unused = ROUTER_NODES_MAX;

    if (!host[0])
        host = node_host(from);
    if (port == 0)
        port = node_port(from);
    for (unsigned i = 0; i < ROUTER_NODES_MAX; i++) {
        if (!router_has(r, i) && i < unused)
            unused = i;
        if (router_has(r, i) && node_is(r->nodes[i][ROUTER_QUESTIONS], host, port)) {
            r->used_ms[i] = ev_now_ms(r->ev);
            return (uint8_t) (i + 1);
        }
    }
    if (unused == ROUTER_NODES_MAX || router_add(r, unused, host, port) < 0)
        return ROUTER_NO_NODE;

    r->used_ms[unused] = ev_now_ms(r->ev);
    return (uint8_t) (unused + 1);
}

/* Frees nodes that have no slots. Runs at ticks only: nodes are on the stack at other times. */
static void router_drop_unused(struct router *r, uint64_t now_ms)
{
    bool used[ROUTER_NODES_MAX + 1] = {false};

    if (now_ms < r->drop_ms)
        return;

    r->drop_ms = now_ms + 1000;
    for (unsigned i = 0; i < SLOTS_N; i++)
        used[r->owner[i]] = true;
    for (unsigned i = r->settings->n_servers; i < ROUTER_NODES_MAX; i++) {
        if (!router_has(r, i) || used[i + 1] || r->refresh.node == r->nodes[i][ROUTER_QUESTIONS])
            r->used_ms[i] = now_ms;
        if (now_ms - r->used_ms[i] <= ROUTER_UNUSED_MS)
            continue;
        r->counts.n_node_failures += router_n_failures(r, i);
        for (unsigned k = 0; k < ROUTER_LANES; k++)
            node_close(r->nodes[i][k], -EHOSTUNREACH, "the node has no slots");
        router_free_node(r, i);
    }
}

static void router_changed(void *ctx, struct node *n)
{
    struct router *r = ctx;
    bool is_ready = node_state(n) == NODE_READY;
    const struct node *first = r->nodes[router_place(r, n)][ROUTER_QUESTIONS];

    if (!is_ready)
        errmsg_set(&r->why, "%.100s port %u: %.200s", node_host(n), (unsigned) node_port(n), node_why(n));
    r->wants_refresh = true;
    r->counts.n_node_joins += is_ready && n == first;
    if (n != first && (is_ready || node_state(first) != NODE_READY))
        return; /* the other connection says so */
    if (is_ready)
        log_event(LOG_INFO, "node-ready", "host=\"%s\" port=%u", node_host(n), (unsigned) node_port(n));
    else if (log_is_due(node_n_failures(n)))
        log_event(LOG_WARNING, "node-off", "host=\"%s\" port=%u failures=%" PRIu64 " message=\"%s\"",
                  node_host(n), (unsigned) node_port(n), node_n_failures(n), node_why(n));
}

/* ---- commands ---- */

static void router_end(struct command *c, int result, const struct reply *reply)
{
    c->node = NULL;
    c->done(c, result, reply);
}

/*
 * A node that is down may have lost its slots to a replica: the map is asked for until it names another.
 * @owner: as in the map.
 */
static void router_send(struct router *r, struct command *c, uint8_t owner)
{
    int result;

    if (owner != ROUTER_NO_NODE)
        result = node_put(r->nodes[owner - 1][router_lane(c->kind)], c);
    else
        result = r->n_unserved == SLOTS_N ? -EHOSTDOWN : -EHOSTUNREACH;
    if (result == -EHOSTDOWN || result == -EHOSTUNREACH)
        r->wants_refresh = true;
    if (result < 0)
        router_end(c, result, NULL);
}

void router_submit(struct router *r, struct command *c)
{
    c->node = NULL;
    c->asks = false;
    c->n_tries = 1;
    router_send(r, c, r->owner[slots_of_key(c->key, c->key_bytes)]);
}

int router_errno(const struct reply *error)
{
    static const struct {
        const char *word;
        int err;
    } words[] = {
        {"TRYAGAIN", -EAGAIN},   {"CLUSTERDOWN", -EAGAIN}, {"LOADING", -EAGAIN}, {"MASTERDOWN", -EAGAIN},
        {"READONLY", -EAGAIN},   {"BUSY", -EAGAIN},        {"MOVED", -EAGAIN},   {"ASK", -EAGAIN},
        {"NOREPLICAS", -EAGAIN}, {"MISCONF", -ENOSPC},     {"OOM", -ENOSPC},     {"NOAUTH", -EACCES},
        {"WRONGPASS", -EACCES},  {"NOPERM", -EACCES},
    };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (reply_is_error(error, words[i].word))
            return words[i].err;
    return -EBADMSG;
}

/* MOVED changes the map, and ASK this command's way only. */
static void router_redirect(struct router *r, struct node *from, struct command *c,
                            const struct redirection *d)
{
    uint8_t owner = router_find(r, from, d->host, d->port);

    r->counts.n_redirected++;
    if (!d->is_ask) {
        r->wants_refresh = true;
        if (owner != ROUTER_NO_NODE && r->mode == ROUTER_CLUSTER &&
            slots_of_key(c->key, c->key_bytes) == d->slot)
            r->owner[d->slot] = owner;
    }
    if (c->n_tries++ == ROUTER_TRIES_MAX) {
        errmsg_set(&r->why, "%.100s port %u: the nodes redirect slot %u to each other", node_host(from),
                   (unsigned) node_port(from), (unsigned) d->slot);
        router_end(c, -EAGAIN, NULL);
        return;
    }
    c->asks = d->is_ask;
    router_send(r, c, owner);
}

static void router_take_map(struct router *r, struct node *from, const struct reply *reply);

static void router_replied(void *ctx, struct node *n, struct command *c, const struct reply *reply)
{
    struct router *r = ctx;
    struct redirection d;

    if (c == &r->refresh) {
        router_take_map(r, n, reply);
        return;
    }
    if (reply->kind != REPLY_ERROR) {
        router_end(c, 0, reply);
        return;
    }
    if (slots_parse_redirection(reply, r->settings->node.tls, &d) == 0) {
        router_redirect(r, n, c, &d);
        return;
    }

    errmsg_set(&r->why, "%.100s port %u answers: %.200s", node_host(n), (unsigned) node_port(n), reply->text);
    if (reply_is_error(reply, "CLUSTERDOWN") || reply_is_error(reply, "READONLY") ||
        reply_is_error(reply, "MOVED"))
        r->wants_refresh = true;
    else if (router_errno(reply) != -EAGAIN && log_is_due(++r->n_logged))
        log_event(LOG_WARNING, "command-refused", "host=\"%s\" port=%u message=\"%.200s\"", node_host(n),
                  (unsigned) node_port(n), reply->text);
    router_end(c, router_errno(reply), NULL);
}

static void router_failed(void *ctx, struct command *c, int err)
{
    struct router *r = ctx;

    if (c == &r->refresh)
        r->wants_refresh = true;
    else
        router_end(c, err, NULL);
}

/* ---- the map of slots ---- */

struct router_mapping {
    struct router *router;
    struct node *from;
    uint8_t owner[SLOTS_N];
    struct errmsg gap;
};

static void router_on_range(void *ctx, const struct slots_range *s)
{
    struct router_mapping *m = ctx;
    uint8_t owner = router_find(m->router, m->from, s->host, s->port);

    if (owner == ROUTER_NO_NODE)
        errmsg_set(&m->gap, "the cluster has more than %d nodes", ROUTER_NODES_MAX);
    memset(m->owner + s->first, owner, (size_t) (s->last - s->first) + 1);
}

static void router_set_mode(struct router *r, enum router_mode mode)
{
    static const char *const names[] = {"unknown", "cluster", "single server", "impossible"};

    if (r->mode != mode)
        log_event(LOG_INFO, "mode", "mode=\"%s\"", names[mode]);
    r->mode = mode;
}

/* "ERR This instance has cluster support disabled" */
static void router_take_single(struct router *r, struct node *from)
{
    r->n_unserved = 0;
    errmsg_clear(&r->gap);
    if (r->settings->n_servers > 1) {
        memset(r->owner, ROUTER_NO_NODE, sizeof(r->owner));
        router_set_mode(r, ROUTER_IMPOSSIBLE);
        errmsg_set(
            &r->why,
            "%.100s port %u is not a node of a cluster: name that server alone, or only nodes of one cluster",
            node_host(from), (unsigned) node_port(from));
        return;
    }
    memset(r->owner, (int) router_place(r, from) + 1, sizeof(r->owner));
    router_set_mode(r, ROUTER_SINGLE);
}

/* Slots without a node are misses, and the others work: said once at a change, not for every map. */
static void router_note_gaps(struct router *r, const struct router_mapping *m)
{
    unsigned n = 0;

    for (unsigned i = 0; i < SLOTS_N; i++)
        n += m->owner[i] == ROUTER_NO_NODE;
    if (n > 0)
        errmsg_set(&r->gap, "%u of %d slots have no node, and their pages are misses: %.200s", n, SLOTS_N,
                   m->gap.text[0] ? m->gap.text : "CLUSTER SLOTS does not name these slots");
    else
        errmsg_clear(&r->gap);
    if (n == r->n_unserved)
        return;

    r->n_unserved = n;
    if (!log_is_due(++r->n_gaps_changed))
        return;
    if (n > 0)
        log_event(LOG_WARNING, "slots-without-node", "host=\"%s\" port=%u changed=%" PRIu64 " message=\"%s\"",
                  node_host(m->from), (unsigned) node_port(m->from), r->n_gaps_changed, r->gap.text);
    else
        log_event(LOG_INFO, "slots-served", "host=\"%s\" port=%u changed=%" PRIu64, node_host(m->from),
                  (unsigned) node_port(m->from), r->n_gaps_changed);
}

static void router_take_map(struct router *r, struct node *from, const struct reply *reply)
{
    struct router_mapping m = {.router = r, .from = from};

    r->counts.n_refreshed++;
    if (reply->kind == REPLY_ERROR && strstr(reply->text, "cluster support disabled")) {
        router_take_single(r, from);
    } else if (slots_parse(reply, r->settings->node.tls, router_on_range, &m, &m.gap, &r->why) == 0) {
        router_note_gaps(r, &m);
        memcpy(r->owner, m.owner, sizeof(r->owner));
        router_set_mode(r, ROUTER_CLUSTER);
    } else if (log_is_due(++r->n_maps_refused)) {
        log_event(LOG_WARNING, "map",
                  "host=\"%s\" port=%u refused=%" PRIu64 " message=\"%s\", keeping the old map",
                  node_host(from), (unsigned) node_port(from), r->n_maps_refused, r->why.text);
    }
}

static void router_refresh(struct router *r, uint64_t now_ms)
{
    if (r->refresh.node && now_ms > r->refresh_deadline_ms) {
        node_forget(&r->refresh, true);
        r->wants_refresh = true;
    }
    if (r->refresh.node || now_ms < r->refreshed_ms + ROUTER_REFRESH_MS_MIN ||
        (!r->wants_refresh && now_ms < r->refreshed_ms + ROUTER_REFRESH_MS))
        return;

    for (unsigned i = 0; i < ROUTER_NODES_MAX; i++) { /* another node each time: one may be cut off */
        struct node *n = r->nodes[r->asked++ % ROUTER_NODES_MAX][ROUTER_QUESTIONS];

        if (!n || node_put(n, &r->refresh) < 0)
            continue;
        r->wants_refresh = false;
        r->refreshed_ms = now_ms;
        r->refresh_deadline_ms = now_ms + ROUTER_REFRESH_DEADLINE_MS;
        return;
    }
}

/* ---- the router ---- */

static void router_on_events(void *ctx)
{
    struct router *r = ctx;
    struct epoll_event events[ROUTER_EVENTS];
    int n = epoll_wait(r->env.epoll_fd, events, ROUTER_EVENTS, 0);

    for (int i = 0; i < n; i++)
        node_serve(events[i].data.ptr, events[i].events);
    router_flush(r);
}

static void router_freep(struct router **r)
{
    *r = router_free(*r);
}

int router_new(struct ev *ev, const struct router_settings *s, struct router **ret, struct errmsg *e)
{
    _cleanup_(router_freep) struct router *r = calloc(1, sizeof(*r));
    int err;

    if (!r)
        return fail(e, -ENOMEM, "out of memory");

    r->settings = s;
    r->ev = ev;
    r->refresh.kind = COMMAND_SLOTS;
    r->wants_refresh = true;
    r->env = (struct node_env){.settings = &s->node,
                               .ev = ev,
                               .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                               .replied = router_replied,
                               .failed = router_failed,
                               .changed = router_changed,
                               .ctx = r};
    if (r->env.epoll_fd < 0)
        return fail(e, -errno, "cannot create an epoll instance: %s", strerror(errno));
    err = resolve_new(ev, &r->env.resolver, e);
    if (err < 0)
        return err;
    err = ev_watch(ev, r->env.epoll_fd, router_on_events, r, &r->watch);
    if (err < 0)
        return fail(e, err, "cannot watch connections: %s", strerror(-err));

    assert(s->n_servers > 0 && s->n_servers <= ROUTER_NODES_MAX / 2);
    for (unsigned i = 0; i < s->n_servers; i++)
        if (router_add(r, i, s->servers[i].host, s->servers[i].port) < 0)
            return fail(e, -ENOMEM, "out of memory");
    *ret = take_ptr(r);
    return 0;
}

struct router *router_free(struct router *r)
{
    if (!r)
        return NULL;

    for (unsigned i = 0; i < ROUTER_NODES_MAX; i++)
        router_free_node(r, i);
    r->watch = ev_source_free(r->watch);
    r->env.resolver = resolve_free(r->env.resolver);
    closep(&r->env.epoll_fd);
    free(r);
    return NULL;
}

bool router_is_busy(const struct router *r)
{
    return resolve_is_busy(r->env.resolver);
}

void router_flush(struct router *r)
{
    for (unsigned i = 0; i < ROUTER_NODES_MAX; i++)
        for (unsigned k = 0; k < ROUTER_LANES && router_has(r, i); k++)
            node_flush(r->nodes[i][k]);
}

void router_tick(struct router *r)
{
    uint64_t now_ms = ev_now_ms(r->ev);

    resolve_tick(r->env.resolver, now_ms);
    for (unsigned i = 0; i < ROUTER_NODES_MAX; i++)
        for (unsigned k = 0; k < ROUTER_LANES && router_has(r, i); k++)
            node_tick(r->nodes[i][k]);
    router_refresh(r, now_ms);
    router_drop_unused(r, now_ms);
    router_flush(r);
}

enum router_mode router_mode(const struct router *r)
{
    return r->mode;
}

const char *router_why(const struct router *r)
{
    return r->why.text;
}

const char *router_gap(const struct router *r)
{
    return r->gap.text;
}

bool router_is_whole(const struct router *r, struct errmsg *ret)
{
    const struct node *down = NULL;
    unsigned n = 0;

    if (r->gap.text[0]) {
        *ret = r->gap;
        return false;
    }
    for (unsigned i = 0; i < SLOTS_N; i++) {
        const struct node *owner = r->owner[i] == ROUTER_NO_NODE ? NULL : router_down(r, r->owner[i] - 1u);

        if (!owner)
            continue;
        n++;
        down = owner;
    }
    if (!down)
        return true;

    errmsg_set(ret,
               "%u of %d slots have a node that does not answer, and their pages are misses: %.100s port "
               "%u: %.200s",
               n, SLOTS_N, node_host(down), (unsigned) node_port(down), node_why(down));
    return false;
}

void router_count(const struct router *r, struct router_counts *ret)
{
    *ret = r->counts;
    for (unsigned i = 0; i < ROUTER_NODES_MAX; i++) {
        if (!router_has(r, i))
            continue;
        ret->n_nodes++;
        ret->n_ready += router_down(r, i) == NULL;
        ret->n_node_failures += router_n_failures(r, i);
    }
}
