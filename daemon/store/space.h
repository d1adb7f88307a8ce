/*
 * A space is the pages of one (table, shard) of all tenants. The structure has their layout, and the counts
 * that decide when a table may retire.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "gpu/page_layout.h"

struct table_entry;

struct space {
    struct space *next;          /* of the table */
    struct space *next_of_shard; /* with the same place in the table's by_shard */
    uint32_t n_groups;           /* of all tenants: without, the space may be freed */
    struct table_entry *table;
    uint64_t id; /* order of creation, the cursor of STATUS */
    uint8_t table_digest[DIGEST_BYTES];
    struct page_layout layout;
    uint64_t n_pages;               /* committed */
    uint64_t n_leased, n_evictions; /* since the start */
    uint64_t n_busy;                /* slots reserved or held */
    bool leaves_first;              /* its table is being retired: evicted before all other pages */
};
