/* See disk_fixture.h. */
#include "tests/unit/daemon/disk_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/splitmix64.h"
#include "daemon/loop/ev.h"
#include "daemon/tier/disk_buffers.h"
#include "daemon/tier/keyring.h"
#include "daemon/tier/seal.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tests/unit/daemon/faulty_engine.h"

void disk_fixture_init(struct disk_fixture *f)
{
    static const uint8_t secret[KEYRING_SECRET_BYTES] = {7};

    *f = (struct disk_fixture){.quota_bytes = UINT64_MAX};
    (void) snprintf(f->folder, sizeof(f->folder), "/tmp/kvcobra-disk-XXXXXX");
    assert(mkdtemp(f->folder));
    assert(keyring_of_host(secret, &f->ring, NULL) == 0 && ev_new(&f->ev, NULL) == 0);
    f->options = (struct disk_options){.folder = {.path = f->folder,
                                                  .fleet = keyring_fleet(f->ring),
                                                  .bytes = 4 * FIXTURE_SEGMENT_BYTES,
                                                  .segment_bytes = FIXTURE_SEGMENT_BYTES},
                                       .buffer_bytes = 16 * DISK_BUFFER_UNIT_BYTES,
                                       .depth = 8,
                                       .n_requests_max = 64,
                                       .n_filters_max = 8,
                                       .check_ms = 10,
                                       .stall_ms = 1000000,
                                       .engines = faulty_engines};
    faulty_reset();
}

void disk_fixture_deinit(struct disk_fixture *f)
{
    static const char *const files[] = {"records", "records.new", "pages"};
    char path[128];

    disk_fixture_close(f);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        (void) snprintf(path, sizeof(path), "%s/%s", f->folder, files[i]);
        (void) unlink(path);
    }
    (void) rmdir(f->folder);
    f->ev = ev_free(f->ev);
    f->ring = keyring_unref(f->ring);
}

struct disk_status disk_fixture_status(const struct disk_fixture *f)
{
    struct disk_status s;

    disk_status(f->disk, &s);
    return s;
}

enum tier_state disk_fixture_wait(struct disk_fixture *f, enum tier_state not_this)
{
    struct disk_status s = disk_fixture_status(f);

    for (struct wait w = wait_begin(); (s.state == not_this || s.state == TIER_OPENING) && wait_again(&w);)
        s = disk_fixture_status(f);
    return s.state;
}

void disk_fixture_open(struct disk_fixture *f)
{
    struct errmsg e = {""};

    if (disk_new(f->ev, &f->options, &f->disk, &e) < 0) {
        (void) fprintf(stderr, "%s\n", e.text);
        abort();
    }
    (void) disk_fixture_wait(f, TIER_OPENING);
    for (unsigned i = 0; i < 3; i++) {
        char tenant[TIER_TENANT_BYTES];
        bool is_unknown;

        (void) snprintf(tenant, sizeof(tenant), "tenant-%u", i);
        (void) disk_tier_ops.filter(f->disk, tenant, true, 1, &is_unknown);
    }
}

void disk_fixture_close(struct disk_fixture *f)
{
    f->disk = disk_free(f->disk, WAIT_LIMIT_S * 1000);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT(f->shares[i].n_requests == 0 && f->shares[i].waiting.n_users == 0 &&
                  f->shares[i].writes.n_users == 0 && f->shares[i].ended.n_users == 0);
}

/* ---- pages ---- */

struct tier_group disk_fixture_group(unsigned tenant)
{
    struct tier_group g;
    char name[16];

    (void) snprintf(name, sizeof(name), "tenant-%u", tenant);
    tier_group_init(&g, name);
    memset(g.table_digest, 0x40, sizeof(g.table_digest));
    g.n_heads = 2;
    g.page_bytes = FIXTURE_PAGE_BYTES;
    return g;
}

struct chunk_key disk_fixture_key(uint64_t number)
{
    struct chunk_key k;
    uint64_t words[2] = {splitmix64_mix(number + 1), splitmix64_mix(number + (UINT64_C(1) << 32))};

    memcpy(k.bytes, words, sizeof(words));
    return k;
}

static void disk_fixture_make_page(unsigned tenant, uint64_t number, uint8_t ret[static FIXTURE_PAGE_BYTES])
{
    struct page_header h = {.format_version = PAGE_FORMAT_VERSION,
                            .codec_id = PAGE_CODEC_HALF_TILES,
                            .key = disk_fixture_key(number),
                            .n_heads = 2,
                            .n_tokens = 64,
                            .payload_bytes = FIXTURE_PAGE_BYTES - 128};
    uint64_t state = number << 8 | tenant;

    page_header_store(&h, ret);
    for (size_t i = 128; i < FIXTURE_PAGE_BYTES; i += 8) {
        uint64_t v = splitmix64_next(&state);

        memcpy(ret + i, &v, 8);
    }
}

