/*
 * Every system call and every allocation of a client fails once, in each plausible way: the n-th of one fixed
 * visit, n = 1, 2, 3 ... until a visit ends without the failure. A call of the library that fails says why,
 * and succeeds when it is repeated; texts keep their bytes; after the visit the process has no descriptor and
 * no block more than before, a second visit works, and the daemon, which checks its accounts, holds nothing
 * for it.
 *
 * KVC_FAULTS and KVC_FAULT_FROM: see test_daemon_faults.c.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <protobuf-c/protobuf-c.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/client_fixture.h"
#include "tests/fault/calls.h"
#include "tests/fault/fault.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "client_faults";

enum {
    PROMPT = 330,
    PIECE = 110,
    SHARED = 256, /* 64 (c + 2) <= 330: whole chunks that are published */
    NTH_MAX = 100000,
    VARIANTS_MAX = 16,
    FAILURES_MAX = 8,
    TRIES = 4,
};

static const char *const args[] = {"--pool-bytes=64M", "--arena-bytes=8M", NULL};

/* Shared with the children. */
static struct shared {
    unsigned n_failed;     /* calls of the library that failed in the first visit */
    unsigned n_short;      /* calls of it that found a part of the text, or nothing */
    float expected[2][64]; /* attention of a text that was appended, and of one that was matched */
    bool has_expected;
    bool fired; /* the allocation */
} * shared;

static const struct scene *scene;
static uint32_t text; /* of this visit */

static _Noreturn void broken(const char *what, long detail)
{
    printf("    %s: %ld\n", what, detail);
    (void) fflush(stdout);
    _exit(1);
}

/* ---- one visit ---- */

struct visit {
    struct embedded m;
    uint32_t *tokens;
    unsigned n_failed;
};

/* Whether a call that returned @r is repeated. */
static bool fails(struct visit *v, const char *what, int r, int *tries)
{
    if (r >= 0)
        return false;
    v->n_failed++;
    if (++*tries == TRIES) {
        printf("    %s: %s\n", what, v->m.client ? kvc_last_error(v->m.client) : "");
        broken("a repeated call fails with errno", -r);
    }
    if (r == -EINVAL || (v->m.client && strlen(kvc_last_error(v->m.client)) < 10))
        broken(what, r);
    return true;
}

static void open_client(struct visit *v)
{
    kvc_model_id id = embedded_id(&v->m);
    int r, tries = 0;

    do
        r = kvc_client_new(&v->m.client);
    while (fails(v, "kvc_client_new", r, &tries));
    tries = 0;
    do
        r = kvc_client_connect(v->m.client, scene->daemon.socket);
    while (fails(v, "kvc_client_connect", r, &tries));
    tries = 0;
    do {
        r = kvc_model_open(v->m.client, &id, &v->m.model);
        if (r == -ENOTCONN) /* the next attempt would be later */
            (void) kvc_client_connect(v->m.client, scene->daemon.socket);
    } while (fails(v, "kvc_model_open", r, &tries));
}

static kvc_seq *new_sequence(struct visit *v)
{
    kvc_seq *s = NULL;
    int r, tries = 0;

    do
        r = kvc_seq_new(v->m.model, &text, sizeof(text), &s);
    while (fails(v, "kvc_seq_new", r, &tries));
    return s;
}

/* The test's own allocations do not fail. */
static float *input(const struct visit *v, uint32_t layer, enum kvc_side side, size_t first, size_t n)
{
    float *x;

    fault_pause(true);
    x = embedded_input(&v->m, 0, layer, side, first, n);
    fault_pause(false);
    return x;
}

static void append(struct visit *v, kvc_seq *s, size_t first, size_t n)
{
    for (uint32_t layer = 0; layer < v->m.g.n_layers; layer++) {
        float *k = input(v, layer, KVC_K, first, n);
        float *x = input(v, layer, KVC_V, first, n);
        int r, tries = 0;

        do
            r = kvc_seq_append(s, layer, KVC_F32, k, x, n);
        while (fails(v, "kvc_seq_append", r, &tries));
        free(k);
        free(x);
    }
    if (kvc_seq_length(s) != first + n)
        broken("length of the sequence", (long) kvc_seq_length(s));
}

/* Until everything is published, or the library published nothing because the connection was lost. */
static size_t commit(struct visit *v, kvc_seq *s, size_t n)
{
    size_t published = 0;
    int r, tries = 0;

    do
        r = kvc_seq_commit(s, v->tokens, n, &published);
    while (fails(v, "kvc_seq_commit", r, &tries));
    return published;
}

static void check_attention(struct visit *v, kvc_seq *s, unsigned which)
{
    static float out[2 * 4 * 32];
    float *q;
    int r, tries = 0;

    fault_pause(true);
    q = embedded_queries(&v->m, 0, 1, kvc_seq_length(s) - 1, 1);
    fault_pause(false);
    do
        r = kvc_seq_attend(s, 1, q, 1, out);
    while (fails(v, "kvc_seq_attend", r, &tries));
    free(q);
    if (!shared->has_expected)
        memcpy(shared->expected[which], out, sizeof(shared->expected[which]));
    else if (memcmp(shared->expected[which], out, sizeof(shared->expected[which])) != 0)
        broken("other attention than without a failure, of text", which);
}

