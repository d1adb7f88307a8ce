/* kvc_call(): requests of kvcobra.proto as bytes, with descriptors both ways, and what is refused. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory_file.h"
#include "proto/kvcobra.pb-c.h"
#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static uint8_t packed[4096];

static size_t pack(const ProtobufCMessage *m)
{
    size_t n = protobuf_c_message_get_packed_size(m);

    assert(n <= sizeof(packed));
    return protobuf_c_message_pack(m, packed);
}

static void begin(struct scene *sc)
{
    scene_start(sc, random_table_geometry(2, 4, 2, 64), 3, 1, NULL);
}

/* A table goes to the daemon by a descriptor, and comes back by one. */
static void test_a_table_both_ways(void)
{
    Kvcobra__StageTable stage = KVCOBRA__STAGE_TABLE__INIT;
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    kvc_reply reply = {.struct_bytes = sizeof(reply)};
    Kvcobra__StageTableReply *staged;
    struct embedded other = embedded_new(2, 4, 2, 64, 2, 0, 0);
    size_t n = other.n_bytes;
    char *back = malloc(n);
    struct scene sc;
    int fd = memory_file_open("table");

    begin(&sc);
    CU_ASSERT_FATAL(fd >= 0 && write(fd, other.bytes, n) == (ssize_t) n &&
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
    stage.bytes = n;
    CU_ASSERT_EQUAL_FATAL(
        kvc_call(sc.control, KVCOBRA__REQUEST__BODY_STAGE_TABLE, packed, pack(&stage.base), fd, &reply), 0);
    CU_ASSERT_EQUAL(reply.fd, -1);
    staged = kvcobra__stage_table_reply__unpack(NULL, reply.n_bytes, reply.bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(staged);
    free(reply.bytes);

    fetch.digest = staged->digest;
    CU_ASSERT_EQUAL_FATAL(
        kvc_call(sc.control, KVCOBRA__REQUEST__BODY_FETCH_TABLE, packed, pack(&fetch.base), -1, &reply), 0);
    CU_ASSERT_FATAL(reply.fd >= 0);
    CU_ASSERT_EQUAL(pread(reply.fd, back, n, 0), (ssize_t) n);
    CU_ASSERT_EQUAL(memcmp(back, other.bytes, n), 0);
    (void) close(reply.fd);
    free(reply.bytes);
    /* without a place for the reply */
    CU_ASSERT_EQUAL(
        kvc_call(sc.control, KVCOBRA__REQUEST__BODY_FETCH_TABLE, packed, pack(&fetch.base), -1, NULL), 0);
    kvcobra__stage_table_reply__free_unpacked(staged, NULL);
    (void) close(fd);
    free(back);
    embedded_free(&other);
    scene_end(&sc);
}

static void test_refused(void)
{
    Kvcobra__Evict evict = KVCOBRA__EVICT__INIT;
    kvc_reply reply = {.struct_bytes = sizeof(reply), .n_bytes = 77};
    static const uint8_t no_message[] = {0xff, 0xff, 0xff};
    kvc_client *alone = NULL;
    struct scene sc;
    struct embedded m;

    begin(&sc);
    evict.tenant = (char *) "stranger";
    CU_ASSERT_EQUAL(kvc_call(NULL, KVCOBRA__REQUEST__BODY_EVICT, NULL, 0, -1, &reply), -EINVAL);
    CU_ASSERT_EQUAL(kvc_call(sc.control, KVCOBRA__REQUEST__BODY_EVICT, packed, pack(&evict.base), -1, &reply),
                    -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(sc.control), "stranger")); /* the daemon's sentence */
    CU_ASSERT_EQUAL(kvc_call(sc.control, KVCOBRA__REQUEST__BODY_EVICT, no_message, 3, -1, &reply), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(sc.control), "kvcobra.Evict"));
    CU_ASSERT_EQUAL(kvc_call(sc.control, KVCOBRA__REQUEST__BODY_EVICT, NULL, 3, -1, &reply), -EINVAL);
    CU_ASSERT_EQUAL(kvc_call(sc.control, KVCOBRA__REQUEST__BODY_EVICT, packed, 1 << 20, -1, &reply), -EINVAL);
    CU_ASSERT_EQUAL(kvc_call(sc.control, 4711, NULL, 0, -1, &reply), -EINVAL);
    CU_ASSERT_EQUAL(kvc_call(sc.control, 1, NULL, 0, -1, &reply), -EINVAL); /* the id, no message */
    CU_ASSERT_EQUAL(
        kvc_call(sc.control, KVCOBRA__REQUEST__BODY_GET_STATUS, NULL, 0, -1, &(kvc_reply){.struct_bytes = 4}),
        -EINVAL);
    CU_ASSERT_EQUAL(reply.n_bytes, 77);

    m = scene_client(&sc);
    CU_ASSERT_EQUAL(kvc_call(m.client, KVCOBRA__REQUEST__BODY_EVICT, NULL, 0, -1, &reply), -EPERM);
    for (uint32_t kind = 1; kind < 60; kind++) { /* what would confuse the client's own calls */
        bool of_session =
            kind < 20 || kind == 22 || kind == 23 || kind == 28 || (kind >= 30 && kind <= 36) || kind == 52;

        if (of_session)
            CU_ASSERT_EQUAL(kvc_call(m.client, kind, NULL, 0, -1, &reply), -EINVAL);
    }
    CU_ASSERT_EQUAL(kvc_client_new(&alone), 0);
    CU_ASSERT_EQUAL(kvc_call(alone, KVCOBRA__REQUEST__BODY_GET_STATUS, NULL, 0, -1, &reply), -ENOTCONN);
    CU_ASSERT_EQUAL(reply.n_bytes, 77);
    (void) kvc_client_free(alone);
    embedded_free(&m);
    scene_end(&sc);
}

const char test_suite[] = "client_call";
const struct test_case test_cases[] = {TEST(test_a_table_both_ways), TEST(test_refused), TEST_END};
