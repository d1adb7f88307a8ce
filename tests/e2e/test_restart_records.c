/*
 * Stored records that this kvcobrad never writes: what contradicts is given up, and nothing of it is
 * believed. The daemon is kvcobrad_checked, which checks all its accounts.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/store/journal.h"
#include "daemon/store/slot.h"
#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "restart_records";

/* An extent is one span, which holds 15 pages of 4352 bytes. */
enum { EXTENT = 65536, PAGES_PER_EXTENT = 15 };

static const char *const args[] = {
    "--pool-bytes=256K", "--extent-bytes=64K", "--span-bytes=64K",
    "--arena-bytes=64K", "--quota-bytes=64M",  NULL,
};

static struct raw_slot slots[2 * PAGES_PER_EXTENT];

/* ---- the daemon and its stored objects ---- */

/* Publishes @n pages from key 1 that no session holds. */
static void begin(unsigned n)
{
    struct raw_model m;
    uint64_t lease;

    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    supervisor_begin(args);
    raw_activate_table(raw_table);
    m = raw_model_open();
    for (unsigned i = 0; i < n; i++) {
        CU_ASSERT_EQUAL_FATAL(raw_publish(&m, i + 1, &slots[i], &lease), 0);
        CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    }
    raw_close_model(&m);
}

static void finish(void)
{
    raw_table = table_unref(raw_table);
    supervisor_finish();
}

struct object {
    uint8_t *data;
    size_t bytes;
};

/* The stored memory object whose name begins with @prefix. */
static struct object open_object(const char *prefix)
{
    int fd = supervisor_stored_fd(prefix);
    struct object o;
    struct stat st;

