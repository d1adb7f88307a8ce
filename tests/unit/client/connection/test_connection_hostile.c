/*
 * A peer that speaks the protocol and sends wrong replies: every invalid reply gives an errno and a sentence,
 * no object is mapped that its sender could shrink, and no descriptor stays open.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tests/unit/client/hostile_peer.h"

static const struct {
    const char *name;
    int connect, open, match; /* what the library returns */
    bool lost;                /* LEASE closes the connection: a match may tell, a fetch finds nothing */
    bool misses;              /* both succeed and find nothing */
} cases[N_WRONG_REPLIES] = {
    [CORRECT] = {"correct replies", 0, 0},
    [HELLO_VERSION] = {"version 9", -EPROTO, 0},
    [HELLO_OTHER_ID] = {"reply to another request", -EPROTO, 0},
    [HELLO_POSITIVE_ERRNO] = {"positive errno", -EPROTO, 0},
    [HELLO_WRONG_BODY] = {"body of another reply", -EPROTO, 0},
    [HELLO_SHORT_BOOT_ID] = {"short boot id", -EPROTO, 0},
    [HELLO_SILENT_CLOSE] = {"connection closed", -EPROTO, 0},
    [HELLO_SHORT_TOKEN] = {"session token of 31 bytes", -EPROTO, 0},
    [CONFIRM_NO_POOL] = {"no pool", -EPROTO, 0},
    [CONFIRM_NO_BODY] = {"empty confirmation", -EPROTO, 0},
    [CONFIRM_OTHER_BOOT_ID] = {"another boot id", -EPROTO, 0},
    [OPEN_FEW_FDS] = {"three descriptors", 0, -EPROTO},
    [OPEN_CONTROL_SLOT] = {"control slot outside the page", 0, -EPROTO},
    [OPEN_SHORT_KEY] = {"index key of 31 bytes", 0, -EPROTO},
    [OPEN_SHORT_DIGESTS] = {"model digest of 5 bytes, table digest of none", 0, -EPROTO},
    [OPEN_UNSEALED] = {"objects that may shrink", 0, -EBADMSG},
    [OPEN_CONTROL_SIZE] = {"control page of another size", 0, -EBADMSG},
    [OPEN_INDEX_HEAD] = {"index with more buckets than bytes", 0, -EBADMSG},
    [OPEN_SESSION_SIZE] = {"session page of two pages", 0, -EPROTO},
    [OPEN_SHORT_MODEL] = {"model digest of 31 bytes", 0, -EPROTO},
    [OPEN_OTHER_MODEL] = {"alias of a model that the table is not for", 0, -EINVAL},
    [FETCH_NO_FD] = {"table without descriptor", 0, -EPROTO},
    [FETCH_SIZE] = {"table longer than its object", 0, -EBADMSG},
    [FETCH_OTHER_TABLE] = {"file that is not a table", 0, -EBADMSG},
    [FETCH_UNSEALED] = {"table that may change", 0, -EPROTO},
    [CONTROL_ENTRY] = {"word naming entry 200", 0, -EBADMSG},
    [CONTROL_NONE] = {"word naming no table", 0, -ENODATA},
    [LEASE_OFFSET] = {"page beyond its extent", 0, 0, -EPROTO},
    [LEASE_UNALIGNED] = {"page between slots", 0, 0, -EPROTO},
    [LEASE_BYTES] = {"page of another size", 0, 0, -EPROTO},
    [LEASE_DAMAGED] = {"page without a header", 0, 0, -EBADMSG},
    [LEASE_OTHER_POSITION] = {"page of another position", 0, 0, -EPROTO},
    [LEASE_NO_DESCRIPTOR] = {"extent without a descriptor", 0, 0, -EPROTO},
    [LEASE_MORE] = {"more pages than requested", 0, 0, 0},
    [LEASE_OTHER_ID] = {"lease for another request", 0, 0, -EPROTO, true},
    [LEASE_NO_BODY] = {"lease without a body", 0, 0, -EPROTO, true},
    [LEASE_ERRNO] = {"errno without a sentence", 0, 0, -EDQUOT},
    [LEASE_TWICE] = {"two replies to one request", 0, 0, -EPROTO, true},
    [INDEX_CLASS] = {"chunk 0 with a page that has no sinks", 0, 0, 0, .misses = true},
    [LIST_NO_END] = {"list of tables without an end", 0, 0},
    [LIST_SHORT_DIGEST] = {"table digest of 31 bytes in a list", 0, 0},
    [LEASE_GONE] = {"connection closed before the lease", 0, 0, 0, true},
};

static unsigned open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(d))
        n++;
    (void) closedir(d);
    return n;
}

static void check_match(const struct peer *p, kvc_client *c, kvc_model *model)
{
    int want = cases[p->wrong].match, r;
    kvc_seq *s = NULL;
    size_t n = 7;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(model, NULL, 0, &s), 0);
    r = kvc_seq_match(s, peer_tokens, 65, &n);
    if (r != want)
        printf("    %s: match %d: %s\n", cases[p->wrong].name, r, kvc_last_error(c));
    CU_ASSERT_EQUAL(r, want);
    if (r == 0)
        CU_ASSERT_EQUAL(n, cases[p->wrong].lost || cases[p->wrong].misses ? 0 : 64);
    CU_ASSERT_EQUAL(kvc_seq_length(s), r == 0 ? n : 0);
    CU_ASSERT(r == 0 || (n == 7 && strlen(kvc_last_error(c)) > 10));
    kvc_seq_free(s);
}

