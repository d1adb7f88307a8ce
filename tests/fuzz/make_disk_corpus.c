/* Writes the seeds of fuzz_disk_records: make_disk_corpus CORPUS_DIRECTORY */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"
#include "tests/fuzz/disk_image.h"

static uint8_t image[DISK_IMAGE_HEAD_BYTES + DISK_IMAGE_SEGMENTS * DISK_IMAGE_AREA_BYTES];

static void begin(void)
{
    struct disk_folder_head h = {

        .version = DISK_VERSION,
        .page_format = PAGE_FORMAT_VERSION,
        .fleet = {1, 2, 3},
        .segment_bytes = DISK_IMAGE_SEGMENT_BYTES};
    uint8_t bytes[DISK_FOLDER_HEAD_BYTES];

    memset(image, 0, sizeof(image));
    disk_folder_head_store(&h, bytes);
    memcpy(image, bytes, DISK_IMAGE_HEAD_BYTES);
}

/* Pages with the keys from @first_key on. */
static void add_segment(uint32_t number, uint64_t generation, const char *tenant, uint64_t slot_bytes,
                        uint64_t first_key, uint32_t n_pages)
{
    uint8_t *at = image + DISK_IMAGE_HEAD_BYTES + number * DISK_IMAGE_AREA_BYTES;
    struct disk_segment_head h = {.number = number,
                                  .generation = generation,
                                  .slot_bytes = slot_bytes,
                                  .n_slots = (uint32_t) (DISK_IMAGE_SEGMENT_BYTES / slot_bytes)};

    tier_group_init(&h.group, tenant);
    h.group.n_heads = 8;
    h.group.page_class = number % 2;
    h.group.page_bytes = slot_bytes - 100;
    disk_segment_head_store(&h, at);
    for (uint32_t i = 0; i < n_pages; i++) {
        struct disk_record r = {.generation = generation, .slot = i};
        uint64_t words[2] = {splitmix64_mix(first_key + i), splitmix64_mix(~(first_key + i))};

        memcpy(r.key.bytes, words, sizeof(words));
        disk_record_store(&r, number, at + DISK_SEGMENT_HEAD_BYTES + i * DISK_RECORD_BYTES);
    }
}

static int save(const char *root, const char *name, uint32_t n_segments)
{
    struct errmsg e = {""};
    char path[4096];

    (void) snprintf(path, sizeof(path), "%s/disk_records", root);
    (void) mkdir(path, 0777);
    (void) snprintf(path, sizeof(path), "%s/disk_records/%s", root, name);
    if (atomic_file_write(path, image, DISK_IMAGE_HEAD_BYTES + n_segments * (size_t) DISK_IMAGE_AREA_BYTES,
                          &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int r;

    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
        return 2;
    }

    begin();
    r = save(argv[1], "empty", 1);
    add_segment(0, 1, "inference", 4096, 0, 16); /* full, of the smallest slots */
    r |= save(argv[1], "full", 1);
    begin();
    add_segment(0, 7, "uid-1000@gpu0", 8192, 0, 3); /* two tenants, ages out of order, a key twice */
    add_segment(1, 3, "inference", 16384, 100, 4);
    add_segment(2, 5, "uid-1000@gpu0", 8192, 2, 8);
    add_segment(3, 9, "inference", 65536, 200, 1);
    r |= save(argv[1], "tenants", 4);
    return r;
}
