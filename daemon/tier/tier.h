/*
 * A tier: a place below the memory of the host that keeps sealed pages. Offloading (daemon/offload/) knows
 * tiers by this interface; each is one file with its calls, and a row there that starts it.
 *
 * All calls are on the loop, and none waits. A request always ends, with 0 or an errno that means "this page
 * is not there" or "this page was not written": nothing else depends on a tier. A tier is trusted with
 * nothing: it has no key, and a page that does not open is a miss, which offloading removes.
 *
 * There are two kinds. A tier of the host gets pages ahead of their eviction, and tells at once what it has.
 * A shared tier gets pages when clients commit them. Other hosts write to it, so it is asked before a page is
 * fetched, and it keeps pages by names that are the same on all hosts. Another process has its memory: a page
 * is sealed elsewhere and copied there, and a value is copied where it is opened.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/loop/fair.h"
#include "proto/index.h"
#include "proto/page.h"
#include "proto/protocol.h"

#define TIER_TENANT_BYTES 64
#define TIER_TABLE_BYTES 32
#define TIER_NAME_BYTES 16

enum { TIERS_MAX = 4, TIER_NAMES_MAX = 1024 };

/* The pages of one size and kind: one tenant, one table, one shard, one class. */
struct tier_group {
    char tenant[TIER_TENANT_BYTES]; /* terminated, zeros behind the name */
    uint8_t table_digest[TIER_TABLE_BYTES];
    uint16_t first_head, n_heads;
    uint8_t page_class;
    uint64_t page_bytes; /* in memory; a tier has the sealed page, seal_bytes() */
};

/* Copies an identity, so that equal ones have equal bytes. @tenant: shorter than TIER_TENANT_BYTES. */
void tier_group_init(struct tier_group *g, const char *tenant);
bool tier_group_equal(const struct tier_group *a, const struct tier_group *b);

enum tier_kind {
    TIER_PUT = 0,        /* keep data as the page of group and key */
    TIER_GET = 1,        /* the page of group and key */
    TIER_FORGET = 2,     /* drop the page of group and key, which did not open */
    TIER_DROP = 3,       /* drop all pages of a tenant, of a table, of both, or all; tiers of the host only */
    TIER_ASK = 4,        /* whether the tier has the page of group and key; tiers of the host only */
    TIER_REMOVE = 5,     /* drop the page of group and key, which an operator flushed */
    TIER_ASK_OTHERS = 6, /* whether further pages of the tenant continue a page, see index_find_others() */
    TIER_LIST = 7,       /* which pages the tier has, a part at a time; tiers of the host only */
};

struct tier_list { /* pages of one group */
    uint64_t next; /* where the next part begins */
    struct tier_group group;
    uint32_t n;
    struct chunk_key keys[TIER_NAMES_MAX];
};

struct tier_share { /* of an account; zeroed at first, and without requests when it is freed */
    struct fair_share waiting, writes, ended;
    uint32_t n_requests; /* submitted and not done */
    uint32_t n_looks;
};

struct tier_request {      /* embedded; belongs to the caller before submit() and from done() on */
    struct fair_item item; /* first member; this and the next two are the tier's */
    struct tier_share *share;
    struct tier_request *next;
    enum tier_kind kind;
    struct tier_group group;
    struct chunk_key key;
    uint8_t name[TIER_NAME_BYTES]; /* of a shared tier: that of group and key */
    struct index_family family;    /* ASK_OTHERS */
    uint64_t list_from;            /* LIST: 0, or where the next part begins */
    struct tier_list *list;        /* LIST, result 0: the caller frees it */
    uint64_t quota_bytes;          /* of the tenant; PUT to a tier of the host */
    /* PUT: a buffer of take(), transferred. GET: the value, if the result is 0; then give_back() it. */
    uint8_t *data;
    uint64_t value_bytes;                   /* GET, result 0: what the tier has; as many lie at data */
    bool drops_any_tenant, drops_any_table; /* DROP: else the tenant and the table of the group */
    uint64_t deadline_ms;                   /* CLOCK_MONOTONIC */
    /*
     * All but PUT: -ENOENT: the tier does not have the page; DROP, ASK_OTHERS, LIST: none. PUT: -EEXIST: the
     * tier has it. Other errnos: those of the tier. -ETIMEDOUT; -ENODEV: the tier is off.
     */
    int result;
    void (*done)(struct tier_request *r); /* on the loop; may free the request */
};

