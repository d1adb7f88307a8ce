/* The shared index against a simple model, with hostile objects, and with a reader that races a writer. */
#include "proto/index.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/splitmix64.h"
#include "tests/lib/test.h"

static struct chunk_key key_of(uint64_t home, uint64_t id)
{
    struct chunk_key k;

    memcpy(k.bytes, &home, 8);
    memcpy(k.bytes + 8, &id, 8);
    return k;
}

static struct index_hit hit_of(uint64_t v)
{
    return (struct index_hit){(uint32_t) v, (uint32_t) (v & 1), v << 20 | v};
}

static struct index_writer writer_new(uint64_t n)
{
    size_t bytes = index_object_bytes(n);
    void *object = aligned_alloc(4096, bytes);
    struct index_writer w;

    assert(object && bytes % 4096 == 0);
    memset(object, 0, bytes);
    index_writer_init(&w, object, bytes);
    return w;
}

static void test_size(void)
{
    /* 8 entries a bucket, 80 % load: n / 6.4 buckets and one, at least 8; whole pages */
    CU_ASSERT_EQUAL(index_object_bytes(0), 4096);
    CU_ASSERT_EQUAL(index_object_bytes(640), ((128 + 101 * 256) + 4095) / 4096 * 4096);
    CU_ASSERT_EQUAL(index_object_bytes(1000000), ((128 + 156251 * 256) + 4095) / 4096 * 4096);
}

/* Both halves of real keys are uniform and independent. */
static struct chunk_key random_key(unsigned i)
{
    return key_of(splitmix64_seed(1, i), splitmix64_seed(2, i));
}

/* At its full load of random keys, every key is inserted and found, and memory
 * is little more than 40 bytes per key. */
static void test_load(void)
{
    enum { N = 200000 };
    struct index_writer w = writer_new(N);
    struct index_reader r;
    unsigned n_lost = 0;

    CU_ASSERT(index_capacity(&w) >= N && index_capacity(&w) < N + 200);
    CU_ASSERT(w.bytes < (size_t) N * 41);
    for (unsigned i = 0; i < N; i++) {
        struct chunk_key k = random_key(i);
        struct index_hit hit = hit_of(i);

        n_lost += index_insert(&w, &k, &hit) != 0;
    }
    CU_ASSERT_EQUAL(n_lost, 0);
    CU_ASSERT_EQUAL(w.n_entries, N);
    CU_ASSERT_EQUAL_FATAL(index_reader_init(&r, w.object, w.bytes, NULL), 0);
    for (unsigned i = 0; i < N; i++) {
        struct chunk_key k = random_key(i);
        struct index_hit hit = {0};

        n_lost += index_lookup(&r, &k, &hit) != INDEX_FOUND || hit.slot != i;
    }
    CU_ASSERT_EQUAL(n_lost, 0);
    free(w.object);
}

/* Random operations on few homes, so that buckets overflow and wrap around. */
static void test_against_model(void)
{
    enum { KEYS = 300, OPS = 20000 };
    struct index_writer w = writer_new(100);
    struct index_reader r;
    bool there[KEYS] = {false};
    uint64_t value[KEYS] = {0}, n = 0;

    CU_ASSERT_EQUAL_FATAL(index_reader_init(&r, w.object, w.bytes, NULL), 0);
    for (unsigned op = 0; op < OPS; op++) {
        unsigned i = (unsigned) test_rand_below(KEYS);
        struct chunk_key k = key_of(i % 5 * 7, i);
        struct index_hit hit, want = hit_of(op);

        if (test_rand_below(2)) {
            int ret = index_insert(&w, &k, &want);

            CU_ASSERT(ret == 0 || (ret == -ENOSPC && !there[i]));
            if (ret == 0) {
                n += !there[i];
                there[i] = true;
                value[i] = op;
            }
        } else {
            CU_ASSERT_EQUAL(index_remove(&w, &k), there[i]);
            n -= there[i];
            there[i] = false;
        }
        CU_ASSERT_EQUAL(w.n_entries, n);
        i = (unsigned) test_rand_below(KEYS);
        k = key_of(i % 5 * 7, i);
        memset(&hit, 0x77, sizeof(hit));
        CU_ASSERT_EQUAL(index_lookup(&r, &k, &hit), there[i] ? INDEX_FOUND : INDEX_MISS);
        want = hit_of(value[i]);
        if (there[i]) {
            CU_ASSERT(hit.slot == want.slot && hit.page_class == want.page_class &&
                      hit.generation == want.generation);
        } else {
            CU_ASSERT_EQUAL(hit.slot, 0x77777777);
        }
    }
    free(w.object);
}

