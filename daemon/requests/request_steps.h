/*
 * A request that may have to wait for pages, as steps. A handler gives a plan; the driver calls the next step
 * that is not done:
 *
 *     resolve    what the message names, as it is now: session, model, table, pages
 *     recheck    compares pages of an earlier process with their checksums     recheck.c, recheck_gpu.c
 *     look       asks the shared tiers which pages they have                   fetch_look.c
 *     fetch      fetches pages that only slower tiers have                     fetch_wait.c
 *     act        does what the request is for
 *
 * A step that must wait hands the request to a job (job.h), which keeps what is done, and calls
 * rq->steps.go_on() when it has ended. Then the request is resolved anew, in one place, since sessions,
 * tables and pages may have changed. No other step runs twice, but one that needs a new extent
 * (extent_wait.h): it has undone what it did, and is tried again.
 */
#pragma once

#include <stddef.h>

#include "daemon/requests/fetch_wait.h"
#include "daemon/requests/pages.h"

struct step_plan {
    /* Return: 0; errno with a sentence. *ret: zeros at first; a request without a table leaves them. */
    int (*resolve)(struct request *rq, struct page_context *ret);
    /* Fills scratch->found with pages that act() may lease. Return: how many. NULL: none */
    size_t (*find)(struct request *rq, const struct page_context *c);
    /* The pages that may be fetched, and how long the request waits for them. NULL: none */
    struct fetch_wait_run (*run)(const struct request *rq);
    /* Return: that of the handler. */
    int (*act)(struct request *rq, const struct page_context *c);
};

/* For handlers. @plan: stays. Return: that of a handler. */
int request_steps_run(struct request *rq, const struct step_plan *plan);
