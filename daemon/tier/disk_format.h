/*
 * The file `records` of a disk tier: what the tier has, without the pages. A start reads this file and no
 * page.
 *
 *     0       the head of the folder, 4096 bytes
 *     4096    the area of segment 0, then that of segment 1 ...: the head of the segment, 256 bytes, then a
 *             log of its pages: one record of 32 bytes for each slot, in the order in which slots are filled
 *
 * The file is sparse: an area takes room for the slots that were filled.
 *
 * A segment has a new generation each time it begins, and a record counts only with the generation of its
 * segment. So one write of the head ends all records of the segment's earlier life, and no log is ever
 * compacted. Records are not synced: after a power cut, a record may be missing (a miss), or name a page that
 * was not written (it does not open, a miss).
 *
 * Head of the folder: magic "KVDT" 0 (u32), version 4 (u32), fleet 8 (16 bytes, keyring_fleet()), segment
 * bytes 24 (u64), counter 32 (u64), format of the pages 40 (u32, PAGE_FORMAT_VERSION), zeros, CRC32C of bytes
 * 0 to 4091 at 4092, where the counter counts as zeros: it is written alone, while the tier runs, so a power
 * cut cannot damage the head. An older copy of the file has a smaller counter. Version 1 did not have the
 * format of the pages. Magic, version, fleet and checksum keep their places in all versions.
 *
 * Head of a segment: magic "KVDS" 0 (u32), number 4 (u32), generation 8 (u64), slot bytes 16 (u64), page
 * bytes 24 (u64), slots 32 (u32), first head 36 (u16), heads 38 (u16), class 40 (u8), zeros, table digest
 * 48 (32 bytes), tenant 80 (64 bytes, ended by zeros), zeros, CRC32C of bytes 0 to 251 at 252.
 *
 * Record of a page: chunk key 0 (16 bytes), generation 16 (u64), slot 24 (u32), CRC32C of bytes 0 to 27 and
 * then of the segment's number (u32) at 28. All zeros: no page.
 *
 * Integers are little-endian. These functions accept any bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/tier/tier.h"
#include "proto/page.h"

struct errmsg;

#define DISK_FOLDER_MAGIC 0x5444564bu  /* "KVDT" */
#define DISK_SEGMENT_MAGIC 0x5344564bu /* "KVDS" */
#define DISK_VERSION 2

#define DISK_FOLDER_HEAD_BYTES 4096
#define DISK_COUNTER_OFFSET 32
#define DISK_SEGMENT_HEAD_BYTES 256
#define DISK_RECORD_BYTES 32

#define DISK_FLEET_BYTES 16 /* KEYRING_FLEET_BYTES */
#define DISK_CLASSES 2

#define DISK_SEGMENTS_MAX 65536u
#define DISK_SLOTS_MAX 65536u    /* of a segment */
#define DISK_SLOT_BYTES_MIN 4096 /* and the least alignment of slots */
#define DISK_SEGMENT_BYTES_MIN (UINT64_C(1) << 16)
#define DISK_SEGMENT_BYTES_MAX (UINT64_C(1) << 28)
#define DISK_SEGMENT_BYTES_CHOSEN_MIN (UINT64_C(1) << 20) /* of a tier of any size; tests have smaller ones */
/* A stored generation above this is damage: no tier uses up so many. */
#define DISK_GENERATION_MAX (UINT64_C(1) << 55)

struct disk_folder_head {
    uint32_t version;
    uint32_t page_format;
    uint8_t fleet[DISK_FLEET_BYTES];
    uint64_t segment_bytes;
    uint64_t counter;
};

struct disk_segment_head {
    uint32_t number;
    uint64_t generation; /* from 1 */
    uint64_t slot_bytes;
    uint32_t n_slots;
    struct tier_group group;
};

struct disk_record {
    struct chunk_key key;
    uint64_t generation;
    uint32_t slot;
};

/* Bytes of a slot for pages of @page_bytes; 0: more than @segment_bytes. @align: a power of two. */
uint64_t disk_slot_bytes(uint64_t page_bytes, uint64_t align, uint64_t segment_bytes);

/* Offset of a segment's head, and of the record of a slot, in the file. */
uint64_t disk_segment_head_offset(uint32_t segment, uint64_t segment_bytes);
uint64_t disk_record_offset(uint32_t segment, uint32_t slot, uint64_t segment_bytes);

void disk_folder_head_store(const struct disk_folder_head *h, uint8_t ret[static DISK_FOLDER_HEAD_BYTES]);

/*
 * Return: 0; DISK_HEAD_IS_OLDER: an earlier kvcobrad wrote the head, or pages in an earlier format: *ret has
 * its version, the format of its pages (0 in version 1) and its fleet; -EBADMSG: not such a head, or damaged;
 * -EPROTO: a newer kvcobrad wrote it; with a sentence.
 */
enum { DISK_HEAD_IS_OLDER = 1 };
int disk_folder_head_load(const uint8_t bytes[static DISK_FOLDER_HEAD_BYTES], struct disk_folder_head *ret,
                          struct errmsg *e);

void disk_segment_head_store(const struct disk_segment_head *h, uint8_t ret[static DISK_SEGMENT_HEAD_BYTES]);

/* False: the segment @number has no pages: its head is empty, damaged or of another segment. */
bool disk_segment_head_load(const uint8_t bytes[static DISK_SEGMENT_HEAD_BYTES], uint32_t number,
                            uint64_t segment_bytes, struct disk_segment_head *ret);

void disk_record_store(const struct disk_record *r, uint32_t segment, uint8_t ret[static DISK_RECORD_BYTES]);

/* False: slot @slot of this life of the segment has no page. */
bool disk_record_load(const uint8_t bytes[static DISK_RECORD_BYTES], const struct disk_segment_head *h,
                      uint32_t slot, struct disk_record *ret);
