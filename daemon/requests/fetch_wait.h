/*
 * A request that waits for pages of a slower tier (offload.h): LEASE for a run of pages, APPEND_RAW that only
 * looks for one, PIN for those of a prompt. The job holds the pages of the run that are in memory, fetches
 * the others, and the request goes on when all have arrived, one is missing, or its time is over: it finds
 * the leading run in memory.
 *
 * Before, one question asks the shared tiers which of the pages they have that are neither in memory nor on
 * the disk (fetch_look.c).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/store/pool_types.h"
#include "proto/page.h"

struct page_context;
struct request;

struct fetch_wait_item {
    struct chunk_key key;
    unsigned page_class;
    struct page_handle page; /* if it is in memory; else PAGE_NONE */
};

struct fetch_wait_run {
    size_t n;
    uint32_t fetch_ms; /* how long the request waits, from its begin; 0: not at all */
    uint32_t
        compute_tokens_per_s; /* of the client, which does not wait for what it computes sooner; 0: any */
    bool goes_past_gaps;      /* a page that no tier has does not end the run */
    /* Page @i of the request, as it is now. Return: 0; -EINVAL with a sentence: a bad key or class. */
    int (*item)(struct request *rq, const struct page_context *c, size_t i, struct fetch_wait_item *ret);
};

/* At which the client would compute the pages; 0: it does not say. */
uint64_t fetch_wait_client_bytes_per_s(const struct fetch_wait_run *run, const struct page_context *c);

/**
 * fetch_wait_begin() - fetch the pages of a request that only a slower tier has
 *
 * Failures end the run, so they are no errors here. Return: 0: continue; REQUEST_PENDING: the request
 * goes on later; -EINVAL: see item().
 */
int fetch_wait_begin(struct request *rq, const struct page_context *c, const struct fetch_wait_run *run);

/**
 * fetch_look_begin() - ask the shared tiers which pages of the run they have
 *
 * Does nothing if none has pages of the tenant, or no page is missing. Return: 0: continue; REQUEST_PENDING:
 * the request goes on later, with the answer in request_steps.in_tier.
 */
int fetch_look_begin(struct request *rq, const struct page_context *c, const struct fetch_wait_run *run);
