/*
 * A request that asks the cluster which of its pages it has, before fetch_wait_begin() fetches the leading
 * run of them. One question for all pages that are neither in memory nor on the disk.
 */
#pragma once

struct fetch_wait_run;
struct page_context;
struct request;

/**
 * fetch_look_begin() - ask the cluster
 * @again: the handler, called again later, with the answer in request.in_tier
 *
 * Does nothing if no tenant of the cluster asks, or no page is missing. Return: 0: continue; REQUEST_PENDING:
 * return it.
 */
int fetch_look_begin(struct request *rq, const struct page_context *c, const struct fetch_wait_run *run,
                     int (*again)(struct request *rq));
