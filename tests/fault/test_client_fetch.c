/*
 * Every allocation of a fetch or a match fails once: an errno and a sentence or an end of the call, and a
 * sequence that can be used. The daemon is tests/unit/client/hostile_peer.c with correct replies and one
 * chunk. A build with AddressSanitizer finds leaks.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fault/fault.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tests/unit/client/hostile_peer.h"

enum { NTH_MAX = 500 };

/* Runs a fetch to its end. Return: the first error; *ret_n is set on success. */
static int fetch(kvc_seq *s, size_t *ret_n)
{
    kvc_fetch *f = NULL;
    int r = kvc_fetch_start(s, peer_tokens, 64, 0, &f);

    CU_ASSERT_EQUAL(r == 0, f != NULL);
    if (r < 0)
        return r;

    do {
        struct pollfd readable = {.fd = kvc_fetch_fd(f), .events = POLLIN};

        CU_ASSERT_EQUAL_FATAL(poll(&readable, 1, WAIT_LIMIT_S * 1000), 1);
        r = kvc_fetch_result(f, ret_n);
    } while (r == -EINPROGRESS);
    kvc_fetch_free(f);
    return r;
}

static int match(kvc_seq *s, size_t *ret_n)
{
    return kvc_seq_match(s, peer_tokens, 65, ret_n);
}

/* A new client whose allocation @nth during the call fails. Return: whether it was reached. */
static bool check_nth(const struct embedded *m, const char *path, int (*find)(kvc_seq *s, size_t *ret_n),
                      unsigned nth)
{
    kvc_model_id id = embedded_id(m);
    kvc_client *c = NULL;
    kvc_model *model = NULL;
    kvc_seq *s = NULL;
    size_t n = 7;
    bool fired;
    int r;

    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_connect(c, path), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_model_open(c, &id, &model), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(model, NULL, 0, &s), 0);
    fault_arm(nth);
    r = find(s, &n);
    fired = fault_fired();
    fault_arm(0);
    if (r < 0) {
        CU_ASSERT_EQUAL(r, -ENOMEM);
        CU_ASSERT(n == 7 && strlen(kvc_last_error(c)) > 10);
    } else {
        CU_ASSERT(n == 64 || (fired && n == 0)); /* without memory for a reply the connection is lost */
    }
    CU_ASSERT_EQUAL(kvc_seq_length(s), r == 0 ? n : 0);
    CU_ASSERT_EQUAL(embedded_append(m, s, 0, r == 0 ? n : 0, 3), 0);
    kvc_client_free(c);
    return fired;
}

static void fail_each(int (*find)(kvc_seq *s, size_t *ret_n))
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);
    struct peer *p = calloc(1, sizeof(*p));
    unsigned nth = 1;
    bool fired = true;

    CU_ASSERT_PTR_NOT_NULL_FATAL(p);
    peer_init(p, &m, CORRECT);
    for (; fired && nth < NTH_MAX; nth++) {
        char dir[] = "/tmp/kvcobra-test-XXXXXX", path[64];
        int listener = peer_listen(dir, path, sizeof(path)), status;
        pid_t pid = fork();

        if (pid == 0)
            peer_serve(listener, p);
        (void) close(listener); /* connecting again fails at once */
        fired = check_nth(&m, path, find, nth);
        (void) kill(pid, SIGTERM);
        (void) waitpid(pid, &status, 0);
        (void) unlink(path);
        (void) rmdir(dir);
    }
    CU_ASSERT(nth > 8 && nth < NTH_MAX);
    free(p);
    embedded_free(&m);
}

static void test_fetch(void)
{
    fail_each(fetch);
}

static void test_match(void)
{
    fail_each(match);
}

const struct test_case test_cases[] = {TEST(test_fetch), TEST(test_match), TEST_END};
const char test_suite[] = "client_fetch_faults";
