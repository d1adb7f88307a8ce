/*
 * An account: everything that the processes of one name use, over all their connections, sessions and
 * devices. The name follows from a process's credentials and the configuration (tenant_rules.h): "uid-1000",
 * or the name of a section. A tenant is one account on one device.
 *
 * Limits that must leave room for other accounts are checked against these counts. The files that own the
 * counted things change the counts.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/config/limits.h"
#include "daemon/loop/log.h"
#include "daemon/loop/work.h"
#include "daemon/tier/tier.h"

struct errmsg;
struct journal;

struct accounts;

struct account {
    struct accounts *accounts;
    struct account *next;
    char name[ACCOUNT_NAME_BYTES];
    /* in records of sessions and extents; 0: the account is "uid-N"; else see struct journal_name */
    uint32_t number;
    uint32_t uid;    /* N of "uid-N" */
    bool isolated;   /* false: a member is uid 0 or the daemon's uid, which can write memory that is shared */
    uint32_t n_refs; /* connections, tenants */
    uint32_t n_connections; /* of clients; those of operators have a limit of their own */
    uint32_t n_sessions;
    uint32_t n_groups;           /* of its tenants */
    uint32_t n_lease_places;     /* in the tables of all sessions, used or not */
    uint32_t n_leases, n_leased; /* leases of all sessions, and their pages: lease.h */
    uint32_t n_extent_waits;     /* requests that wait for an extent of the host */
    uint32_t n_raw_stages;       /* pages on their way between threads and GPUs */
    struct log_limit log;
    uint64_t waiting_bytes;       /* that its requests keep while they wait */
    uint64_t arena_bytes;         /* of its sessions, and of ended ones until a thread has freed the memory */
    struct fair_share loop_share; /* of the event loop: all connections */
    struct work_share work_share; /* of the threads: all requests */
    struct tier_share tier_shares[TIERS_MAX]; /* of the slower tiers, by their numbers */
};

struct accounts {
    struct account *list;
    uint32_t n;
    struct journal *journal; /* has the names of accounts as long as an account exists; borrowed */
    uint64_t arena_bytes;    /* of all accounts */
    uint64_t waiting_bytes;  /* likewise */
};

/*
 * The account of a name, created if it is new, with a reference for the caller. @name: "uid-N" or the name of
 * a section, checked. Return: 0; -ENOSPC: the journal has no room for more names; -ENOMEM.
 */
int accounts_get_named(struct accounts *as, const char *name, struct account **ret, struct errmsg *e);

/* The account "uid-N" of @uid, likewise. */
int accounts_get(struct accounts *as, uid_t uid, struct account **ret, struct errmsg *e);

/* The account that the record of an earlier process names. Return: 0; -EBADMSG: no such account; -ENOMEM. */
int accounts_get_recorded(struct accounts *as, uint32_t uid, uint32_t number, struct account **ret,
                          struct errmsg *e);

/* At the end of a restore: removes the names of the journal that no account has. */
void accounts_drop_names(struct accounts *as);

/* Whether a record with these fields is of @a. */
static inline bool account_is_recorded(const struct account *a, uint32_t uid, uint32_t number)
{
    return a->number == number && (number != 0 || a->uid == uid);
}

/* A process of @uid uses the account. */
void account_note_member(struct account *a, uid_t uid);

static inline struct account *account_ref(struct account *a)
{
    a->n_refs++;
    return a;
}

/**
 * account_may_take() - whether an account may have one more of something that all accounts share
 * @n:     what the account has
 * @n_all: what all accounts have
 * @max:   of all accounts
 * @share: the most that one account may have
 *
 * The last eighth of @max is for accounts that have at most 1/64 of @max, so that few accounts cannot take
 * everything, whatever @share is.
 */
bool account_may_take(uint64_t n, uint64_t n_all, uint64_t max, uint64_t share);

/* Counts an arena; -@bytes for its end. */
static inline void account_add_arena(struct account *a, uint64_t bytes)
{
    a->arena_bytes += bytes;
    a->accounts->arena_bytes += bytes;
}

/* Counts what a request keeps while it waits; -@bytes for its end. */
static inline void account_add_waiting(struct account *a, uint64_t bytes)
{
    a->waiting_bytes += bytes;
    a->accounts->waiting_bytes += bytes;
}

/* Frees the account with its last reference. NULL is allowed; returns NULL. */
struct account *account_unref(struct account *a);
