/* See client_fixture.h. */
#include "tests/e2e/client_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

/* ---- daemon ---- */

void scene_activate(struct scene *sc, double bpd, uint64_t seed, uint8_t ret_digest[KVC_DIGEST_BYTES])
{
    scene_activate_trellis(sc, bpd, seed, 0, ret_digest);
}

void scene_activate_trellis(struct scene *sc, double bpd, uint64_t seed, unsigned state_bits,
                            uint8_t ret_digest[KVC_DIGEST_BYTES])
{
    struct errmsg e = {""};
    void *bytes;
    size_t n_bytes;
    int r = random_table_bytes_trellis(&sc->g, seed, bpd, PREDICT_HEAD, state_bits, &bytes, &n_bytes);

    assert(r == 0);
    r = operator_stage_table(sc->control, bytes, n_bytes, ret_digest, &e);
    if (r == 0)
        r = operator_activate_table(sc->control, ret_digest, 0, NULL, &e);
    if (r != 0)
        printf("    activate: %s\n", e.text);
    assert(r == 0);
    free(sc->bytes);
    sc->bytes = bytes;
    sc->n_bytes = n_bytes;
}

void scene_attach(struct scene *sc, const struct daemon *d, struct geometry g, double bpd, uint64_t seed)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    int r;

    *sc = (struct scene){.daemon = *d, .g = g};
    r = kvc_client_new(&sc->control);
    assert(r == 0);
    r = kvc_client_connect(sc->control, sc->daemon.operator_socket);
    if (r < 0)
        printf("    connect: %s\n", kvc_last_error(sc->control));
    assert(r == 0);
    scene_activate(sc, bpd, seed, digest);
}

void scene_start(struct scene *sc, struct geometry g, double bpd, uint64_t seed, const char *const *args)
{
    struct daemon d;

    assert(daemon_start(&d, DAEMON_BY_PATH, args));
    scene_attach(sc, &d, g, bpd, seed);
}

void scene_detach(struct scene *sc)
{
    sc->control = kvc_client_free(sc->control);
    free(sc->bytes);
    sc->bytes = NULL;
}

void scene_end(struct scene *sc)
{
    scene_detach(sc);
    CU_ASSERT(daemon_stop(&sc->daemon));
}

static struct embedded frame(const struct scene *sc)
{
    return (struct embedded){.g = sc->g, .n_heads = sc->g.n_kv_heads};
}

struct embedded scene_client(const struct scene *sc)
{
    struct embedded m = frame(sc);
    kvc_model_id id = embedded_id(&m);
    int r = kvc_client_new(&m.client);

    assert(r == 0);
    r = kvc_client_connect(m.client, sc->daemon.socket);
    if (r == 0)
        r = kvc_model_open(m.client, &id, &m.model);
    if (r < 0)
        printf("    client: %s\n", kvc_last_error(m.client));
    assert(r == 0);
    return m;
}

struct embedded scene_private(const struct scene *sc)
{
    struct embedded m = frame(sc);
    kvc_model_id id = embedded_id(&m);
    int r = kvc_client_new(&m.client);

    assert(r == 0);
    r = kvc_model_open_table(m.client, &id, sc->bytes, sc->n_bytes, &m.model);
    assert(r == 0);
    return m;
}

void scene_connect_again(kvc_client *c, const char *path)
{
    int r = kvc_client_connect(c, path);

    for (struct wait w = wait_begin(); (r == -ENOTCONN || r == -ETIMEDOUT) && wait_again(&w);)
        r = kvc_client_connect(c, path);
    if (r < 0)
        printf("    connecting again: %s\n", kvc_last_error(c));
    CU_ASSERT_EQUAL_FATAL(r, 0);
}

void scene_reconnect(kvc_client *c, const char *path)
{
    Kvcobra__ListTablesReply *tables = NULL;

    if (operator_list_tables(c, &tables, NULL) < 0)
        scene_connect_again(c, path);
    operator_message_freep(&tables);
}

Kvcobra__StatusReply *scene_status(struct scene *sc)
{
    Kvcobra__StatusReply *s = NULL;
    struct errmsg e = {""};
    int r = operator_get_status(sc->control, &s, &e);

    if (r < 0)
        printf("    status: %s\n", e.text);
    assert(r == 0);
    return s;
}

uint64_t scene_evict(kvc_client *control, const char *tenant)
{
    Kvcobra__EvictReply reply = KVCOBRA__EVICT_REPLY__INIT;

    CU_ASSERT_EQUAL_FATAL(operator_evict(control, tenant, NULL, &reply, NULL), 0);
    return reply.pages;
}

int scene_control_tier(kvc_client *control, Kvcobra__TierAction action, const char *tenant,
                       Kvcobra__ControlTierReply **ret)
{
    Kvcobra__ControlTier m = KVCOBRA__CONTROL_TIER__INIT;
    Kvcobra__ControlTierReply *got = NULL;
    int r;

    m.action = action;
    if (tenant)
        m.tenant = (char *) tenant;
    r = operator_call(control, KVCOBRA__REQUEST__BODY_CONTROL_TIER, &m.base, &got, NULL);
    if (ret)
        *ret = got;
    else
        operator_message_freep(&got);
    return r;
}

const Kvcobra__ControlTierReply *scene_tier(kvc_client *control, Kvcobra__TierAction action)
{
    static Kvcobra__ControlTierReply *last;

    operator_message_freep(&last);
    last = NULL;
    CU_ASSERT_EQUAL_FATAL(scene_control_tier(control, action, NULL, &last), 0);
    return last;
}

