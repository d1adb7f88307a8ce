/*
 * A pool on a GPU over the daemon's death: descriptors and records are in the supervisor's store, the memory
 * is the driver's. kvcobrad is killed, except where a case ends it in order.
 */
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/store/slot.h"
#include "tests/e2e/gpu_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "gpu_restart";

enum { PAGES = 200 }; /* more than an extent takes */

static void begin(const char *const *more)
{
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    supervisor_begin(gpu_args(more));
    raw_activate_table(raw_table);
}

static void finish(void)
{
    supervisor_finish();
    raw_table = table_unref(raw_table);
}

static struct gpu_client opened(void)
{
    struct gpu_client a = gpu_client_new();

    CU_ASSERT_EQUAL_FATAL(gpu_open(&a, GPU_UUID), 0);
    return a;
}

static void kill_and_start(void)
{
    supervisor_kill();
    CU_ASSERT_FATAL(supervisor_again());
}

/* Leases a page, repeated until the mover runs again. */
static int lease_soon(struct gpu_client *a, uint64_t n, const struct raw_slot *s, uint64_t *ret_lease)
{
    int r = gpu_lease(a, n, s, ret_lease);

    for (struct wait w = wait_begin(); r == -EAGAIN && wait_again(&w);)
        r = gpu_lease(a, n, s, ret_lease);
    return r;
}

static void test_pages_survive_bit_identical(void)
{
    static struct raw_slot s[PAGES];
    struct gpu_client writer, reader;
    struct raw_slot again;
    uint64_t last = 0;

    begin(NULL);
    writer = opened();
    for (unsigned i = 0; i < PAGES; i++) {
        s[i] = gpu_publish(&writer, i + 1, NULL);
        last = s[i].generation > last ? s[i].generation : last;
    }
    CU_ASSERT_EQUAL(supervisor_stored("kvc-gpu-"), 2);
    CU_ASSERT_EQUAL(supervisor_stored("kvc-pages-"), 0);
    CU_ASSERT_TRUE(gpu_client_end(&writer));
    kill_and_start();
    CU_ASSERT_EQUAL(gpu_status().pages, PAGES);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 0);
    reader = opened();
    for (unsigned i = 0; i < PAGES; i++) {
        CU_ASSERT_EQUAL_FATAL(lease_soon(&reader, i + 1, &s[i], NULL), 0);
        CU_ASSERT_TRUE_FATAL(gpu_reads(&reader, i + 1, &s[i]));
    }
    CU_ASSERT_EQUAL(gpu_damaged_pages(), 0);
    again = gpu_reserve_soon(&reader, 9999);
    CU_ASSERT_EQUAL(again.err, 0);
    CU_ASSERT_TRUE(again.generation > last);
    for (unsigned i = 0; i < PAGES; i++)
        CU_ASSERT_TRUE_FATAL(again.slot != s[i].slot);
    CU_ASSERT_TRUE(gpu_client_end(&reader));
    finish();
}

