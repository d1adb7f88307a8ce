/*
 * Moments of live keys and values that clients opted in to report, merged per model and tenant, so that an
 * operator can leave out a tenant. Joint ones (alloc/moments/moments.h) stay apart from others: a sum with
 * the others would not be joint. `moments-bytes` limits their sum; with 0 none are accepted.
 * alloc/moments/moments.h validates them; a report counts at most LIVE_TOKENS_MAX tokens, so that one report
 * does not outweigh the others.
 *
 * Moments are megabytes, so threads add them up: the loop owns the list and its accounts, the lock of an
 * entry guards its sums. A job opens an entry, which stays until the job closes it.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

struct errmsg;
struct moments;
struct tenant;

#define LIVE_TOKENS_MAX 1048576
/* An entry with more gives its tokens half their weight, so that it follows the traffic: a table needs some
 * ten thousand. */
#define LIVE_TOKENS_KEPT 1048576

struct live_moments {
    struct live_moments *next;
    uint8_t model_digest[DIGEST_BYTES];
    char tenant[64];
    bool joint;
    uint64_t bytes;
    uint32_t n_users;             /* only the loop uses it: jobs that have the entry open */
    atomic_uint_fast64_t reports; /* 0: no moments yet */
    pthread_mutex_t lock;         /* of moments */
    struct moments *moments;
};

struct live_set { /* only the loop uses it */
    struct live_moments *first;
    uint64_t bytes;
    uint64_t n_reports, n_refused; /* counted by requests/report.c */
};

/**
 * live_open() - open the entry of a tenant and model, created if it is new
 *
 * Called on the loop; the caller closes it with live_close(). Return: 0; -EOPNOTSUPP: switched off; -ENOSPC:
 * no room for @bytes more; -EDQUOT: the room is for other tenants; -ENOMEM.
 */
int live_open(struct live_set *s, const char *tenant, const uint8_t *model_digest, bool joint, uint64_t bytes,
              uint64_t bytes_max, struct live_moments **ret, struct errmsg *e);
void live_close(struct live_set *s, struct live_moments *x); /* frees an entry without a report */

/**
 * live_check() - check that parsed moments are of the session's model and have at most LIVE_TOKENS_MAX tokens
 * @joint: whether they must be joint
 *
 * Return: 0; -EINVAL.
 */
int live_check(const struct moments *m, const uint8_t *model_digest, const uint8_t *geometry_digest,
               bool joint, struct errmsg *e);

/*
 * Adds a report; called on any thread. @m: taken over on success. Return: 0; -EINVAL: not of the same
 * kind as earlier ones.
 */
int live_add(struct live_moments *x, struct moments *m, struct errmsg *e);

/**
 * live_select() - open the entries of a model
 * @tenants: [n] names; n 0: all tenants
 * @joint:   wants only joint ones; becomes false, and all are opened, if there are none
 * @ret:     [*ret_n], the caller closes each with live_close() and frees the array
 *
 * Called on the loop. Return: 0; -ENODATA: none; -ENOMEM.
 */
int live_select(struct live_set *s, const uint8_t *model_digest, char *const *tenants, size_t n, bool *joint,
                struct live_moments ***ret, size_t *ret_n, struct errmsg *e);

/*
 * Adds the moments of @x to *@sum, which is created, joint or not, if it is NULL; called on any thread.
 * Return: 0; -EINVAL: not of the same kind; -ENOMEM.
 */
int live_sum(struct live_moments *x, bool joint, struct moments **sum, uint64_t *reports, struct errmsg *e);

void live_deinit(struct live_set *s); /* when no thread uses an entry */