struct tier_look {            /* which of some names a shared tier has; embedded likewise */
    struct tier_share *share; /* NULL: for an operator */
    uint32_t timeout_ms;
    uint32_t n;                        /* of names, at most TIER_NAMES_MAX */
    uint8_t (*names)[TIER_NAME_BYTES]; /* [n], the caller's */
    bool *found;                       /* [n], the caller's; false, if no answer came */
    int result;                        /* errno: not all names were answered */
    void (*done)(struct tier_look *l);
};

struct tier_touch { /* begins the time to live of names anew; embedded likewise */
    uint32_t n;
    uint8_t names[TIER_NAMES_MAX][TIER_NAME_BYTES];
    uint32_t n_touched; /* names that the tier has */
    int result;
    void (*done)(struct tier_touch *t);
};

enum tier_state { TIER_OPENING = 0, TIER_READY = 1, TIER_OFF = 2 };
extern const char *const tier_state_names[]; /* by enum tier_state */

struct tier_status { /* what offloading goes by; operators see more of each tier */
    enum tier_state state;
    uint64_t n_openings; /* how often it became ready: it may have other pages since */
    bool has_room;       /* a page can be written without taking the place of others */
};

struct tier_removed { /* pages of a tenant that left a tier of the host; for free() */
    struct tier_removed *next;
    char tenant[TIER_TENANT_BYTES];
    uint32_t n;
    struct chunk_key keys[]; /* [n] */
};

struct tier_ops {
    const char *name; /* in logs */
    bool is_shared;

    /*
     * Takes a request. @s: that of an account, borrowed until done(). Return: 0; -EAGAIN: too many; -ENODEV:
     * the tier is off; -EFBIG; -ENOMEM. On failure @r was not submitted, and its buffer is the caller's.
     */
    int (*submit)(void *tier, struct tier_share *s, struct tier_request *r);
    /* A buffer for the sealed page of @page_bytes. NULL: none is free now, or no page is so large. */
    uint8_t *(*take)(void *tier, uint64_t page_bytes);
    void (*give_back)(void *tier, uint8_t *data);
    /* Whether buffers can have the sealed page. */
    bool (*fits)(void *tier, uint64_t page_bytes);

    /* Ends all requests; done() of each runs before. A tier that does not answer has @wait_ms to end. */
    void (*free)(void *tier, uint64_t wait_ms);

    /* A tier of the host: */
    void (*status)(void *tier, struct tier_status *ret);
    int (*resume)(void *tier);                   /* opens it, if it is off. Return: 0; -EALREADY: it is not */
    void (*expire)(void *tier, uint64_t now_ms); /* ends requests whose deadline passed */
    /* False: it does not have the page. */
    bool (*has)(void *tier, const char *tenant, const struct chunk_key *key);
    /*
     * The oldest pages that left the tier, but not by TIER_DROP, or since it went off. The caller frees them.
     * NULL: none. *ret_is_incomplete: whether some were not named since the last call.
     */
    struct tier_removed *(*take_removed)(void *tier, bool *ret_is_incomplete);
    /*
     * The filter over a tenant's pages that clients see (proto/bloom.h). @wants: the tenant has a session, so
     * it gets a filter soon. *ret_is_unknown: until then, clients have to ask. Return: the filter's number,
     * which changes when it is made anew; 0: there is none.
     */
    uint64_t (*filter)(void *tier, const char *tenant, bool wants, uint64_t now_ms, bool *ret_is_unknown);
    /* A descriptor of it, read-only; @ret_fd: the caller's. Return: 0; -ENOENT: none; -EMFILE. */
    int (*open_filter)(void *tier, const char *tenant, int *ret_fd, size_t *ret_bytes, uint64_t *ret_object);

    /* A shared tier: */
    bool (*is_ready)(void *tier); /* whether requests are taken now */
    void (*make_name)(void *tier, const struct tier_group *g, const struct chunk_key *key,
                      uint8_t ret[static TIER_NAME_BYTES]);
    int (*look)(void *tier, struct tier_look *l);   /* Return: as submit() */
    int (*touch)(void *tier, struct tier_touch *t); /* Return: as submit(); NULL: pages live for ever */
    /* How often the tier may have lost pages. It rises; NULL: never. */
    uint64_t (*losses)(void *tier);
    /* Whether a PUT with this result says nothing about the next one, which has its place elsewhere. */
    bool (*is_partial)(void *tier, int result);
};