bool scene_wait(struct scene *sc, bool (*is_good)(const Kvcobra__StatusReply *s))
{
    struct wait w = wait_begin();
    bool good;

    do {
        Kvcobra__StatusReply *s = scene_status(sc);

        good = is_good(s);
        s = scene_status_free(s);
    } while (!good && wait_again(&w));
    return good;
}

/* ---- sequences ---- */

uint32_t *scene_tokens(uint32_t text, size_t n)
{
    uint32_t *t = malloc(n * sizeof(*t) + 1);

    assert(t);
    for (size_t i = 0; i < n; i++)
        t[i] = (uint32_t) (i * 2654435761u) ^ text << 20;
    return t;
}

int scene_publish(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n, size_t piece,
                  size_t *ret_published)
{
    uint32_t *tokens = scene_tokens(text, first + n);
    int r = 0;

    for (size_t at = first; at < first + n && r == 0; at += piece) {
        size_t k = first + n - at < piece ? first + n - at : piece;

        r = embedded_append(m, s, text, at, k);
        if (r == 0)
            r = kvc_seq_commit(s, tokens, at + k, ret_published);
    }
    free(tokens);
    return r;
}

size_t scene_attend_floats(const struct embedded *m)
{
    return (size_t) m->g.n_layers * m->g.n_heads * m->g.d;
}

float *scene_attend(const struct embedded *m, kvc_seq *s, uint32_t text)
{
    size_t n = kvc_seq_length(s), width = (size_t) m->g.n_heads * m->g.d;
    float *out = malloc(scene_attend_floats(m) * sizeof(*out));

    assert(out && n > 0);
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        float *q = embedded_queries(m, text, layer, n - 1, 1);
        int r = kvc_seq_attend(s, layer, q, 1, out + layer * width);

        assert(r == 0);
        free(q);
    }
    return out;
}

/* ---- children ---- */

/*
 * The parent's ends of all pipes. A later child closes them, since otherwise it keeps the pipes
 * of earlier children open.
 */
static int parent_ends[64];
static size_t n_parent_ends;

/*
 * Runs in the child. CUnit continues after a fatal assertion with the next case, by a jump. In a child this
 * would run the remaining cases and keep the pipes open. So the jump leads here, and the child ends at once.
 */
_Noreturn static void child_run(bool (*run)(const struct scene *sc, int from_parent, int to_parent),
                                const struct scene *sc, int from_parent, int to_parent)
{
    jmp_buf fatal;
    volatile bool good = false; /* volatile: keeps its value over the jump */

    CU_get_current_test()->pJumpBuf = &fatal;
    if (setjmp(fatal) == 0)
        good = run(sc, from_parent, to_parent) && CU_get_number_of_failure_records() == 0;
    for (CU_pFailureRecord f = CU_get_failure_list(); f; f = f->pNext)
        printf("    in a child: %s:%u: %s\n", f->strFileName, f->uiLineNumber, f->strCondition);
    (void) fflush(stdout);
    _exit(good ? 0 : 1);
}

struct child child_start(bool (*run)(const struct scene *sc, int from_parent, int to_parent),
                         const struct scene *sc)
{
    int down[2], up[2];
    struct child c;

    (void) fflush(stdout);
    /* a daemon that starts later must not inherit them */
    assert(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    c.pid = fork();
    assert(c.pid >= 0);
    if (c.pid == 0) {
        assert(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        for (size_t i = 0; i < n_parent_ends; i++)
            (void) close(parent_ends[i]);
        (void) close(down[1]);
        (void) close(up[0]);
        child_run(run, sc, down[0], up[1]);
    }
    (void) close(down[0]);
    (void) close(up[1]);
    c.to = down[1];
    c.from = up[0];
    assert(n_parent_ends + 2 <= sizeof(parent_ends) / sizeof(*parent_ends));
    parent_ends[n_parent_ends++] = c.to;
    parent_ends[n_parent_ends++] = c.from;
    return c;
}

static void close_end(int fd)
{
    (void) close(fd);
    for (size_t i = 0; i < n_parent_ends; i++)
        if (parent_ends[i] == fd)
            parent_ends[i--] = parent_ends[--n_parent_ends];
}

static int reap(struct child *c)
{
    int status = 0;

    close_end(c->to);
    close_end(c->from);
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

bool child_end(struct child *c)
{
    int status = reap(c);

    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void child_kill(struct child *c)
{
    (void) kill(c->pid, SIGKILL);
    (void) reap(c);
}

void pipe_send(int fd, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, (const char *) data + done, bytes - done);

        assert(n > 0 || errno == EINTR);
        done += n > 0 ? (size_t) n : 0;
    }
}

void pipe_receive(int fd, void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fd, (char *) data + done, bytes - done);

        assert(n > 0 || (n < 0 && errno == EINTR));
        done += n > 0 ? (size_t) n : 0;
    }
}

void pipe_signal(int fd)
{
    pipe_send(fd, "!", 1);
}

bool pipe_wait(int fd)
{
    char byte;
    ssize_t n;

    do
        n = read(fd, &byte, 1);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

/* ---- mappings of a process ---- */

size_t mapped_inodes(pid_t pid, const char *object, const char *access, unsigned long *inodes, size_t max)
{
    char path[64], line[512];
    size_t n = 0;
    FILE *f;

    (void) snprintf(path, sizeof(path), "/proc/%d/maps", (int) pid);
    f = fopen(path, "re");
    assert(f);
    while (n < max && fgets(line, sizeof(line), f)) {
        unsigned long inode;

        if (strstr(line, object) && strstr(line, access) && sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1)
            inodes[n++] = inode;
    }
    (void) fclose(f);
    return n;
}