static void test_full_run(void)
{
    struct index_writer w = writer_new(0);
    struct index_hit hit = hit_of(1);
    struct index_reader r;
    struct chunk_key k;
    unsigned n = 0;

    while (k = key_of(3, n), index_insert(&w, &k, &hit) == 0)
        n++;
    CU_ASSERT_EQUAL(n, 7 * 8); /* both homes are the first bucket, then the six behind it */
    k = key_of(3, n);
    CU_ASSERT_EQUAL(index_insert(&w, &k, &hit), -ENOSPC);
    k = key_of(3, n - 1);
    CU_ASSERT_EQUAL(index_insert(&w, &k, &hit), 0); /* replacing an entry needs no room */
    CU_ASSERT_EQUAL(w.n_entries, n);
    CU_ASSERT_EQUAL_FATAL(index_reader_init(&r, w.object, w.bytes, NULL), 0);
    for (unsigned i = 0; i < n; i++) {
        k = key_of(3, i);
        CU_ASSERT_EQUAL(index_lookup(&r, &k, &hit), INDEX_FOUND);
    }
    index_mark_moved(&w);
    CU_ASSERT_EQUAL(index_lookup(&r, &k, &hit), INDEX_MOVED);
    free(w.object);
}

static void test_hostile_heads(void)
{
    struct index_writer w = writer_new(100);
    struct index_reader r;
    uint64_t n;

    CU_ASSERT_EQUAL(index_reader_init(&r, w.object, 128, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(index_reader_init(&r, w.object, w.n_buckets * 256 + 127, NULL), -EBADMSG);
    for (unsigned bit = 0; bit < 8 * 16; bit++) {
        w.object[bit / 8] ^= (uint8_t) (1u << bit % 8);
        memcpy(&n, w.object + 8, 8);
        if (index_reader_init(&r, w.object, w.bytes, NULL) == 0)
            CU_ASSERT(n > 0 && 128 + n * 256 <= w.bytes);
        w.object[bit / 8] ^= (uint8_t) (1u << bit % 8);
    }
    n = (uint64_t) 1 << 63;
    memcpy(w.object + 8, &n, 8);
    CU_ASSERT_EQUAL(index_reader_init(&r, w.object, w.bytes, NULL), -EBADMSG);
    free(w.object);
}

/* A bucket whose sequence stays odd: the lookup ends with INDEX_BUSY. */
static void test_stuck_bucket(void)
{
    struct index_writer w = writer_new(0);
    struct chunk_key k = key_of(0, 1);
    struct index_hit hit;
    struct index_reader r;

    CU_ASSERT_EQUAL_FATAL(index_reader_init(&r, w.object, w.bytes, NULL), 0);
    w.object[128] = 1;
    CU_ASSERT_EQUAL(index_lookup(&r, &k, &hit), INDEX_BUSY);
    free(w.object);
}

static void test_random_object(void)
{
    struct index_writer w = writer_new(40);
    struct index_reader r;

    CU_ASSERT_EQUAL_FATAL(index_reader_init(&r, w.object, w.bytes, NULL), 0);
    for (size_t i = 128; i < w.bytes; i++)
        w.object[i] = (uint8_t) test_rand();
    for (unsigned i = 0; i < 1000; i++) {
        struct chunk_key k = key_of(test_rand(), test_rand());
        struct index_hit hit;

        (void) index_lookup(&r, &k, &hit); /* ASan and the allocator's guard page check the accesses */
    }
    free(w.object);
}

struct race {
    struct index_writer w;
    atomic_bool stop;
    atomic_bool started;
};

enum { RACE_KEYS = 24 };

/* ---- pages that continue a page ---- */

static struct chunk_key child_of(const struct chunk_key *parent, unsigned i)
{
    struct chunk_key k = random_key(i);

    memcpy(k.bytes + CHUNK_KEY_MARK_OFFSET, parent->bytes, CHUNK_KEY_MARK_BYTES);
    return k;
}

static void find_others(const struct index_writer *w, struct index_family f, bool has_known, bool has_other)
{
    index_find_others(w, &f, 1);
    CU_ASSERT_EQUAL(f.has_known, has_known);
    CU_ASSERT_EQUAL(f.has_other, has_other);
}

static void test_find_others(void)
{
    enum { N = 1000 };
    const struct chunk_key parent = random_key(N), other = random_key(N + 1), a = child_of(&parent, N + 2),
                           b = child_of(&parent, N + 3);
    struct index_family both[2] = {{.parent = parent}, {.parent = other, .known = a, .has_known = true}};
    const struct index_hit hit = hit_of(1);
    struct index_writer w = writer_new(N);

    for (unsigned i = 0; i < N / 2; i++) {
        const struct chunk_key key = random_key(i);

        CU_ASSERT_EQUAL(index_insert(&w, &key, &hit), 0);
    }
    find_others(&w, both[0], false, false);
    find_others(&w, (struct index_family){.parent = parent, .known = a, .has_known = true}, true, false);

    CU_ASSERT_EQUAL(index_insert(&w, &a, &hit), 0);
    find_others(&w, both[0], true, false);
    find_others(&w, (struct index_family){.parent = parent, .known = a, .has_known = true}, true, false);
    find_others(&w, (struct index_family){.parent = parent, .known = b, .has_known = true}, true, true);

    CU_ASSERT_EQUAL(index_insert(&w, &b, &hit), 0);
    index_find_others(&w, both, 2);
    CU_ASSERT(both[0].has_other && !both[1].has_other);
    CU_ASSERT(index_remove(&w, &a));
    find_others(&w, (struct index_family){.parent = parent, .known = b, .has_known = true}, true, false);
    free(w.object);
}

static void *churn(void *arg)
{
    struct race *race = arg;
    uint64_t x = 88172645463325252u;

    for (uint64_t v = 1; !atomic_load(&race->stop); v++) {
        struct chunk_key k;
        struct index_hit hit;

        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        k = key_of(0, x % RACE_KEYS);
        hit = (struct index_hit){(uint32_t) v, (uint32_t) (x % RACE_KEYS), v};
        if (x >> 40 & 1)
            (void) index_remove(&race->w, &k);
        else
            (void) index_insert(&race->w, &k, &hit);
        atomic_store(&race->started, true);
    }
    return NULL;
}

/* Slot, class and generation of an entry are derived from one number, so a torn read is a mismatch. One key
 * stays in the index. */
static void test_race(void)
{
    struct race race = {.w = writer_new(0)};
    struct chunk_key fixed = key_of(0, 1000);
    struct index_hit fixed_hit = {7, 8, 9};
    struct index_reader r;
    pthread_t thread;
    unsigned found = 0;

    CU_ASSERT_EQUAL_FATAL(index_insert(&race.w, &fixed, &fixed_hit), 0);
    CU_ASSERT_EQUAL_FATAL(index_reader_init(&r, race.w.object, race.w.bytes, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, churn, &race), 0);
    while (!atomic_load(&race.started))
        ;
    for (unsigned i = 0; i < 300000; i++) {
        struct chunk_key k = key_of(0, i % RACE_KEYS);
        struct index_hit hit;
        enum index_result result = index_lookup(&r, &k, &hit);

        if (result == INDEX_FOUND) {
            found++;
            if (hit.page_class != i % RACE_KEYS || hit.slot != (uint32_t) hit.generation) {
                CU_FAIL("torn entry");
                break;
            }
        }
        result = index_lookup(&r, &fixed, &hit);
        if (result != INDEX_BUSY && (result != INDEX_FOUND || hit.slot != 7 || hit.generation != 9)) {
            CU_FAIL("lost the key that stays in the index");
            break;
        }
    }
    CU_ASSERT(found > 0);
    atomic_store(&race.stop, true);
    (void) pthread_join(thread, NULL);
    free(race.w.object);
}

const struct test_case test_cases[] = {
    TEST(test_size),          TEST(test_load),
    TEST(test_against_model), TEST(test_full_run),
    TEST(test_hostile_heads), TEST(test_stuck_bucket),
    TEST(test_random_object), TEST(test_find_others),
    TEST(test_race),          TEST_END,
};
const char test_suite[] = "index";
