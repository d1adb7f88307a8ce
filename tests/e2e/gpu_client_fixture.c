/* Clients of a GPU pool; see gpu_client_fixture.h. */
#include "tests/e2e/gpu_client_fixture.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "base/splitmix64.h"
#include "gpu/cuda/extent.h"
#include "gpu/page_layout.h"
#include "tests/e2e/other_user_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { EXTENTS_MAX = 64, SPACE_BYTES = 64 << 20 };

enum verb {
    OPEN,
    RESUME,
    DISCONNECT,
    BYE,
    RESERVE,
    FILL,
    COMMIT,
    ABORT,
    LEASE,
    RELEASE,
    KEEP,
    READ,
    DAMAGE,
    GET_EXTENT,
    READ_RAW,
    END
};

struct order {
    enum verb verb;
    uint64_t n; /* chunk, lease or extent */
    struct raw_slot slot;
    char uuid[48];
};

struct answer {
    int err;
    uint64_t lease;
    struct raw_slot slot;
};

/* ---- in the process ---- */

static struct raw_model model;
static bool connected;
static uint8_t token[SESSION_TOKEN_BYTES];
static struct cuda_driver *driver;
static struct cuda_space *space;
static struct {
    uint64_t id;
    struct cuda_extent *extent;
} imported[EXTENTS_MAX];
static size_t n_imported;

static void open_driver(void)
{
    struct cuda_device_info info;
    struct errmsg e = {""};

    if (cuda_driver_open(&driver, &e) < 0 || cuda_device_find(driver, NULL, &info, &e) < 0 ||
        cuda_space_new(driver, &info, SPACE_BYTES, &space, &e) < 0) {
        fprintf(stderr, "no stand-in driver: %s\n", e.text);
        _exit(3);
    }
}

static struct cuda_extent *extent(uint64_t id)
{
    struct errmsg e = {""};
    size_t bytes;
    int fd, r;

    for (size_t i = 0; i < n_imported; i++)
        if (imported[i].id == id)
            return imported[i].extent;
    assert(n_imported < EXTENTS_MAX);
    if (raw_get_extent(&model, id, &fd, &bytes) < 0)
        return NULL;
    r = cuda_extent_import(space, fd, bytes, CU_ACCESS_READ_WRITE, &imported[n_imported].extent, &e);
    if (r < 0) {
        fprintf(stderr, "extent %llu: %s\n", (unsigned long long) id, e.text);
        _exit(3);
    }
    imported[n_imported].id = id;
    return imported[n_imported++].extent;
}

/* The payload of chunk @n: random bytes with @n as the seed. Return: their CRC32C. */
static uint32_t make_payload(uint64_t n, uint8_t *ret, size_t bytes)
{
    uint64_t state = n;

    for (size_t i = 0; i < bytes; i++)
        ret[i] = (uint8_t) splitmix64_next(&state);
    return crc32c(ret, bytes);
}

enum { GREETED_LATE = 1 };

/*
 * Return: 0, with a connection and the reply to CONFIRM; errno of HELLO; GREETED_LATE: the daemon closed the
 * connection, since on a busy machine HELLO and CONFIRM may be further apart than --handshake-ms.
 */
static int greet(const char *uuid, bool resume, int *ret_fd, Kvcobra__Reply **ret_reply)
{
    Kvcobra__Confirm confirm = KVCOBRA__CONFIRM__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_CONFIRM, &confirm);
    int fd = raw_connect(raw_daemon.socket), r = raw_hello_on(fd, uuid, resume, token);

    if (r == 0) {
        *ret_fd = fd;
        *ret_reply = raw_request(fd, &q, NULL, 0, NULL);
        r = *ret_reply ? 0 : GREETED_LATE;
    }
    if (r != 0)
        (void) close(fd);
    return r;
}

static int open_session(const char *uuid, bool resume)
{
    Kvcobra__Reply *reply = NULL;
    int fd, r = greet(uuid, resume, &fd, &reply);

    for (struct wait w = wait_begin(); (r == -EAGAIN || r == GREETED_LATE) && wait_again(&w);)
        r = greet(uuid, resume, &fd, &reply);
    if (r < 0)
        return r;
    assert(reply && reply->err == 0 && reply->confirm->resumed == resume &&
           strcmp(reply->confirm->device->uuid, uuid) == 0);
    wire_reply_free(reply);
    connected = true;
    return raw_open_model(fd, &raw_geometry, random_table_model_digest, &model);
}

