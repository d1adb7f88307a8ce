/*
 * Moments of live keys and values, as clients that opted in report them: merged per model and tenant, so that
 * an operator who does not trust a tenant leaves it out. Bounded in all (`moments-bytes`, 0: nothing is
 * taken). alloc/moments.h checks what comes; a report counts LIVE_TOKENS_MAX tokens at most, so that one
 * report does not drown the others.
 *
 * Moments are megabytes, so threads add them up: the list and its accounts are the loop's, the sums of an
 * entry are whose lock it is. An entry stays while somebody has it open.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/geometry.h"

struct errmsg;
struct moments;
struct tenant;

#define LIVE_TOKENS_MAX 1048576

struct live_moments {
    struct live_moments *next;
    uint8_t model_digest[DIGEST_BYTES];
    char tenant[64];
    uint64_t bytes;
    uint32_t n_users;             /* the loop's: jobs that have it open */
    atomic_uint_fast64_t reports; /* 0: no moments yet */
    pthread_mutex_t lock;         /* of moments */
    struct moments *moments;
};

struct live_set { /* the loop's */
    struct live_moments *first;
    uint64_t bytes;
};

/**
 * live_open() - where moments of a tenant and model are added up, made if it is new
 *
 * On the loop; live_close() it. Return: 0; -EOPNOTSUPP: switched off; -ENOSPC: no room for @bytes more;
 * -ENOMEM.
 */
int live_open(struct live_set *s, const char *tenant, const uint8_t *model_digest, uint64_t bytes,
              uint64_t bytes_max, struct live_moments **ret, struct errmsg *e);
void live_close(struct live_set *s, struct live_moments *x); /* one without a report goes */

/**
 * live_check() - whether parsed moments are of the session's model, and of a number of tokens that a report
 * may have Return: 0; -EINVAL.
 */
int live_check(const struct moments *m, const uint8_t *model_digest, const uint8_t *geometry_digest,
               struct errmsg *e);

/* Adds a report, on any thread. @m: taken over on success. Return: 0; -EINVAL: of another kind than what is
 * there. */
int live_add(struct live_moments *x, struct moments *m, struct errmsg *e);

/**
 * live_select() - what was reported of a model by the tenants named, opened
 * @tenants: [n]; n 0: all
 * @ret:     [*ret_n], the caller live_close()s each and frees the array
 *
 * On the loop. Return: 0; -ENODATA: nothing; -ENOMEM.
 */
int live_select(struct live_set *s, const uint8_t *model_digest, char *const *tenants, size_t n,
                struct live_moments ***ret, size_t *ret_n, struct errmsg *e);

/* Adds what @x has to *@sum, which is made if it is NULL, on any thread. Return: 0; -EINVAL: of another kind;
 * -ENOMEM. */
int live_sum(struct live_moments *x, struct moments **sum, uint64_t *reports, struct errmsg *e);

void live_deinit(struct live_set *s); /* no thread has any of it */
