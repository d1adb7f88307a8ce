/*
 * Every limit of the protocol, for both ends. tests/unit/proto/test_wire.c encodes the worst case of each
 * message within them and compares it with the size of a packet.
 */
#pragma once

#include <stdint.h>

#define PROTO_VERSION 1
#define PROTO_VERSION_MIN 1 /* a daemon of version N serves N-1 too; 1 is the first */

/*
 * The version that both ends of a connection speak: the newest one that is within both ranges. Each range
 * is from a least to a greatest version. Return: the version; 0: the ranges have none in common, or one is
 * empty.
 */
static inline uint32_t protocol_common(uint32_t own_min, uint32_t own_max, uint32_t peer_min,
                                       uint32_t peer_max)
{
    uint32_t min = own_min > peer_min ? own_min : peer_min;
    uint32_t max = own_max < peer_max ? own_max : peer_max;

    return own_min <= own_max && peer_min <= peer_max && min <= max ? max : 0;
}

#define WIRE_PACKET_BYTES_MAX 65536
#define WIRE_FDS_MAX 4     /* per packet */
#define WIRE_ITEMS_MAX 512 /* per message; ReserveItem .. LeaseItem */
/* Fields that a version does not know: per message, and WIRE_ITEMS_MAX in all messages of a packet together,
 * so that a newer version may add a field to each item of a list */
#define WIRE_UNKNOWN_FIELDS_MAX 16
#define WIRE_LIST_ITEMS_MAX 64 /* per page of LIST and STATUS */
#define WIRE_TABLES_MAX 64     /* of one ACTIVATE */
#define WIRE_ALIASES_MAX 256   /* of a daemon, all in one reply */
#define WIRE_SESSIONS_MAX 64   /* per page of LIST_SESSIONS */
#define WIRE_EVENTS_MAX 16     /* per page of LIST_EVENTS */
#define WIRE_EVENT_BYTES_MAX 2048
#define WIRE_DEVICES_MAX 17 /* of a daemon: host memory and 16 GPUs */
#define WIRE_PRODUCT_BYTES_MAX 127
#define WIRE_TEXT_BYTES_MAX 512 /* sentence in a reply, reason of a rejection */
#define WIRE_CLIENT_NAME_BYTES_MAX 64
#define WIRE_UNPACK_BYTES_MAX (1u << 18) /* heap that decoding one packet may take */

#define SESSION_TOKEN_BYTES 32
#define BOOT_ID_BYTES 16