/* The same by a fetch, whose chunk the caller does not compute. */
static void check_fetch(const struct peer *p, kvc_client *c, kvc_model *model)
{
    kvc_fetch *f = NULL;
    kvc_seq *s = NULL;
    size_t n = 7;
    int r;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_fetch_start(s, peer_tokens, 64, 0, &f), 0);
    do {
        struct pollfd readable = {.fd = kvc_fetch_fd(f), .events = POLLIN};

        CU_ASSERT_EQUAL_FATAL(poll(&readable, 1, WAIT_LIMIT_S * 1000), 1);
        r = kvc_fetch_result(f, &n);
    } while (r == -EINPROGRESS);
    /* the second of two replies may come while the fetch waits for an extent, and is then an error */
    if (!cases[p->wrong].lost || (p->wrong == LEASE_TWICE && r < 0))
        CU_ASSERT_EQUAL(r, cases[p->wrong].match);
    if (r == 0)
        CU_ASSERT_EQUAL(n, cases[p->wrong].lost || cases[p->wrong].misses ? 0 : 64);
    CU_ASSERT(r == 0 || (n == 7 && strlen(kvc_last_error(c)) > 10));
    kvc_fetch_free(f);
    CU_ASSERT_EQUAL(kvc_seq_length(s), r == 0 ? n : 0);
    kvc_seq_free(s);
}

/* Whatever the reply: a geometry, or an errno and a sentence. The requests of other replies are not sent. */
static void check_geometry(const struct peer *p, kvc_client *c, kvc_model *model)
{
    static const struct {
        enum wrong_reply wrong;
        int r;
    } refused[] = {{FETCH_NO_FD, -EPROTO},    {FETCH_SIZE, -EBADMSG}, {FETCH_OTHER_TABLE, -EBADMSG},
                   {FETCH_UNSEALED, -EPROTO}, {LIST_NO_END, -EPROTO}, {LIST_SHORT_DIGEST, -ENODATA}};
    kvc_geometry g = {.struct_bytes = sizeof(g)};
    double freq[KVC_ROPE_FREQ_MAX];
    int r = kvc_client_get_geometry(c, random_table_model_digest, &g, freq), want = 0;

    (void) model;
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
        if (refused[i].wrong == p->wrong)
            want = refused[i].r;
    if (r != want)
        printf("    %s: geometry %d: %s\n", cases[p->wrong].name, r, kvc_last_error(c));
    CU_ASSERT_EQUAL(r, want);
    CU_ASSERT(r == 0 ? g.n_layers == 1 : g.n_layers == 0 && strlen(kvc_last_error(c)) > 10);
}

typedef void (*check_function)(const struct peer *p, kvc_client *c, kvc_model *model);

static void check_reply(const struct embedded *m, const char *path, int listener, struct peer *p,
                        check_function check)
{
    kvc_model_id id = embedded_id(m);
    unsigned before = open_fds();
    kvc_client *c = NULL;
    kvc_model *model = NULL;
    int r, status = 0;
    pid_t pid = fork();

    if (pid == 0)
        peer_serve(listener, p);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0);
    r = kvc_client_connect(c, path);
    if (r != cases[p->wrong].connect)
        printf("    %s: connect %d: %s\n", cases[p->wrong].name, r, kvc_last_error(c));
    CU_ASSERT_EQUAL(r, cases[p->wrong].connect);
    CU_ASSERT(r == 0 || strlen(kvc_last_error(c)) > 10);
    if (r == 0) {
        r = kvc_model_open(c, &id, &model);
        if (r != cases[p->wrong].open)
            printf("    %s: open %d: %s\n", cases[p->wrong].name, r, kvc_last_error(c));
        CU_ASSERT_EQUAL(r, cases[p->wrong].open);
        CU_ASSERT_EQUAL(r == 0, model != NULL);
        CU_ASSERT(r == 0 || strlen(kvc_last_error(c)) > 10);
        if (r == 0 || check == check_geometry)
            check(p, c, model);
    }
    kvc_client_free(c);
    (void) kill(pid, SIGTERM);
    (void) waitpid(pid, &status, 0);
    CU_ASSERT_EQUAL(open_fds(), before);
}

static void check_replies(check_function check)
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);
    char dir[] = "/tmp/kvcobra-test-XXXXXX", path[64];
    int listener = peer_listen(dir, path, sizeof(path));

    for (unsigned wrong = CORRECT; wrong < N_WRONG_REPLIES; wrong++) {
        struct peer *p = calloc(1, sizeof(*p));

        CU_ASSERT_PTR_NOT_NULL_FATAL(p);
        peer_init(p, &m, (enum wrong_reply) wrong);
        check_reply(&m, path, listener, p, check);
        free(p);
    }
    peer_unlisten(listener, dir, path);
    embedded_free(&m);
}

static void test_lies(void)
{
    check_replies(check_match);
}

static void test_lies_to_a_fetch(void)
{
    check_replies(check_fetch);
}

static void test_lies_about_geometry(void)
{
    check_replies(check_geometry);
}

const struct test_case test_cases[] = {
    TEST(test_lies),
    TEST(test_lies_to_a_fetch),
    TEST(test_lies_about_geometry),
    TEST_END,
};
const char test_suite[] = "hostile_daemon";