/* ---- requests ---- */

static void disk_fixture_done(struct tier_request *r)
{
    struct fixture_page *p = (struct fixture_page *) r;

    CU_ASSERT_FALSE(p->is_done);
    p->is_done = true;
    ev_stop(p->fixture->ev);
}

int disk_fixture_begin(struct disk_fixture *f, struct fixture_page *p, enum tier_kind kind, unsigned tenant,
                       uint64_t number)
{
    uint8_t page[FIXTURE_PAGE_BYTES];
    int r;

    *p = (struct fixture_page){.fixture = f, .number = number, .tenant = tenant};
    p->request = (struct tier_request){.kind = kind,
                                       .group = disk_fixture_group(tenant),
                                       .key = disk_fixture_key(number),
                                       .quota_bytes = f->quota_bytes,
                                       .deadline_ms = FIXTURE_DEADLINE_MS,
                                       .done = disk_fixture_done};
    if (kind == TIER_PUT) {
        const struct seal_subject s = {.tenant = p->request.group.tenant, .key = &p->request.key};

        p->request.data = disk_tier_ops.take(f->disk, FIXTURE_PAGE_BYTES);
        if (!p->request.data)
            return -ENOBUFS;
        disk_fixture_make_page(tenant, number, page);
        seal_page(f->ring, &s, page, FIXTURE_PAGE_BYTES, p->request.data);
    }

    r = disk_tier_ops.submit(f->disk, &f->shares[tenant], &p->request);
    if (r < 0 && kind == TIER_PUT)
        disk_tier_ops.give_back(f->disk, p->request.data);
    return r;
}

void disk_fixture_finish(struct fixture_page *p)
{
    while (!p->is_done)
        CU_ASSERT_EQUAL_FATAL(ev_run(p->fixture->ev), 0);
}

int disk_fixture_write(struct disk_fixture *f, unsigned tenant, uint64_t number)
{
    struct fixture_page p;
    int r = disk_fixture_begin(f, &p, TIER_PUT, tenant, number);

    if (r < 0)
        return r;
    disk_fixture_finish(&p);
    CU_ASSERT_PTR_NULL(p.request.data);
    return p.request.result;
}

int disk_fixture_open_page(struct fixture_page *p)
{
    const struct seal_subject s = {.tenant = p->request.group.tenant, .key = &p->request.key};
    uint8_t page[FIXTURE_PAGE_BYTES], expected[FIXTURE_PAGE_BYTES];
    int r;

    CU_ASSERT_EQUAL(p->request.data != NULL, p->request.result == 0);
    if (p->request.result < 0)
        return p->request.result;

    r = seal_open(p->fixture->ring, &s, p->request.data, seal_bytes(FIXTURE_PAGE_BYTES), page,
                  FIXTURE_PAGE_BYTES, NULL);
    disk_tier_ops.give_back(p->fixture->disk, p->request.data);
    if (r == 0) {
        disk_fixture_make_page(p->tenant, p->number, expected);
        CU_ASSERT_FATAL(memcmp(page, expected, sizeof(page)) == 0); /* never a wrong page */
    }
    return r;
}

int disk_fixture_read(struct disk_fixture *f, unsigned tenant, uint64_t number)
{
    struct fixture_page p;
    int r = disk_fixture_begin(f, &p, TIER_GET, tenant, number);

    if (r < 0)
        return r;
    disk_fixture_finish(&p);
    return disk_fixture_open_page(&p);
}

void disk_fixture_damage(const struct disk_fixture *f, uint64_t offset, uint8_t flip)
{
    char path[128];
    uint8_t byte;
    int fd;

    (void) snprintf(path, sizeof(path), "%s/pages", f->folder);
    fd = open(path, O_RDWR);
    assert(fd >= 0 && pread(fd, &byte, 1, (off_t) offset) == 1);
    byte ^= flip;
    assert(pwrite(fd, &byte, 1, (off_t) offset) == 1 && close(fd) == 0);
}

void disk_fixture_expect_buffers(struct disk_fixture *f)
{
    uint32_t n_writes = (uint32_t) (f->options.buffer_bytes / DISK_BUFFER_UNIT_BYTES / 2), n = 0;
    uint8_t *taken[64];

    for (struct wait w = wait_begin(); disk_fixture_status(f).n_in_flight > 0 && wait_again(&w);)
        ;
    while (n < 64 && (taken[n] = disk_tier_ops.take(f->disk, FIXTURE_PAGE_BYTES)))
        n++;
    CU_ASSERT_EQUAL(n, n_writes); /* writes may take half of the memory */
    while (n > 0)
        disk_tier_ops.give_back(f->disk, taken[--n]);
}
