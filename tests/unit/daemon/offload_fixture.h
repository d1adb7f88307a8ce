/*
 * A disk tier below a store (daemon/offload/), with a loop, a thread and the faulty engine, without sessions
 * or messages. Pages have bytes that follow from a number, so a test knows what a page must be.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "alloc/table/table_types.h"
#include "daemon/config/config.h"
#include "daemon/offload/offload.h"
#include "daemon/offload/offload_state.h"
#include "daemon/store/device.h"
#include "daemon/store/space.h"
#include "daemon/tables/table_entry.h"
#include "tests/unit/daemon/store_numbers.h"

enum {
    OFFLOAD_PAGE_BYTES = 120064,
    OFFLOAD_DISK_SLOT_BYTES = 122880, /* sealed, rounded up to 4096 */
    OFFLOAD_SMALL_PAGE_BYTES = 2048,
    OFFLOAD_SEGMENT_BYTES = 1 << 20, /* the least that a tier chooses; 8 slots */
    OFFLOAD_SEGMENTS = 4,
    OFFLOAD_TENANTS_MAX = 40,
};

struct offload_fixture {
    char folder[64];
    struct config config;
    struct ev *ev;
    struct work *work;
    uint32_t n_work_items; /* that it takes; 0: 64 */
    struct keyring *ring;
    struct devices devices;
    struct pool_source source;
    struct tenant *tenants[OFFLOAD_TENANTS_MAX];
    unsigned n_tenants;
    struct table table;
    struct table_entry entry;
    struct space space;
    struct offload *offload;
};

/* A page that a test waits for. */
struct offload_arrival {
    struct offload_waiter waiter; /* first member */
    struct offload_fixture *fixture;
    uint32_t slot; /* held by this waiter, if it ended with a page */
    unsigned n_ended;
};

/* Memory for 64 pages, a disk for 32. Without offload_fixture_open() there is no tier. Asserts. */
void offload_fixture_init(struct offload_fixture *f, unsigned n_tenants, size_t page_bytes);

/* Starts the tier, and waits until it is ready or off. */
void offload_fixture_open(struct offload_fixture *f);

/* Ends the threads and the tier, as server.c does, and checks that nothing is left on its way. */
void offload_fixture_close(struct offload_fixture *f);

/* offload_fixture_close(), and the end of all pages; no page is held by the test. */
void offload_fixture_deinit(struct offload_fixture *f);

struct chunk_key offload_fixture_key(uint64_t number);
struct group *offload_fixture_group(struct offload_fixture *f, unsigned tenant);

/* Publishes page @number of class rest, held once. Asserts. Return: its slot. */
uint32_t offload_fixture_publish(struct offload_fixture *f, unsigned tenant, uint64_t number);

/* Whether the slot has page @number of @tenant, bit for bit. */
bool offload_fixture_is_page(struct offload_fixture *f, unsigned tenant, uint64_t number, uint32_t slot);

struct slot *offload_fixture_slot(struct offload_fixture *f, unsigned tenant, uint64_t number); /* or NULL */

/* Publishes @n pages from @first on which were used once, waits until they are written, and drops them. */
void offload_fixture_write_out(struct offload_fixture *f, unsigned tenant, uint64_t first, unsigned n);

/* Drops an unheld page from memory. */
void offload_fixture_drop(struct offload_fixture *f, unsigned tenant, uint64_t number);

struct offload_status offload_fixture_status(const struct offload_fixture *f);

/* Runs the loop until @is_done; requests come all the time. Asserts that it becomes true. */
void offload_fixture_run(struct offload_fixture *f, bool (*is_done)(struct offload_fixture *f));
bool offload_fixture_is_idle(struct offload_fixture *f); /* nothing waits to be written, or is on its way */
bool offload_fixture_is_off(struct offload_fixture *f);

/* Fetches a page. Return: of offload_fetch(). */
int offload_fixture_fetch(struct offload_fixture *f, struct offload_arrival *a, unsigned tenant,
                          uint64_t number);
void offload_fixture_await(struct offload_arrival *a); /* runs the loop until its wait has ended */

/* Fetches a page, compares it, and lets it go. Return: whether it arrived. */
bool offload_fixture_finds(struct offload_fixture *f, unsigned tenant, uint64_t number);