static void do_bye(struct answer *a)
{
    Kvcobra__Bye bye = KVCOBRA__BYE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_BYE, &bye);

    a->err = raw_errno(model.fd, &q);
    raw_close_model(&model);
    connected = false;
}

static int fill_or_read(const struct order *o)
{
    uint8_t payload[GPU_PAGE_BYTES - PAGE_HEADER_BYTES], found[sizeof(payload)];
    struct cuda_extent *x = extent(o->slot.extent);
    size_t at = o->slot.offset + PAGE_HEADER_BYTES;
    struct errmsg e = {""};

    if (!x)
        return -ENOENT;
    (void) make_payload(o->n, payload, sizeof(payload));
    if (o->verb == FILL)
        return cuda_extent_write(x, at, payload, sizeof(payload), &e);
    if (cuda_extent_read(x, at, found, sizeof(found), &e) < 0)
        return -EIO;
    if (o->verb == READ)
        return memcmp(payload, found, sizeof(found)) == 0 ? 0 : -EBADMSG;
    found[77] ^= 1;
    return cuda_extent_write(x, at, found, sizeof(found), &e);
}

static int read_raw(uint64_t lease)
{
    Kvcobra__ReadRaw body = KVCOBRA__READ_RAW__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_READ_RAW, &body);

    body.lease = lease;
    return raw_errno(model.fd, &q);
}

static void obey(const struct order *o, struct answer *a)
{
    struct chunk_key key = raw_key(o->n);
    uint8_t payload[GPU_PAGE_BYTES - PAGE_HEADER_BYTES];
    size_t granted = 0, bytes;
    int reason, fd;

    switch (o->verb) {
    case OPEN:
    case RESUME:
        a->err = open_session(o->uuid, o->verb == RESUME);
        break;
    case DISCONNECT:
        raw_close_model(&model);
        connected = false;
        break;
    case BYE:
        do_bye(a);
        break;
    case RESERVE:
        a->slot = raw_reserve(&model, &key, PAGE_REST);
        a->err = a->slot.err;
        break;
    case FILL:
    case READ:
    case DAMAGE:
        a->err = fill_or_read(o);
        break;
    case COMMIT:
        a->err =
            raw_commit_crc(&model, &o->slot, &key, make_payload(o->n, payload, sizeof(payload)), &a->lease);
        break;
    case ABORT:
        a->err = raw_abort(&model, &o->slot);
        break;
    case LEASE:
        a->err = raw_lease(&model, &key, &o->slot, 1, &granted, &a->lease, &reason);
        if (a->err == 0 && granted == 0)
            a->err = -ENODATA;
        break;
    case RELEASE:
        a->err = raw_release(&model, o->n);
        break;
    case KEEP:
        a->err = raw_keep(&model, &o->n, o->n != 0);
        break;
    case GET_EXTENT:
        a->err = raw_get_extent(&model, o->n, &fd, &bytes);
        if (a->err == 0)
            (void) close(fd);
        break;
    case READ_RAW:
        a->err = read_raw(o->n);
        break;
    case END:
        break;
    }
}

_Noreturn static void run(int fd, uid_t uid)
{
    struct order o;

    open_driver();
    if (uid != getuid())
        other_user_become(uid);
    while (read(fd, &o, sizeof(o)) == sizeof(o) && o.verb != END) {
        struct answer a = {0};

        obey(&o, &a);
        if (write(fd, &a, sizeof(a)) != sizeof(a))
            _exit(4);
    }
    if (connected)
        do_bye(&(struct answer){0});
    for (size_t i = 0; i < n_imported; i++)
        (void) cuda_extent_free(imported[i].extent);
    (void) cuda_space_free(space);
    (void) cuda_driver_close(driver);
    _exit(0);
}

/* ---- in the test ---- */

struct gpu_client gpu_client_new(void)
{
    return gpu_client_new_as(getuid());
}

struct gpu_client gpu_client_new_as(uid_t uid)
{
    struct gpu_client a;
    int pair[2];

    assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    a.pid = fork();
    assert(a.pid >= 0);
    if (a.pid == 0) {
        (void) close(pair[0]);
        run(pair[1], uid);
    }
    (void) close(pair[1]);
    a.fd = pair[0];
    return a;
}

void gpu_client_kill(struct gpu_client *a)
{
    assert(kill(a->pid, SIGKILL) == 0 && waitpid(a->pid, NULL, 0) == a->pid);
    (void) close(a->fd);
}

