/*
 * Moments of live keys and values, as clients that opted in report them: merged per model and tenant, so that an operator
 * who does not trust a tenant leaves it out. Bounded in all (`moments-bytes`, 0: nothing is taken). alloc/moments.h checks
 * what comes; a report counts LIVE_TOKENS_MAX tokens at most, so that one report does not drown the others.
 */
#pragma once

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
    uint64_t bytes, reports;
    struct moments *moments;
};

struct live_set {
    struct live_moments *first;
    uint64_t bytes;
};

/* Whether moments of this size could be taken from the tenant. Return: 0; -EOPNOTSUPP: switched off; -ENOSPC. */
int live_room(const struct live_set *s, const char *tenant, const uint8_t *model_digest, uint64_t bytes, uint64_t bytes_max,
              struct errmsg *e);

/**
 * live_check() - whether parsed moments are of the session's model, and of a number of tokens that a report may have
 * Return: 0; -EINVAL.
 */
int live_check(const struct moments *m, const uint8_t *model_digest, const uint8_t *geometry_digest, struct errmsg *e);

/* Adds a report. @m: taken over on success. Return: 0; -EINVAL: of another kind than what is there; see live_room(). */
int live_add(struct live_set *s, const char *tenant, struct moments *m, uint64_t bytes_max, struct errmsg *e);

/**
 * live_merge() - what was reported of a model by the tenants named
 * @tenants: [n]; n 0: all
 * Return: 0; -ENODATA: nothing; -ENOMEM.
 */
int live_merge(const struct live_set *s, const uint8_t *model_digest, char *const *tenants, size_t n,
               struct moments **ret_moments, uint64_t *ret_reports, struct errmsg *e);

void live_deinit(struct live_set *s);
