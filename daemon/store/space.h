/* A space: the pages of one (table, shard), all tenants together. Holds the layout and what counts against a
 * table. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "gpu/page_layout.h"

struct table_entry;

struct space {
    struct space *next; /* of the table */
    struct table_entry *table;
    uint64_t id; /* order of creation, for paging STATUS */
    uint8_t table_digest[DIGEST_BYTES];
    struct page_layout layout;
    uint64_t n_pages;               /* committed */
    uint64_t n_leased, n_evictions; /* since the start */
    uint64_t n_busy;                /* slots reserved or held */
    bool leaves_first;              /* its table is on the way out: evicted before all others */
};