/* Also before a lease that RESERVE and COMMIT of an existing key give. */
static void test_checked_before_every_first_lease(void)
{
    struct gpu_client a, b;
    struct raw_slot s, own, found;
    int r;

    begin(NULL);
    a = opened();
    s = gpu_publish(&a, 1, NULL);
    gpu_damage(&a, &s);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    kill_and_start();
    b = opened();
    found = gpu_reserve_soon(&b, 1); /* the damaged page was dropped, so its key can be reserved */
    CU_ASSERT_EQUAL(found.err, 0);
    CU_ASSERT_FALSE(found.exists);
    CU_ASSERT_EQUAL(gpu_damaged_pages(), 1);
    CU_ASSERT_EQUAL(gpu_fill(&b, 1, &found), 0);
    CU_ASSERT_EQUAL(gpu_commit(&b, 1, &found, NULL), 0);
    CU_ASSERT_TRUE(gpu_client_end(&b));

    a = opened(); /* a reservation older than the page, committed after the restart */
    b = opened();
    own = gpu_reserve_soon(&a, 2);
    s = gpu_publish(&b, 2, NULL);
    CU_ASSERT_EQUAL(gpu_fill(&a, 2, &own), 0);
    gpu_damage(&b, &s);
    CU_ASSERT_TRUE(gpu_client_end(&b));
    supervisor_kill();
    gpu_disconnect(&a);
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_EQUAL(gpu_resume(&a), 0);
    for (struct wait w = wait_begin(); (r = gpu_commit(&a, 2, &own, NULL)) == -EAGAIN && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(r, 0);
    CU_ASSERT_EQUAL(gpu_damaged_pages(), 2);
    CU_ASSERT_EQUAL(gpu_status().pages, 2);
    CU_ASSERT_TRUE(gpu_reads(&a, 2, &own));
    CU_ASSERT_TRUE(gpu_client_end(&a));
    finish();
}

static void test_a_damaged_page_is_dropped(void)
{
    struct gpu_client a, b;
    struct raw_slot whole, damaged;

    begin(NULL);
    a = opened();
    whole = gpu_publish(&a, 1, NULL);
    damaged = gpu_publish(&a, 2, NULL);
    gpu_damage(&a, &damaged);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    kill_and_start();
    b = opened();
    CU_ASSERT_EQUAL(lease_soon(&b, 2, &damaged, NULL), -ENODATA);
    CU_ASSERT_EQUAL(gpu_damaged_pages(), 1);
    CU_ASSERT_EQUAL(gpu_status().pages, 1);
    CU_ASSERT_EQUAL(lease_soon(&b, 1, &whole, NULL), 0);
    CU_ASSERT_TRUE(gpu_reads(&b, 1, &whole));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    finish();
}

static void test_holds_and_reservations_resume(void)
{
    struct gpu_client a, b;
    struct raw_slot held, reserved, other;
    uint64_t lease;

    begin(NULL);
    a = opened();
    held = gpu_publish(&a, 1, &lease);
    reserved = gpu_reserve_soon(&a, 2);
    CU_ASSERT_EQUAL(gpu_fill(&a, 2, &reserved), 0);
    supervisor_kill();
    gpu_disconnect(&a);
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 2 * GPU_PAGE_BYTES);
    b = opened();
    other = gpu_reserve_soon(&b, 3);
    CU_ASSERT_TRUE(other.err == 0 && other.slot != held.slot && other.slot != reserved.slot);
    CU_ASSERT_EQUAL(gpu_resume(&a), 0);
    CU_ASSERT_EQUAL(gpu_commit(&a, 2, &reserved, NULL), 0);
    CU_ASSERT_EQUAL(gpu_keep(&a, lease), 0);
    CU_ASSERT_EQUAL(lease_soon(&b, 2, &reserved, NULL), 0);
    CU_ASSERT_TRUE(gpu_reads(&b, 2, &reserved));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    CU_ASSERT_EQUAL(gpu_status().held_bytes, GPU_PAGE_BYTES); /* the lease from before the restart */
    CU_ASSERT_TRUE(gpu_client_end(&a));
    finish();
}

/* Changes the stored record of a reserved slot, as if a job were copying to it. */
static void record_is_being_copied(const struct raw_slot *s)
{
    int fd = supervisor_stored_fd("kvc-slots-");
    off_t bytes = lseek(fd, 0, SEEK_END);
    struct slot_records r = {.data = mmap(NULL, (size_t) bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)};
    bool found = false;

    assert(fd >= 0 && bytes > 0 && r.data != MAP_FAILED);
    r.n_units = slot_records_head(&r)->n_units;
    r.unit_slots_max = slot_records_head(&r)->unit_bytes / SLOT_ALIGN;
    for (uint32_t i = 0; i < GPU_SLOTS_PER_EXTENT / 4; i++) {
        struct slot *slot = &slot_records_slots(&r, 0)[i];

        if (slot->state == SLOT_RESERVED && slot->generation == s->generation) {
            slot->state = SLOT_COPYING;
            found = true;
        }
    }
    CU_ASSERT_TRUE(found);
    (void) munmap(r.data, (size_t) bytes);
}

