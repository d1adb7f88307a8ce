/*
 * Runs a fuzz target over files, so that every `meson test` replays the corpus, with or without sanitizers:
 *
 *     fuzz_table [--mutations N] FILE|DIRECTORY...
 *
 * Each file is tried unchanged, then N times (default 300) with small deterministic damage, seeded by its
 * contents. The same LLVMFuzzerTestOneInput() links with libFuzzer for an open-ended search:
 *
 *     clang -g -fsanitize=fuzzer,address,undefined -I. tests/fuzz/fuzz_table.c LIBRARIES -o fuzz_table
 *
 * A crash it finds becomes a file in corpus/NAME/.
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"

#define INPUT_MAX ((size_t) 16 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned long n_files, n_inputs, n_mutations = 300;

/* Runs the input in a block of its exact size, so that a sanitizer finds reads beyond it. */
static void run_input(const uint8_t *data, size_t size)
{
    _cleanup_(freep) uint8_t *copy = malloc(size ? size : 1);

    if (!copy)
        abort();
    if (size > 0)
        memcpy(copy, data, size);
    (void) LLVMFuzzerTestOneInput(copy, size);
    n_inputs++;
}

/* Headers and counts are at the front: half of all damage goes to the first 512 bytes. */
static size_t pick_offset(uint64_t *s, size_t size)
{
    size_t front = size < 512 ? size : 512;

    return (size_t) (splitmix64_next(s) % (splitmix64_next(s) & 1 ? front : size));
}

/* One piece of damage in place; returns the new size. */
static size_t damage(uint64_t *s, uint8_t *data, size_t size)
{
    static const uint64_t interesting[] = {
        0,          1,          0x7f,           0x80,       0xff,
        0x7fff,     0x8000,     0xffff,         0x7fffffff, 0x80000000,
        0xffffffff, UINT64_MAX, UINT64_MAX / 2, 1ull << 63, 0x7ff8000000000000};
    size_t at = pick_offset(s, size), from = pick_offset(s, size), n;
    uint64_t v;

    switch (splitmix64_next(s) % 6) {
    case 0:
        data[at] ^= (uint8_t) (1u << splitmix64_next(s) % 8);
        return size;
    case 1:
        data[at] = (uint8_t) splitmix64_next(s);
        return size;
    case 2: /* a number of 1, 2, 4 or 8 bytes at a multiple of its size */
        n = (size_t) 1 << splitmix64_next(s) % 4;
        at -= at % n;
        v = interesting[splitmix64_next(s) % (sizeof(interesting) / sizeof(interesting[0]))];
        memcpy(data + at, &v, n < size - at ? n : size - at);
        return size;
    case 3: /* increment or decrement */
        data[at] = (uint8_t) (data[at] + (splitmix64_next(s) & 1 ? 1 : -1));
        return size;
    case 4: /* a piece copied over another */
        n = splitmix64_next(s) % 64;
        n = n < size - at ? n : size - at;
        n = n < size - from ? n : size - from;
        memmove(data + at, data + from, n);
        return size;
    default: /* truncation */
        return (size_t) (splitmix64_next(s) % (size + 1));
    }
}

static void run_mutations(const uint8_t *data, size_t size)
{
    _cleanup_(freep) uint8_t *work = malloc(size ? size : 1);
    uint64_t seed = 0xcbf29ce484222325u;

    if (!work)
        abort();
    for (size_t i = 0; i < size; i++)
        seed = (seed ^ data[i]) * 0x100000001b3u;
    for (unsigned long i = 0; i < n_mutations && size > 0; i++) {
        size_t n = size;

        memcpy(work, data, size);
        for (uint64_t k = splitmix64_next(&seed) % 3 + 1; k > 0 && n > 0; k--)
            n = damage(&seed, work, n);
        run_input(work, n);
    }
}

static int run_file(const char *path)
{
    _cleanup_(freep) void *data = NULL;
    struct errmsg e = {""};
    size_t size = 0;

    if (atomic_file_read(path, INPUT_MAX, &data, &size, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    run_input(data, size);
    run_mutations(data, size);
    n_files++;
    return 0;
}

static int visible(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static int run_path(const char *path);

/* In the order of names, so that every run is the same. */
static int run_directory(const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, visible, alphasort), r = n < 0;

    if (n < 0)
        perror(path);
    for (int i = 0; i < n; i++) {
        char child[4096];

        if (snprintf(child, sizeof(child), "%s/%s", path, entries[i]->d_name) < (int) sizeof(child) && r == 0)
            r = run_path(child);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    return r;
}

static int run_path(const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0) {
        perror(path);
        return 1;
    }
    return S_ISDIR(st.st_mode) ? run_directory(path) : run_file(path);
}

int main(int argc, char **argv)
{
    int first = 1;

    if (argc > 2 && strcmp(argv[1], "--mutations") == 0) {
        n_mutations = strtoul(argv[2], NULL, 10);
        first = 3;
    }
    if (first >= argc) {
        fprintf(stderr, "usage: %s [--mutations N] FILE|DIRECTORY...\n", argv[0]);
        return 2;
    }
    for (int i = first; i < argc; i++)
        if (run_path(argv[i]) != 0)
            return 1;
    printf("%lu files, %lu inputs\n", n_files, n_inputs);
    if (n_files == 0) {
        fprintf(stderr, "%s: no corpus found\n", argv[0]);
        return 1;
    }
    return 0;
}
