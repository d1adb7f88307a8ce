/*
 * A disk tier in a folder of /tmp with a loop, and pages whose bytes follow from a number: a test that
 * reads a page knows what it must be.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/disk.h"

enum {
    FIXTURE_PAGE_BYTES = 8000,
    FIXTURE_SLOT_BYTES = 8192,
    FIXTURE_SEGMENT_BYTES = 65536,
    FIXTURE_SLOTS = FIXTURE_SEGMENT_BYTES / FIXTURE_SLOT_BYTES,
};

#define FIXTURE_DEADLINE_MS                                                                                  \
    UINT64_C(1000000) /* of requests; the clock of disk_tier_ops.expire() is the test's */

struct disk_fixture {
    char folder[64];
    struct ev *ev;
    struct disk *disk;
    struct disk_options options;
    struct keyring *ring;
    struct tier_share shares[3];
    uint64_t quota_bytes;
};

struct fixture_page { /* what a request is for */
    struct tier_request request;
    struct disk_fixture *fixture;
    uint64_t number;
    unsigned tenant; /* "tenant-N", with share N */
    bool is_done;
};

/* A folder, and options for 4 segments and the faulty engine. Asserts. */
void disk_fixture_init(struct disk_fixture *f);
void disk_fixture_deinit(struct disk_fixture *f);

void disk_fixture_open(struct disk_fixture *f); /* starts the tier, and waits until it is ready or off */
void disk_fixture_close(struct disk_fixture *f);
enum tier_state disk_fixture_wait(struct disk_fixture *f, enum tier_state not_this); /* for another state */
struct disk_status disk_fixture_status(const struct disk_fixture *f);

struct tier_group disk_fixture_group(unsigned tenant);
struct chunk_key disk_fixture_key(uint64_t number);

/* Submits a request. Return: of disk_tier_ops.submit(); -ENOBUFS: no buffer. */
int disk_fixture_begin(struct disk_fixture *f, struct fixture_page *p, enum tier_kind kind, unsigned tenant,
                       uint64_t number);
void disk_fixture_finish(struct fixture_page *p); /* runs the loop until it is done */

/* Writes a page. Return: the result of the request, or of its submission. */
int disk_fixture_write(struct disk_fixture *f, unsigned tenant, uint64_t number);

/*
 * Reads a page and opens it. Return: 0: it is the page; -EBADMSG: the tier returned bytes that do not open;
 * else the result of the request. Asserts that no other page opens.
 */
int disk_fixture_read(struct disk_fixture *f, unsigned tenant, uint64_t number);
int disk_fixture_open_page(struct fixture_page *p); /* the same for a read that is done */

/* Waits until no operation runs, and asserts that all buffers are free. */
void disk_fixture_expect_buffers(struct disk_fixture *f);

/* Changes bytes of the file of pages: what another program or a failing disk does. */
void disk_fixture_damage(const struct disk_fixture *f, uint64_t offset, uint8_t flip);
