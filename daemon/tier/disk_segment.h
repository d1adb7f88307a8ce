/*
 * Segments of the map: which one begins, which one is discarded, and the tenants and groups that they belong
 * to. For disk_map.c, which has the pages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct chunk_key;
struct disk_group;
struct tier_group;
struct disk_map;
struct disk_owner;
struct disk_segment;

struct disk_owner *disk_segment_find_owner(const struct disk_map *m, const char *tenant);
struct disk_group *disk_segment_find_group(const struct disk_owner *o, const struct tier_group *id);

/*
 * The group of @id, created with its tenant if they are new. NULL: no memory. It ends with its last
 * segment.
 */
struct disk_group *disk_segment_make_group(struct disk_map *m, const struct tier_group *id,
                                           uint64_t slot_bytes);

/* Frees a group without segments, and its tenant if that was its last one. */
void disk_segment_free_unused(struct disk_map *m, struct disk_group *g);

/**
 * disk_segment_begin() - make an unused segment the open one of @g
 * @generation: its life
 *
 * Return: 0; -ENOMEM.
 */
int disk_segment_begin(struct disk_map *m, struct disk_segment *s, struct disk_group *g, uint32_t n_slots,
                       uint64_t generation);

/* Adds a segment to the end of its tenant's queue. */
void disk_segment_enqueue(struct disk_segment *s);

/* Makes @s unused: its pages leave the map, and its group and tenant end with their last segment. */
void disk_segment_discard(struct disk_map *m, struct disk_segment *s);

/* The segment of @o to discard next; NULL: writes are in flight in all of them. */
struct disk_segment *disk_segment_victim(struct disk_owner *o);

/* The tenant that gives a segment to @asker (NULL: a new tenant) if the tier is full. */
struct disk_owner *disk_segment_giver(const struct disk_map *m, struct disk_owner *asker);

/*
 * The index entry of a key that is WRITING or PRESENT. False: there is none.
 */
bool disk_segment_find_slot(const struct disk_map *m, const struct disk_owner *o, const struct chunk_key *key,
                            struct disk_segment **ret_segment, uint32_t *ret_slot);

/* Return: 0; -ENOSPC: the index has no place for the key; -ENOMEM. */
int disk_segment_index_slot(struct disk_map *m, struct disk_segment *s, uint32_t slot);
void disk_segment_unindex_slot(struct disk_segment *s, uint32_t slot);