    assert(fd >= 0 && fstat(fd, &st) == 0);
    o.bytes = (size_t) st.st_size;
    o.data = mmap(NULL, o.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert(o.data != MAP_FAILED);
    return o;
}

static void close_object(struct object *o)
{
    (void) munmap(o->data, o->bytes);
}

static struct slot_records records_of(const struct object *o)
{
    return (struct slot_records){
        .fd = -1, .bytes = o->bytes, .data = o->data, .n_units = 1, .unit_slots_max = EXTENT / 64};
}

/* The number of the slot within its span. */
static uint32_t index_of(const struct raw_slot *s)
{
    return s->slot & ((1u << 14) - 1);
}

static void start_again(void)
{
    CU_ASSERT_FATAL(supervisor_again());
}

static uint64_t count_pages(void)
{
    Kvcobra__Reply *r = raw_status();
    uint64_t n = 0;

    for (size_t i = 0; i < r->status->n_tenants; i++)
        n += r->status->tenants[i]->pages;
    wire_reply_free(r);
    return n;
}

/* ---- a process that holds the page of key 1 ---- */

static pid_t start_holder(void)
{
    int from_child[2];
    pid_t pid;

    assert(pipe2(from_child, O_CLOEXEC) == 0);
    pid = fork();
    if (pid == 0) {
        struct raw_model m = raw_model_open();
        uint64_t lease;

        if (raw_publish(&m, 1, &slots[0], &lease) != 0 ||
            write(from_child[1], &slots[0], sizeof(slots[0])) < 0)
            _exit(1);
        for (;;)
            (void) pause();
    }
    assert(pid > 0 && read(from_child[0], &slots[0], sizeof(slots[0])) == sizeof(slots[0]));
    (void) close(from_child[0]);
    (void) close(from_child[1]);
    return pid;
}

static void end_holder(pid_t pid)
{
    assert(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

/* The cell of the holder's only hold. */
static struct hold_cell *find_cell(const struct object *journal)
{
    const struct journal_head *head = (const struct journal_head *) journal->data;
    struct hold_cell *cells =
        (struct hold_cell *) (journal->data + journal->bytes - JOURNAL_HOLDS_MAX * sizeof(struct hold_cell));

    for (uint64_t i = 0; i < head->n_holds; i++)
        if (cells[i].slot == slots[0].slot)
            return &cells[i];
    assert(!"the journal has no cell of the hold");
    return NULL;
}

/* The journal's records of sessions and cells of holds that are in use. */
static void count_journal(unsigned *ret_sessions, unsigned *ret_holds)
{
    struct object o = open_object("kvc-journal-");
    const struct journal_head *head = (const struct journal_head *) o.data;
    const uint8_t *at = o.data + o.bytes - JOURNAL_HOLDS_MAX * sizeof(struct hold_cell);
    const struct hold_cell *cells = (const struct hold_cell *) at;
    const struct session_record *sessions =
        (const struct session_record *) (at - JOURNAL_NAMES_MAX * sizeof(struct journal_name)) -
        JOURNAL_SESSIONS_MAX;

    *ret_sessions = *ret_holds = 0;
    for (uint32_t i = 0; i < head->n_sessions; i++)
        *ret_sessions += sessions[i].serial != 0;
    for (uint64_t i = 0; i < head->n_holds; i++)
        *ret_holds += cells[i].slot != SLOT_NONE;
    close_object(&o);
}

static unsigned count_holds(void)
{
    unsigned sessions, holds;

    count_journal(&sessions, &holds);
    return holds;
}

/* ---- the cases ---- */

/* The table's file is lost too, so only the head itself shows that its sizes are no sizes of pages. */
static void check_damaged_head(void (*damage)(struct span_head *h))
{
    char path[256], hex[65] = "";
    struct object o;
    struct slot_records r;

    begin(1);
    supervisor_kill();
    o = open_object("kvc-slots-");
    r = records_of(&o);
    damage(slot_records_span(&r, 0));
    close_object(&o);
    for (int i = 0; i < 32; i++)
        (void) snprintf(hex + 2 * i, 3, "%02x", raw_table->digest[i]);
    (void) snprintf(path, sizeof(path), "%s/tables/%s.kvct", raw_daemon.state, hex);
    CU_ASSERT_EQUAL(unlink(path), 0);
    start_again();
    CU_ASSERT(daemon_logged(&raw_daemon, "event=extent-damaged"));
    CU_ASSERT_EQUAL(count_pages(), 0);
    finish();
}

static void larger_page(struct span_head *h)
{
    h->page_bytes = h->slot_bytes + 64;
}

static void page_without_payload(struct span_head *h)
{
    h->page_bytes = PAGE_HEADER_BYTES;
}

static void unaligned_slot(struct span_head *h)
{
    h->slot_bytes++;
}

static void no_slot(struct span_head *h)
{
    h->slot_bytes = h->page_bytes = 0;
}

static void third_class(struct span_head *h)
{
    h->page_class = 2;
}

static void test_damaged_heads(void)
{
    check_damaged_head(larger_page);
    check_damaged_head(page_without_payload);
    check_damaged_head(unaligned_slot);
    check_damaged_head(no_slot);
    check_damaged_head(third_class);
}

/* The process of a session exits while no daemon runs: nothing of it is left, and nothing was lost. */
static void check_gone_process(bool is_watched)
{
    unsigned sessions, holds;
    pid_t pid;

    begin(0);
    pid = start_holder();
    count_journal(&sessions, &holds);
    CU_ASSERT(sessions == 1 && holds == 1);
    CU_ASSERT(supervisor_gets("kvc-pid-")); /* when the session has lived for a second */
    supervisor_kill();
    if (!is_watched)
        supervisor_lose("kvc-pid-");
    end_holder(pid);
    start_again();
    CU_ASSERT_EQUAL(count_pages(), 1);
    CU_ASSERT_EQUAL(raw_held_pages(), 0);
    count_journal(&sessions, &holds);
    CU_ASSERT(sessions == 0 && holds == 0);
    CU_ASSERT_FALSE(daemon_logged(&raw_daemon, "event=holds-orphaned"));
    CU_ASSERT_FALSE(daemon_logged(&raw_daemon, "event=pages-lost"));
    CU_ASSERT_FALSE(daemon_logged(&raw_daemon, "event=device-left"));
    finish();
}

static void test_process_that_is_gone(void)
{
    check_gone_process(true);
    check_gone_process(false);
}

/* The records of each of two extents lie beside the pages of the other. */
static void test_exchanged_records(void)
{
    struct object a, b;
    uint8_t *copy;

    begin(PAGES_PER_EXTENT + 1);
    CU_ASSERT_EQUAL_FATAL(supervisor_stored("kvc-slots-"), 2);
    supervisor_kill();
    a = open_object("kvc-slots-1");
    b = open_object("kvc-slots-2");
    copy = malloc(a.bytes);
    assert(copy && a.bytes == b.bytes);
    memcpy(copy, a.data, a.bytes);
    memcpy(a.data, b.data, a.bytes);
    memcpy(b.data, copy, a.bytes);
    free(copy);
    close_object(&a);
    close_object(&b);
    start_again();
    CU_ASSERT(daemon_logged(&raw_daemon, "event=extent-damaged"));
    CU_ASSERT_EQUAL(count_pages(), 0);
    CU_ASSERT_EQUAL(supervisor_stored("kvc-slots-"), 0);
    finish();
}

static void test_two_pages_of_one_key(void)
{
    struct object o;
    struct slot_records r;
    struct slot *list;

    begin(3);
    CU_ASSERT_EQUAL(count_pages(), 3);
    supervisor_kill();
    o = open_object("kvc-slots-");
    r = records_of(&o);
    list = slot_records_slots(&r, 0);
    list[index_of(&slots[1])].key = list[index_of(&slots[0])].key;
    close_object(&o);
    start_again();
    CU_ASSERT_EQUAL(count_pages(), 2);
    CU_ASSERT_EQUAL(raw_evict(""), 0);
    CU_ASSERT_EQUAL(count_pages(), 0);
    finish();
}

/* The hold of a session on a page of another account. */
static void test_hold_of_other_tenant(void)
{
    struct object o;
    struct slot_records r;
    pid_t pid;

    begin(0);
    pid = start_holder();
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    supervisor_kill();
    o = open_object("kvc-slots-");
    r = records_of(&o);
    slot_records_head(&r)->uid++;
    close_object(&o);
    start_again();
    CU_ASSERT_EQUAL(count_pages(), 1); /* the page is the other account's now */
    CU_ASSERT_EQUAL(raw_held_pages(), 0);
    CU_ASSERT_EQUAL(count_holds(), 0);
    end_holder(pid);
    raw_wait_for_no_sessions();
    finish();
}

/* The hold on a slot that is FREE: a later page there has no hold but its own. */
static void test_hold_of_free_slot(void)
{
    struct slot_records r;
    struct raw_slot s, free_slot;
    struct raw_model m;
    struct object o;
    uint64_t lease;
    pid_t pid;

    begin(3);
    free_slot = slots[1];
    pid = start_holder();
    supervisor_kill();
    o = open_object("kvc-slots-");
    r = records_of(&o);
    slot_records_slots(&r, 0)[index_of(&free_slot)].state = SLOT_FREE;
    close_object(&o);
    o = open_object("kvc-journal-");
    find_cell(&o)->slot = free_slot.slot;
    close_object(&o);
    start_again();
    CU_ASSERT_EQUAL(count_pages(), 2);
    CU_ASSERT_EQUAL(raw_held_pages(), 0);
    CU_ASSERT_EQUAL(count_holds(), 0);
    m = raw_model_open();
    CU_ASSERT_EQUAL(raw_publish(&m, 2, &s, &lease), 0);
    CU_ASSERT_EQUAL(s.slot, free_slot.slot);
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    CU_ASSERT_EQUAL(raw_held_pages(), 0);
    raw_close_model(&m);
    end_holder(pid);
    raw_wait_for_no_sessions();
    finish();
}

const struct test_case test_cases[] = {
    TEST(test_damaged_heads),
    TEST(test_process_that_is_gone),
    TEST(test_exchanged_records),
    TEST(test_two_pages_of_one_key),
    TEST(test_hold_of_other_tenant),
    TEST(test_hold_of_free_slot),
    TEST_END,
};
