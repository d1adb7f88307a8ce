/* Messages with random numbers; see stress_client.h. */
#include "tests/e2e/stress_client.h"

#include "alloc/table/table.h"
#include "base/splitmix64.h"

static uint64_t number(uint64_t *random)
{
    static const uint64_t special[] = {0,   1,   2,          63,         64,        65,
                                       512, 513, UINT32_MAX, UINT64_MAX, INT64_MAX, 1u << 14};

    return stress_below(random, 2) ? special[stress_below(random, sizeof(special) / sizeof(special[0]))]
                                   : splitmix64_next(random) >> stress_below(random, 64);
}

static ProtobufCBinaryData digest(uint64_t *random)
{
    static uint8_t any[32];

    if (stress_below(random, 4) == 0)
        return (ProtobufCBinaryData){32, any};
    return (ProtobufCBinaryData){
        stress_below(random, 8) ? 32 : stress_below(random, 33),
        stress_tables[stress_below(random, STRESS_TABLES)]->digest,
    };
}

static Kvcobra__Request get_extent(uint64_t *random, void *room)
{
    Kvcobra__GetExtent *b = room;

    kvcobra__get_extent__init(b);
    b->extent = stress_below(random, 2) ? stress_below(random, 20) : number(random);
    return raw_of(KVCOBRA__REQUEST__BODY_GET_EXTENT, b);
}

static Kvcobra__Request ref_table(uint64_t *random, void *room)
{
    Kvcobra__RefTable *b = room;

    kvcobra__ref_table__init(b);
    b->model = (uint32_t) stress_below(random, 3);
    b->digest = digest(random);
    return raw_of(KVCOBRA__REQUEST__BODY_REF_TABLE, b);
}

static Kvcobra__Request unref_table(uint64_t *random, void *room)
{
    Kvcobra__UnrefTable *b = room;

    kvcobra__unref_table__init(b);
    b->model = (uint32_t) stress_below(random, 3);
    b->digest = digest(random);
    return raw_of(KVCOBRA__REQUEST__BODY_UNREF_TABLE, b);
}

static Kvcobra__Request fetch_table(uint64_t *random, void *room)
{
    Kvcobra__FetchTable *b = room;

    kvcobra__fetch_table__init(b);
    b->digest = digest(random);
    return raw_of(KVCOBRA__REQUEST__BODY_FETCH_TABLE, b);
}

static Kvcobra__Request append_raw(uint64_t *random, void *room)
{
    static uint32_t tokens[64];
    Kvcobra__AppendRaw *b = room;

    kvcobra__append_raw__init(b);
    b->model = 1;
    b->table_digest = digest(random);
    for (int i = 0; i < 64; i++)
        tokens[i] = (uint32_t) stress_below(random, 3);
    b->tokens = tokens;
    b->n_tokens = stress_below(random, 8) ? 64 : stress_below(random, 65);
    b->type = (Kvcobra__NumberType) stress_below(random, 4);
    b->k_offset = stress_below(random, 2) ? 0 : number(random);
    b->v_offset = stress_below(random, 2) ? 0 : number(random);
    b->only_find = stress_below(random, 4) == 0;
    return raw_of(KVCOBRA__REQUEST__BODY_APPEND_RAW, b);
}

static Kvcobra__Request read_raw(uint64_t *random, const uint64_t *held, size_t n_held, void *room)
{
    Kvcobra__ReadRaw *b = room;

    kvcobra__read_raw__init(b);
    b->lease = n_held > 0 && stress_below(random, 4) ? held[stress_below(random, n_held)] : number(random);
    b->item = (uint32_t) stress_below(random, 2);
    b->layer = (uint32_t) stress_below(random, 3);
    b->side = (uint32_t) stress_below(random, 3);
    b->type = (Kvcobra__NumberType) stress_below(random, 4);
    b->arena_offset = stress_below(random, 2) ? STRESS_ARENA_USED : number(random);
    return raw_of(KVCOBRA__REQUEST__BODY_READ_RAW, b);
}

static Kvcobra__Request report(uint64_t *random, void *room)
{
    static Kvcobra__LayerSums sums[2];
    static Kvcobra__LayerSums *layers[] = {&sums[0], &sums[1]};
    Kvcobra__Report *b = room;

    kvcobra__report__init(b);
    b->model = 1;
    b->table_digest = digest(random);
    b->tokens = stress_below(random, 100);
    b->coded_k = number(random);
    b->saturated_k = stress_below(random, 4) ? 0 : number(random);
    for (int i = 0; i < 2; i++) {
        kvcobra__layer_sums__init(&sums[i]);
        sums[i].signal_k = sums[i].signal_v = (double) stress_below(random, 10);
        sums[i].error_k = (double) number(random);
    }
    b->layers = layers;
    b->n_layers = stress_below(random, 3);
    b->moments_offset = stress_below(random, 2) ? 0 : number(random);
    b->moments_bytes = stress_below(random, 2) ? stress_below(random, 65536) : number(random);
    return raw_of(KVCOBRA__REQUEST__BODY_REPORT, b);
}

static Kvcobra__Request release(uint64_t *random, void *room)
{
    Kvcobra__Release *b = room;

    kvcobra__release__init(b);
    b->lease = number(random) | UINT64_C(1) << 63; /* no lease of this client: no serial is that large */
    return raw_of(KVCOBRA__REQUEST__BODY_RELEASE, b);
}

/* Never marked as the last message, so the daemon releases nothing. */
static Kvcobra__Request keep_leases(uint64_t *random, const uint64_t *held, size_t n_held, void *room)
{
    static uint64_t leases[4];
    Kvcobra__KeepLeases *b = room;

    kvcobra__keep_leases__init(b);
    for (int i = 0; i < 4; i++)
        leases[i] = n_held > 0 ? held[stress_below(random, n_held)] : number(random);
    b->leases = leases;
    b->n_leases = stress_below(random, 5);
    return raw_of(KVCOBRA__REQUEST__BODY_KEEP_LEASES, b);
}

Kvcobra__Request stress_request(uint64_t *random, const uint64_t *held, size_t n_held, void *room)
{
    switch (stress_below(random, 9)) {
    case 0:
        return get_extent(random, room);
    case 1:
        return ref_table(random, room);
    case 2:
        return unref_table(random, room);
    case 3:
        return fetch_table(random, room);
    case 4:
        return append_raw(random, room);
    case 5:
        return read_raw(random, held, n_held, room);
    case 6:
        return report(random, room);
    case 7:
        return release(random, room);
    default:
        return keep_leases(random, held, n_held, room);
    }
}