/* The daemon died while the mover wrote: the slot is in quarantine, and free after a delay. */
static void test_daemon_died_during_copy(void)
{
    struct gpu_client a;
    struct raw_slot page, s;

    begin((const char *const[]){"--gpu-reuse-ms=1000", NULL});
    a = opened();
    page = gpu_publish(&a, 1, NULL);
    s = gpu_reserve_soon(&a, 2);
    supervisor_kill();
    record_is_being_copied(&s);
    gpu_disconnect(&a);
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 2 * GPU_PAGE_BYTES);
    CU_ASSERT_EQUAL(gpu_resume(&a), 0);
    CU_ASSERT_EQUAL(gpu_commit(&a, 2, &s, NULL), -ESTALE);
    CU_ASSERT_EQUAL(gpu_bye(&a), 0);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, GPU_PAGE_BYTES);
    kill_and_start(); /* the second restart: the slot still waits */
    CU_ASSERT_EQUAL(gpu_status().held_bytes, GPU_PAGE_BYTES);
    gpu_wait_for_held(0);
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 0);
    CU_ASSERT_EQUAL(gpu_open(&a, GPU_UUID), 0);
    CU_ASSERT_EQUAL(lease_soon(&a, 1, &page, NULL), 0);
    s = gpu_reserve_soon(&a, 2);
    CU_ASSERT_EQUAL(s.extent, page.extent);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    finish();
}

/* The client dies while no daemon runs: the stored pidfd shows its exit. */
static void test_client_died_during_restart(void)
{
    struct gpu_client victim;

    gpu_list_process(0);
    begin(NULL);
    victim = opened();
    (void) gpu_publish(&victim, 1, NULL);
    CU_ASSERT_EQUAL(gpu_reserve_soon(&victim, 2).err, 0);
    supervisor_kill();
    gpu_list_process(victim.pid);
    gpu_client_kill(&victim);
    CU_ASSERT_FATAL(supervisor_again());
    gpu_wait_for_quarantined(2);
    gpu_stays_quarantined(2);
    kill_and_start(); /* the second restart: the slots still wait */
    gpu_wait_for_quarantined(2);
    gpu_list_process(0);
    gpu_wait_for_quarantined(0);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 0);
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 0);
    CU_ASSERT_EQUAL(gpu_status().pages, 1);
    finish();
}

/* Neither the process nor its stored pidfd exists: the end of its kernels is unknown. */
static void test_client_without_process_and_pidfd(void)
{
    struct gpu_client victim, reader;
    struct raw_slot s;

    gpu_list_process(0);
    begin(NULL);
    victim = opened();
    s = gpu_publish(&victim, 1, NULL);
    supervisor_kill();
    gpu_client_kill(&victim);
    supervisor_lose("kvc-pid-");
    CU_ASSERT_FATAL(supervisor_again());
    gpu_wait_for_extents(0); /* retired, empty, freed */
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 0);
    CU_ASSERT_EQUAL(gpu_status().pages, 0);
    reader = opened();
    CU_ASSERT_EQUAL(lease_soon(&reader, 1, &s, NULL), -ENODATA);
    (void) gpu_publish(&reader, 1, NULL);
    CU_ASSERT_TRUE(gpu_client_end(&reader));
    CU_ASSERT_EQUAL(supervisor_stored("kvc-gpu-"), 1);
    finish();
}

static void test_a_retired_extent_stays_retired(void)
{
    struct gpu_client victim, holder;
    struct raw_slot page, next;

    gpu_list_process(0);
    assert(setenv("STANDIN_NO_LIST", "1", 1) == 0);
    begin(NULL);
    victim = opened();
    holder = opened();
    page = gpu_publish(&victim, 1, NULL);
    CU_ASSERT_EQUAL(gpu_reserve_soon(&victim, 2).err, 0);
    CU_ASSERT_EQUAL(gpu_lease(&holder, 1, &page, NULL), 0);
    gpu_client_kill(&victim);
    gpu_wait_for_held(1);
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 1);
    supervisor_kill();
    gpu_disconnect(&holder);
    assert(unsetenv("STANDIN_NO_LIST") == 0);
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 1);
    CU_ASSERT_EQUAL(gpu_resume(&holder), 0);
    next = gpu_publish(&holder, 2, NULL);
    CU_ASSERT_NOT_EQUAL(next.extent, page.extent);
    CU_ASSERT_TRUE(gpu_reads(&holder, 1, &page));
    CU_ASSERT_TRUE(gpu_client_end(&holder));
    gpu_wait_for_extents(1);
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 0);
    finish();
}