/* A text that this process computes and publishes. */
static kvc_seq *publish_text(struct visit *v)
{
    kvc_seq *s = new_sequence(v);

    for (size_t at = 0; at < PROMPT; at += PIECE) {
        append(v, s, at, PIECE);
        (void) commit(v, s, at + PIECE);
    }
    check_attention(v, s, 0);
    return s;
}

static size_t match(struct visit *v, kvc_seq *s)
{
    size_t n = 0;
    int r, tries = 0;

    do
        r = kvc_seq_match(s, v->tokens, PROMPT, &n);
    while (fails(v, "kvc_seq_match", r, &tries));
    return n;
}

static size_t fetch(struct visit *v, kvc_seq *s)
{
    kvc_fetch *f = NULL;
    size_t n = 0;
    int r, tries = 0;

    do
        r = kvc_fetch_start(s, v->tokens, PROMPT, 1, &f);
    while (fails(v, "kvc_fetch_start", r, &tries));
    do {
        struct pollfd p = {.fd = kvc_fetch_fd(f), .events = POLLIN};

        if (poll(&p, 1, WAIT_LIMIT_S * 1000) == 0)
            broken("a fetch does not end, descriptor", p.fd);
        r = kvc_fetch_result(f, &n);
    } while (r == -EINPROGRESS);
    kvc_fetch_free(f);
    if (r < 0)
        v->n_failed++;
    return n;
}

/* The same text, found by @find. */
static void find_text(struct visit *v, size_t (*find)(struct visit *v, kvc_seq *s))
{
    kvc_seq *s = new_sequence(v), *t = NULL;
    size_t n = find(v, s), kept = 0;
    int r, tries = 0;

    shared->n_short += n != SHARED;
    if (n != kvc_seq_length(s) || n % 64 != 0 || n > SHARED)
        broken("tokens found, and another length", (long) n);
    append(v, s, n, PROMPT - n);
    if (n == SHARED)
        check_attention(v, s, 1);
    do
        r = kvc_seq_fork(s, &t);
    while (fails(v, "kvc_seq_fork", r, &tries));
    tries = 0;
    do
        r = kvc_seq_truncate(t, 128, &kept);
    while (fails(v, "kvc_seq_truncate", r, &tries));
    if (kept != 128)
        broken("tokens kept by kvc_seq_truncate()", (long) kept);
    kvc_seq_free(t);
    kvc_seq_free(s);
}

/* Return: the number of calls that failed. */
static unsigned visit(void)
{
    struct visit v = {.m = {.g = scene->g, .n_heads = scene->g.n_kv_heads}};
    size_t n = 0;
    kvc_seq *s;
    int r, tries = 0;

    fault_pause(true);
    v.tokens = scene_tokens(0, PROMPT);
    fault_pause(false);
    open_client(&v);
    s = publish_text(&v);
    do
        r = kvc_model_peek(v.m.model,
                           &(kvc_seq_options){.struct_bytes = sizeof(kvc_seq_options),
                                              .salt = &text,
                                              .salt_bytes = sizeof(text)},
                           v.tokens, PROMPT, &n);
    while (fails(&v, "kvc_model_peek", r, &tries));
    find_text(&v, match);
    find_text(&v, fetch);
    check_attention(&v, s, 0);
    kvc_seq_free(s);
    embedded_free(&v.m);
    free(v.tokens);
    return v.n_failed;
}

/* ---- the child ---- */

void __real_protobuf_c_message_free_unpacked(ProtobufCMessage *m, ProtobufCAllocator *a);
void __wrap_protobuf_c_message_free_unpacked(ProtobufCMessage *m, ProtobufCAllocator *a);

static void free_block(void *ctx, void *p)
{
    (void) ctx;
    free(p);
}

/* Messages are allocated by this program and freed by a library, whose free() is not counted. */
void __wrap_protobuf_c_message_free_unpacked(ProtobufCMessage *m, ProtobufCAllocator *a)
{
    ProtobufCAllocator counted = {.free = free_block};

    __real_protobuf_c_message_free_unpacked(m, a ? a : &counted);
}

static long count_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    long n = 0;

    assert(folder);
    while (readdir(folder))
        n++;
    (void) closedir(folder);
    return n;
}

/* Of memory objects: pages, arena, index. */
static long count_mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    long n = 0;

    assert(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, "memfd:") != NULL;
    (void) fclose(f);
    return n;
}

