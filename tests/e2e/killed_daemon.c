/*
 * kvcobrad that kills itself at a step of a fetch from the disk, linked with -Wl,--wrap. KVC_TEST_KILL names
 * a file. While the file exists, its text is the step that kills: "before FUNCTION" or "after FUNCTION".
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/store/page_check.h"
#include "daemon/store/store.h"
#include "daemon/tier/disk.h"
#include "daemon/tier/seal.h"

int __real_disk_queue_put(struct disk *d, struct tier_share *s, struct tier_request *r);
int __wrap_disk_queue_put(struct disk *d, struct tier_share *s, struct tier_request *r);
int __real_page_check(const uint8_t *page, const struct page_expectation *x, uint32_t *ret_crc,
                      struct errmsg *e);
int __wrap_page_check(const uint8_t *page, const struct page_expectation *x, uint32_t *ret_crc,
                      struct errmsg *e);
int __real_seal_open(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
                     size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e);
int __wrap_seal_open(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
                     size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e);
void __real_store_claim(const struct page_handle *h);
void __wrap_store_claim(const struct page_handle *h);
int __real_store_publish(struct store *st, const struct page_handle *h, const struct chunk_key *key,
                         uint32_t crc, struct errmsg *e);
int __wrap_store_publish(struct store *st, const struct page_handle *h, const struct chunk_key *key,
                         uint32_t crc, struct errmsg *e);
void __real_store_unhold(struct store *st, const struct page_handle *h);
void __wrap_store_unhold(struct store *st, const struct page_handle *h);

static void die_at(const char *step)
{
    const char *path = getenv("KVC_TEST_KILL");
    char text[64] = "";
    ssize_t n = -1;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (fd >= 0) {
        n = read(fd, text, sizeof(text) - 1);
        (void) close(fd);
    }
    if (n > 0 && strcmp(text, step) == 0)
        (void) raise(SIGKILL);
}

int __wrap_disk_queue_put(struct disk *d, struct tier_share *s, struct tier_request *r)
{
    bool reads = r->kind == TIER_GET;
    int ret;

    if (reads)
        die_at("before disk_queue_put");
    ret = __real_disk_queue_put(d, s, r);
    if (reads)
        die_at("after disk_queue_put");
    return ret;
}

int __wrap_page_check(const uint8_t *page, const struct page_expectation *x, uint32_t *ret_crc,
                      struct errmsg *e)
{
    int r = __real_page_check(page, x, ret_crc, e);

    die_at("after page_check");
    return r;
}

int __wrap_seal_open(const struct keyring *k, const struct seal_subject *s, const uint8_t *sealed,
                     size_t sealed_bytes, uint8_t *ret_page, size_t page_bytes, struct errmsg *e)
{
    int r;

    die_at("before seal_open");
    r = __real_seal_open(k, s, sealed, sealed_bytes, ret_page, page_bytes, e);
    die_at("after seal_open");
    return r;
}

void __wrap_store_claim(const struct page_handle *h)
{
    die_at("before store_claim");
    __real_store_claim(h);
    die_at("after store_claim");
}

int __wrap_store_publish(struct store *st, const struct page_handle *h, const struct chunk_key *key,
                         uint32_t crc, struct errmsg *e)
{
    int r;

    die_at("before store_publish");
    r = __real_store_publish(st, h, key, crc, e);
    die_at("after store_publish");
    return r;
}

void __wrap_store_unhold(struct store *st, const struct page_handle *h)
{
    die_at("before store_unhold");
    __real_store_unhold(st, h);
    die_at("after store_unhold");
}