void gpu_client_kill_busy(struct gpu_client *a, uint64_t n, const struct raw_slot *s)
{
    struct order o = {.verb = s ? COMMIT : RESERVE, .n = n};

    if (s)
        o.slot = *s;
    assert(write(a->fd, &o, sizeof(o)) == sizeof(o));
    gpu_client_kill(a);
}

bool gpu_client_end(struct gpu_client *a)
{
    /* an explicit order: closing the socket is not enough, since later clients inherit a copy of it */
    struct order o = {.verb = END};
    int status;

    assert(write(a->fd, &o, sizeof(o)) == sizeof(o));
    (void) close(a->fd);
    return waitpid(a->pid, &status, 0) == a->pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static struct answer tell(struct gpu_client *a, const struct order *o)
{
    struct answer answer;

    assert(write(a->fd, o, sizeof(*o)) == sizeof(*o));
    /* no answer: the process has ended because one of its checks failed */
    assert(read(a->fd, &answer, sizeof(answer)) == sizeof(answer));
    return answer;
}

static struct answer tell_n(struct gpu_client *a, enum verb verb, uint64_t n, const struct raw_slot *s)
{
    struct order o = {.verb = verb, .n = n};

    if (s)
        o.slot = *s;
    return tell(a, &o);
}

int gpu_open(struct gpu_client *a, const char *uuid)
{
    struct order o = {.verb = OPEN};

    (void) snprintf(o.uuid, sizeof(o.uuid), "%s", uuid);
    return tell(a, &o).err;
}

int gpu_resume(struct gpu_client *a)
{
    return tell(a, &(struct order){.verb = RESUME, .uuid = GPU_UUID}).err;
}

void gpu_disconnect(struct gpu_client *a)
{
    (void) tell_n(a, DISCONNECT, 0, NULL);
}

int gpu_bye(struct gpu_client *a)
{
    return tell_n(a, BYE, 0, NULL).err;
}

struct raw_slot gpu_reserve(struct gpu_client *a, uint64_t n)
{
    return tell_n(a, RESERVE, n, NULL).slot;
}

struct raw_slot gpu_reserve_soon(struct gpu_client *a, uint64_t n)
{
    struct raw_slot s = gpu_reserve(a, n);

    for (struct wait w = wait_begin(); s.err == -EAGAIN && wait_again(&w);)
        s = gpu_reserve(a, n);
    return s;
}

int gpu_fill(struct gpu_client *a, uint64_t n, const struct raw_slot *s)
{
    return tell_n(a, FILL, n, s).err;
}

int gpu_commit(struct gpu_client *a, uint64_t n, const struct raw_slot *s, uint64_t *ret_lease)
{
    struct answer x = tell_n(a, COMMIT, n, s);

    if (ret_lease)
        *ret_lease = x.lease;
    return x.err;
}

int gpu_abort(struct gpu_client *a, const struct raw_slot *s)
{
    return tell_n(a, ABORT, 0, s).err;
}

struct raw_slot gpu_publish(struct gpu_client *a, uint64_t n, uint64_t *ret_lease)
{
    struct raw_slot s = gpu_reserve_soon(a, n);

    CU_ASSERT_EQUAL_FATAL(s.err, 0);
    CU_ASSERT_FALSE_FATAL(s.exists);
    CU_ASSERT_EQUAL_FATAL(gpu_fill(a, n, &s), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_commit(a, n, &s, ret_lease), 0);
    return s;
}

int gpu_lease(struct gpu_client *a, uint64_t n, const struct raw_slot *s, uint64_t *ret_lease)
{
    struct answer x = tell_n(a, LEASE, n, s);

    if (ret_lease)
        *ret_lease = x.lease;
    return x.err;
}

int gpu_release(struct gpu_client *a, uint64_t lease)
{
    return tell_n(a, RELEASE, lease, NULL).err;
}

int gpu_keep(struct gpu_client *a, uint64_t lease)
{
    return tell_n(a, KEEP, lease, NULL).err;
}

bool gpu_reads(struct gpu_client *a, uint64_t n, const struct raw_slot *s)
{
    return tell_n(a, READ, n, s).err == 0;
}

void gpu_damage(struct gpu_client *a, const struct raw_slot *s)
{
    CU_ASSERT_EQUAL(tell_n(a, DAMAGE, 0, s).err, 0);
}

int gpu_get_extent(struct gpu_client *a, uint64_t extent)
{
    return tell_n(a, GET_EXTENT, extent, NULL).err;
}

int gpu_read_raw(struct gpu_client *a, uint64_t lease)
{
    return tell_n(a, READ_RAW, lease, NULL).err;
}
