/* APPEND_RAW and READ_RAW; see raw_vectors_fixture.h. */
#include "tests/e2e/raw_vectors_fixture.h"

#include <string.h>

#include "gpu/page_layout.h"
#include "tests/lib/test.h"

static uint32_t tokens[CHUNK_TOKENS];

Kvcobra__AppendRaw raw_append_of(struct raw_model *m, uint32_t first_token)
{
    Kvcobra__AppendRaw a = KVCOBRA__APPEND_RAW__INIT;
    float *x = (float *) m->arena;

    for (size_t i = 0; i < 2 * RAW_SIDE_BYTES / sizeof(*x); i++)
        x[i] = (float) ((i + first_token) * 37 % 101) / 50 - 1;
    for (uint32_t i = 0; i < CHUNK_TOKENS; i++)
        tokens[i] = first_token + i;
    a.model = m->handle;
    a.table_digest = (ProtobufCBinaryData){32, m->table_digest};
    a.tokens = tokens;
    a.n_tokens = CHUNK_TOKENS;
    a.v_offset = RAW_SIDE_BYTES;
    a.k_bytes = a.v_bytes = RAW_SIDE_BYTES;
    return a;
}

int raw_append(struct raw_model *m, Kvcobra__AppendRaw *a, uint64_t *ret_lease)
{
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_APPEND_RAW, a);
    Kvcobra__Reply *reply = raw_request(m->fd, &q, NULL, 0, NULL);
    int r;

    CU_ASSERT_PTR_NOT_NULL_FATAL(reply);
    r = reply->err;
    CU_ASSERT_EQUAL(r == 0, reply->body_case == KVCOBRA__REPLY__BODY_APPEND_RAW);
    CU_ASSERT_EQUAL(r == 0, reply->message[0] == '\0');
    if (r == 0 && ret_lease)
        *ret_lease = reply->append_raw->lease;
    wire_reply_free(reply);
    return r;
}

int raw_read(struct raw_model *m, uint64_t lease, uint32_t item, uint32_t layer, uint32_t side, int type,
             uint64_t offset)
{
    Kvcobra__ReadRaw body = KVCOBRA__READ_RAW__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_READ_RAW, &body);

    body.lease = lease;
    body.item = item;
    body.layer = layer;
    body.side = side;
    body.type = (Kvcobra__NumberType) type;
    body.arena_offset = offset;
    return raw_errno(m->fd, &q);
}

void raw_send_append(struct raw_model *m, uint32_t first_token)
{
    Kvcobra__AppendRaw a = raw_append_of(m, first_token);
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_APPEND_RAW, &a);
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    ssize_t n = wire_request_pack(&q, packet);

    assert(n > 0 && wire_send(m->fd, packet, (size_t) n, NULL, 0) == 0);
}
