/*
 * A request that asks the shared tiers which of its pages they have, before fetch_wait_begin() fetches the
 * leading run of them. One question for all pages that are neither in memory nor on the disk.
 */
#pragma once

struct fetch_wait_run;
struct page_context;
struct request;

/**
 * fetch_look_begin() - ask the shared tiers
 *
 * Does nothing if none has pages of the tenant, or no page is missing. Return: 0: continue; REQUEST_PENDING:
 * the request goes on later, with the answer in request_steps.in_tier.
 */
int fetch_look_begin(struct request *rq, const struct page_context *c, const struct fetch_wait_run *run);