/* Two visits, of which the first has the failure. */
static void visit_twice(unsigned nth_allocation)
{
    long fds = count_fds(), mappings = count_mappings(), blocks = fault_live_blocks();
    unsigned n_short;

    calls_mark();
    fault_arm(nth_allocation);
    shared->n_short = 0;
    shared->n_failed = visit();
    shared->fired = fault_fired();
    fault_arm(0);
    calls_mark();
    n_short = shared->n_short;
    if (count_fds() != fds)
        broken("descriptors left", count_fds() - fds);
    if (count_mappings() != mappings)
        broken("mappings left", count_mappings() - mappings);
    if (fault_live_blocks() != blocks)
        broken("blocks left", fault_live_blocks() - blocks);
    text++;
    shared->n_short = 0;
    if (visit() != 0 || shared->n_short > 0)
        broken("calls failed in the visit after the failure", 1);
    shared->n_short = n_short;
    shared->has_expected = true;
}

/* @folder: of calls_begin(), or NULL. False: a promise was broken. */
static bool run_child(const char *folder, unsigned nth_allocation)
{
    static uint32_t last_text;
    int status;
    pid_t pid;

    last_text += 2;
    (void) fflush(stdout);
    pid = fork();
    assert(pid >= 0);
    if (pid == 0) {
        text = last_text;
        if (folder && calls_deliver(folder) < 0)
            broken("no filter of system calls", 0);
        visit_twice(nth_allocation);
        _exit(CU_get_number_of_failure_records() == 0 ? 0 : 1);
    }
    assert(waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status))
        printf("    the client was killed by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool holds_nothing(const Kvcobra__StatusReply *s)
{
    return s->sessions == 0 && s->held_pages == 0;
}

/* ---- the sweeps ---- */

static unsigned step_of(unsigned by_default)
{
    const char *words = getenv("KVC_FAULTS");

    if (!words)
        return by_default;
    return strcmp(words, "all") == 0 ? 1 : (unsigned) atoi(words);
}

static unsigned first_of(void)
{
    const char *words = getenv("KVC_FAULT_FROM");

    return words ? (unsigned) atoi(words) : 1;
}

static void begin(struct scene *sc)
{
    scene_start(sc, random_table_geometry(2, 4, 2, 32), 3, 1, args);
    scene = sc;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(shared != MAP_FAILED);
    CU_ASSERT_FATAL(run_child(NULL, 0));
    CU_ASSERT_EQUAL(shared->n_failed + shared->n_short, 0);
}

static void end(struct scene *sc)
{
    CU_ASSERT(scene_wait(sc, holds_nothing));
    scene_end(sc);
    (void) munmap(shared, sizeof(*shared));
}

static void test_system_calls(void)
{
    unsigned nth, step = step_of(5), n_visits = 0, n_broken = 0, n_failed = 0;
    char folder[] = "/tmp/kvcobra-faults-XXXXXX";
    bool reached = true;
    struct scene sc;

    if (!CALLS_CAN_FAIL) {
        test_skip(CALLS_CANNOT_FAIL_TEXT);
        return;
    }
    assert(mkdtemp(folder));
    if (!calls_begin(folder)) {
        test_skip("this kernel does not report system calls to another process");
        return;
    }
    begin(&sc);
    for (nth = first_of(); reached && nth < NTH_MAX && n_broken < FAILURES_MAX; nth += step) {
        for (unsigned variant = 0; variant < VARIANTS_MAX; variant++) {
            struct calls_result r;
            bool good;

            calls_arm(nth, step == 1 ? variant : nth / step % 3 + variant);
            good = run_child(folder, 0);
            r = calls_disarm();
            n_visits++;
            n_failed += shared->n_failed;
            if (!good || (shared->n_failed + shared->n_short > 0 && !r.fired)) {
                printf("    the client's system call %u failed: %s\n", nth, r.what);
                n_broken++;
            }
            reached = r.fired || r.exhausted;
            if (!r.fired || step > 1)
                break;
        }
    }
    printf(
        "    system calls: %u in one visit, every %u-th failed, %u visits, %u calls of the library failed\n",
        nth - 1, step, n_visits, n_failed);
    CU_ASSERT(n_broken == 0 && !reached && nth < NTH_MAX && n_failed > 0);
    end(&sc);
    calls_end();
    (void) rmdir(folder);
}

static void test_allocations(void)
{
    unsigned nth, step = step_of(7), n_visits = 0, n_broken = 0, n_failed = 0;
    bool fired = true;
    struct scene sc;

    begin(&sc);
    for (nth = first_of(); fired && nth < NTH_MAX && n_broken < FAILURES_MAX; nth += step) {
        bool good = run_child(NULL, nth);

        fired = shared->fired;
        n_visits++;
        n_failed += shared->n_failed;
        if (!good || (shared->n_failed + shared->n_short > 0 && !fired)) {
            printf("    the client's allocation %u failed\n", nth);
            n_broken++;
        }
    }
    printf(
        "    allocations: %u in one visit, every %u-th failed, %u visits, %u calls of the library failed\n",
        nth - 1, step, n_visits, n_failed);
    CU_ASSERT(n_broken == 0 && !fired && nth < NTH_MAX && n_failed > 0);
    end(&sc);
}

const struct test_case test_cases[] = {TEST(test_system_calls), TEST(test_allocations), TEST_END};
