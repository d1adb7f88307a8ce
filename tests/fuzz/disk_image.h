/*
 * The file `records` of a disk tier (daemon/tier/disk_format.h) without its zeros, as fuzz_disk_records
 * reads it and make_disk_corpus writes it: 44 bytes of the head of the folder, then for each segment its
 * head and the records of all its slots.
 */
#pragma once

#include "daemon/tier/disk_format.h"

enum {
    DISK_IMAGE_SEGMENT_BYTES = 65536,
    DISK_IMAGE_SEGMENTS = 8,
    DISK_IMAGE_SLOTS = DISK_IMAGE_SEGMENT_BYTES / DISK_SLOT_BYTES_MIN, /* records of an area */
    DISK_IMAGE_HEAD_BYTES = 44,
    DISK_IMAGE_AREA_BYTES = DISK_SEGMENT_HEAD_BYTES + DISK_IMAGE_SLOTS * DISK_RECORD_BYTES,
};
