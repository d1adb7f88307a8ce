/* Draining: requests that are refused, requests that finish, and when the daemon is idle. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/test.h"

const char test_suite[] = "drain";

static int operator_fd;

/* Return: errno of the reply; its contents in *ret. */
static int drain(bool off, bool ask, Kvcobra__DrainReply *ret)
{
    Kvcobra__Drain body = KVCOBRA__DRAIN__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_DRAIN, &body);
    Kvcobra__Reply *reply;
    int r;

    body.off = off;
    body.ask = ask;
    reply = raw_request(operator_fd, &q, NULL, 0, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(reply);
    r = reply->err;
    if (r == 0)
        *ret = *reply->drain;
    wire_reply_free(reply);
    return r;
}

static bool says_draining(void)
{
    Kvcobra__Reply *r = raw_status();
    bool draining = r->status->draining;

    wire_reply_free(r);
    return draining;
}

static struct raw_model m;

/* Starts with a page that @ret_lease holds, and a reservation for chunk 2, which is returned. */
static struct raw_slot start(struct raw_slot *ret_published, uint64_t *ret_lease)
{
    struct chunk_key next = raw_key(2);
    struct raw_slot reserved;

    raw_start(DAEMON_BY_PATH, NULL);
    operator_fd = raw_open(raw_daemon.operator_socket);
    m = raw_model_open();
    CU_ASSERT_EQUAL_FATAL(raw_publish(&m, 1, ret_published, ret_lease), 0);
    reserved = raw_reserve(&m, &next, PAGE_REST);
    CU_ASSERT_EQUAL_FATAL(reserved.err, 0);
    return reserved;
}

static void stop(void)
{
    raw_close_model(&m);
    (void) close(operator_fd);
    raw_stop();
}

static void test_on_and_off(void)
{
    Kvcobra__DrainReply state;
    Kvcobra__Drain body = KVCOBRA__DRAIN__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_DRAIN, &body);
    struct raw_slot published;
    uint64_t lease = 0;

    (void) start(&published, &lease);
    CU_ASSERT_EQUAL(raw_errno(m.fd, &q), -EPERM); /* only on the operator's socket */
    CU_ASSERT(!says_draining());
    CU_ASSERT_EQUAL_FATAL(drain(false, false, &state), 0);
    CU_ASSERT(state.draining && state.sessions == 1 && state.reservations == 1 && state.held_pages == 1);
    CU_ASSERT(says_draining());
    CU_ASSERT(daemon_logged(&raw_daemon, "event=drain draining=yes"));
    CU_ASSERT_EQUAL(drain(true, true, &state), 0); /* a question changes nothing, also with `off` */
    CU_ASSERT(state.draining);
    CU_ASSERT_EQUAL(drain(true, false, &state), 0);
    CU_ASSERT(!state.draining && !says_draining());
    CU_ASSERT_EQUAL(raw_reserve(&m, &(struct chunk_key){{9}}, PAGE_REST).err, 0);
    stop();
}

static void test_nothing_new(void)
{
    Kvcobra__DrainReply state;
    struct raw_slot published;
    struct raw_model again;
    uint64_t lease = 0;
    int fd;

    (void) start(&published, &lease);
    CU_ASSERT_EQUAL_FATAL(drain(false, false, &state), 0);
    CU_ASSERT_EQUAL(raw_reserve(&m, &(struct chunk_key){{9}}, PAGE_REST).err, -ESHUTDOWN);
    CU_ASSERT_EQUAL(raw_open_model(m.fd, &raw_geometry, m.model_digest, &again), -ESHUTDOWN);
    fd = raw_connect(raw_daemon.socket);
    CU_ASSERT_EQUAL(raw_hello(fd), -ESHUTDOWN);
    CU_ASSERT_EQUAL(raw_confirm(fd), -EPROTO);
    (void) close(fd);
    fd = raw_open(raw_daemon.operator_socket); /* operators may connect */
    (void) close(fd);
    stop();
}

/* A page that was reserved before is committed, found, leased and released. */
static void test_work_in_progress_finishes(void)
{
    Kvcobra__DrainReply state;
    struct raw_slot published, reserved;
    struct chunk_key next = raw_key(2);
    uint64_t lease = 0, lease_two = 0, lease_three = 0;
    int reason;

    reserved = start(&published, &lease);
    CU_ASSERT_EQUAL_FATAL(drain(false, false, &state), 0);
    raw_write_page(&m, raw_table, &next, PAGE_REST, 0, 2);
    CU_ASSERT_EQUAL(raw_commit(&m, &reserved, &next, 0, &lease_two), 0);
    CU_ASSERT(raw_lease_one(&m, 1, &published, &lease_three, &reason));
    CU_ASSERT_EQUAL(drain(false, true, &state), 0);
    CU_ASSERT(state.draining && state.reservations == 0 && state.held_pages == 3);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease_two), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease_three), 0);
    CU_ASSERT_EQUAL(drain(true, true, &state), 0);
    CU_ASSERT(state.draining && state.held_pages == 0);
    stop();
}

const struct test_case test_cases[] = {
    TEST(test_on_and_off),
    TEST(test_nothing_new),
    TEST(test_work_in_progress_finishes),
    TEST_END,
};