/* A daemon that starts without a mover has no device: the stored state waits until a mover opens it. */
static void test_an_unavailable_device_keeps_its_pages(void)
{
    const char **args;
    static char option[160];
    char *path = option + strlen("--mover=");
    struct gpu_client a, b;
    struct raw_slot s;
    uint64_t lease;

    begin(NULL);
    a = opened();
    s = gpu_publish(&a, 1, &lease);
    supervisor_kill();
    gpu_disconnect(&a);
    (void) snprintf(option, sizeof(option), "--mover=%s/kvcobra-mover", raw_daemon.folder);
    args = (const char **) gpu_args(NULL); /* the supervisor's array of options */
    args[0] = option;
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_EQUAL(gpu_status().pages, 1);
    b = gpu_client_new();
    CU_ASSERT_EQUAL(gpu_open(&b, GPU_UUID), -ENODEV);
    CU_ASSERT_EQUAL(gpu_resume(&a), 0); /* an existing session stays */
    CU_ASSERT_EQUAL(gpu_lease(&a, 1, &s, NULL), -EAGAIN);
    CU_ASSERT_EQUAL(gpu_keep(&a, lease), 0);
    CU_ASSERT_EQUAL(gpu_status().pages, 1);
    CU_ASSERT_EQUAL(symlink(getenv("KVC_MOVER"), path), 0);
    CU_ASSERT_EQUAL(lease_soon(&a, 1, &s, NULL), 0);
    CU_ASSERT_TRUE(gpu_reads(&a, 1, &s));
    CU_ASSERT_EQUAL(gpu_open(&b, GPU_UUID), 0);
    CU_ASSERT_EQUAL(lease_soon(&b, 1, &s, NULL), 0);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    finish();
}

/* The mover dies during a check: the daemon repeats the check, and grants no page meanwhile. */
static void test_the_mover_dies_while_it_checks(void)
{
    struct gpu_client a, b;
    struct raw_slot s;
    struct gpu_status f;

    begin(NULL);
    a = opened();
    s = gpu_publish(&a, 1, NULL);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    kill_and_start();
    b = opened();
    f = gpu_status();
    CU_ASSERT_TRUE_FATAL(f.mover_pid > 0);
    CU_ASSERT_EQUAL(kill((pid_t) f.mover_pid, SIGKILL), 0);
    CU_ASSERT_EQUAL(lease_soon(&b, 1, &s, NULL), 0);
    CU_ASSERT_TRUE(gpu_reads(&b, 1, &s));
    CU_ASSERT_EQUAL(gpu_damaged_pages(), 0);
    CU_ASSERT_TRUE(gpu_client_end(&b));
    finish();
}

/*
 * An orderly end and start, and twenty kills with work between: everything that was published
 * is there and right.
 */
static void test_kill_loop(void)
{
    enum { ROUNDS = 20, EACH = 7 };
    static struct raw_slot s[ROUNDS * EACH];
    struct gpu_client a;
    uint64_t last = 0;

    begin(NULL);
    for (unsigned round = 0; round < ROUNDS; round++) {
        a = opened();
        for (unsigned i = 0; i < EACH; i++) {
            s[round * EACH + i] = gpu_publish(&a, 1 + round * EACH + i, NULL);
            CU_ASSERT_TRUE_FATAL(s[round * EACH + i].generation > last);
            last = s[round * EACH + i].generation;
        }
        for (unsigned i = 0; i < (round + 1) * EACH; i++)
            CU_ASSERT_EQUAL_FATAL(lease_soon(&a, 1 + i, &s[i], NULL), 0);
        if (round == ROUNDS / 2) {
            supervisor_end();
            CU_ASSERT_FATAL(supervisor_again());
        } else {
            kill_and_start();
        }
        gpu_client_kill(&a);
    }
    a = opened();
    for (unsigned i = 0; i < ROUNDS * EACH; i++) {
        CU_ASSERT_EQUAL_FATAL(lease_soon(&a, 1 + i, &s[i], NULL), 0);
        CU_ASSERT_TRUE_FATAL(gpu_reads(&a, 1 + i, &s[i]));
    }
    CU_ASSERT_TRUE(gpu_client_end(&a));
    finish();
}

const struct test_case test_cases[] = {
    TEST(test_pages_survive_bit_identical),
    TEST(test_checked_before_every_first_lease),
    TEST(test_a_damaged_page_is_dropped),
    TEST(test_holds_and_reservations_resume),
    TEST(test_daemon_died_during_copy),
    TEST(test_client_died_during_restart),
    TEST(test_client_without_process_and_pidfd),
    TEST(test_a_retired_extent_stays_retired),
    TEST(test_an_unavailable_device_keeps_its_pages),
    TEST(test_the_mover_dies_while_it_checks),
    TEST(test_kill_loop),
    TEST_END,
};
