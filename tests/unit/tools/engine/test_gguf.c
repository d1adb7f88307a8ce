/* The GGUF reader: typed values of a valid file, and invalid files of every kind. */
#include "tests/lib/test.h"

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/tiny_gguf.h"
#include "tools/engine/engine.h"
#include "tools/engine/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct file {
    uint8_t *p;
    size_t n;
};

static void file_deinit(struct file *f)
{
    free(f->p);
}

static struct file tiny(void)
{
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t =
        tiny_gguf_new(&(struct tiny_gguf_options){.n_layers = 1, .d = 32, .n_heads = 1, .n_kv_heads = 1});
    struct file f;
    const uint8_t *p = tiny_gguf_bytes(t, &f.n);

    f.p = malloc(f.n);
    assert(f.p);
    memcpy(f.p, p, f.n);
    return f;
}

/* The bytes after a key or a tensor name. */
static uint8_t *after(const struct file *f, const char *name)
{
    size_t n = strlen(name);
    uint64_t count;

    for (size_t i = 8; i + n <= f->n; i++) {
        memcpy(&count, f->p + i - 8, sizeof(count));
        if (count == n && memcmp(f->p + i, name, n) == 0)
            return f->p + i + n;
    }

    CU_FAIL_FATAL("the file has no such name");
    return NULL;
}

static void set_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof(v));
}

static void set_u64(uint8_t *p, uint64_t v)
{
    memcpy(p, &v, sizeof(v));
}

/* Parses a copy of its exact size, so that a sanitizer sees the first byte read beyond it. */
static int parse(const uint8_t *p, size_t n, struct errmsg *e)
{
    _cleanup_(freep) uint8_t *copy = malloc(n ? n : 1);
    _cleanup_(gguf_freep) struct gguf *g = NULL;
    int r;

    assert(copy);
    memcpy(copy, p, n);
    r = gguf_parse(copy, n, "FILE", &g, e);
    CU_ASSERT((r == 0) == (g != NULL));
    return r;
}

static void check_refused(const struct file *f, int want, const char *named)
{
    struct errmsg e = {0};

    CU_ASSERT_EQUAL(parse(f->p, f->n, &e), want);
    CU_ASSERT_EQUAL(strncmp(e.text, "FILE: ", 6), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, named));
    if (!strstr(e.text, named))
        printf("    \"%s\" does not name %s\n", e.text, named);
}

static void test_good(void)
{
    _cleanup_(file_deinit) struct file f = tiny();
    _cleanup_(gguf_freep) struct gguf *g = NULL;
    struct gguf_array a;
    struct errmsg e = {0};
    const struct gguf_tensor *t;
    const char *s;
    uint32_t u;
    double x;
    size_t n;

    CU_ASSERT_EQUAL_FATAL(gguf_parse(f.p, f.n, "FILE", &g, &e), 0);
    CU_ASSERT_EQUAL(gguf_get_u32(g, "llama.block_count", &u, &e), 0);
    CU_ASSERT_EQUAL(u, 1);
    CU_ASSERT_EQUAL(gguf_get_f64(g, "llama.rope.freq_base", &x, &e), 0);
    CU_ASSERT_EQUAL(x, 10000.0);
    CU_ASSERT_EQUAL(gguf_get_string(g, "general.name", &s, &n, &e), 0);
    CU_ASSERT(n == 4 && memcmp(s, "tiny", 4) == 0);
    CU_ASSERT_EQUAL(gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &a, &e), 0);
    CU_ASSERT_EQUAL(a.n, TINY_GGUF_VOCAB);
    CU_ASSERT(gguf_array_next_string(&a, &s, &n));
    CU_ASSERT(n == 2 && memcmp(s, "\xc4\x80", 2) == 0); /* byte 0 is U+0100 */
    t = gguf_tensor_find(g, "token_embd.weight");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    CU_ASSERT(t->dims[0] == 32 && t->dims[1] == TINY_GGUF_VOCAB && t->bytes == 4ul * 32 * TINY_GGUF_VOCAB);
    CU_ASSERT_EQUAL(gguf_get_u32(g, "no.such.key", &u, &e), -ENOENT);
    CU_ASSERT_EQUAL(gguf_get_u32(g, "general.name", &u, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "general.name"));
    CU_ASSERT_EQUAL(gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_I32, &a, &e), -EBADMSG);
}

/* Integers of every width, with their signs. */
static void test_integers(void)
{
    static const struct {
        uint32_t type;
        uint8_t value[8];
        size_t bytes;
        int r;
        uint32_t want;
    } cases[] = {
        {GGUF_U8, {200}, 1, 0, 200},
        {GGUF_I8, {100}, 1, 0, 100},
        {GGUF_I8, {200}, 1, -EBADMSG, 0},
        {GGUF_U16, {0xff, 0xff}, 2, 0, 65535},
        {GGUF_I16, {0xff, 0xff}, 2, -EBADMSG, 0},
        {GGUF_I32, {0xff, 0xff, 0xff, 0x7f}, 4, 0, 0x7fffffff},
        {GGUF_I32, {0, 0, 0, 0x80}, 4, -EBADMSG, 0},
        {GGUF_U64, {1, 2, 3, 4}, 8, 0, 0x04030201},
        {GGUF_U64, {0, 0, 0, 0, 1}, 8, -EBADMSG, 0},
        {GGUF_I64, {0, 0, 0, 0, 0, 0, 0, 0x80}, 8, -EBADMSG, 0},
        {GGUF_F32, {0}, 4, -EBADMSG, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(gguf_freep) struct gguf *g = NULL;
        struct errmsg e = {0};
        uint8_t p[64] = "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0k";
        uint32_t v = 12345;

        set_u32(p + 33, cases[i].type);
        memcpy(p + 37, cases[i].value, 8);
        CU_ASSERT_EQUAL_FATAL(gguf_parse(p, 37 + cases[i].bytes, "FILE", &g, &e), 0);
        CU_ASSERT_EQUAL(gguf_get_u32(g, "k", &v, &e), cases[i].r);
        CU_ASSERT_EQUAL(v, cases[i].r == 0 ? cases[i].want : 12345);
    }
}

/* Files cut anywhere in the front, and at the edges of the data. */
static void test_truncated(void)
{
    _cleanup_(file_deinit) struct file f = tiny();
    size_t front = (size_t) (after(&f, "output_norm.weight") - f.p) + 64;

    for (size_t n = 0; n < f.n; n += n < front ? 1 : 4001) {
        struct errmsg e = {0};

        CU_ASSERT_EQUAL(parse(f.p, n, &e), -EBADMSG);
        CU_ASSERT_NOT_EQUAL(e.text[0], '\0');
    }

    f.n--;
    check_refused(&f, -EBADMSG, "output_norm.weight");
}

static void test_header(void)
{
    static const struct {
        size_t at;
        uint64_t v;
        size_t bytes;
        int want;
        const char *named;
    } cases[] = {
        {0, 0, 1, -EBADMSG, "not a GGUF file"},
        {4, 1, 4, -EOPNOTSUPP, "version 1"},
        {4, 4, 4, -EOPNOTSUPP, "version 4"},
        {4, 0x03000000, 4, -EOPNOTSUPP, "big-endian"},
        {8, UINT64_MAX, 8, -EBADMSG, "tensors"},
        {8, 65537, 8, -EBADMSG, "tensors"},
        {8, 1000, 8, -EBADMSG, ""},
        {16, UINT64_MAX, 8, -EBADMSG, "keys"},
        {16, (uint64_t) 1 << 63, 8, -EBADMSG, "keys"},
        {16, 65537, 8, -EBADMSG, "keys"},
        {24, UINT64_MAX, 8, -EBADMSG, "key 0"},
        {24, 0, 8, -EBADMSG, "key 0"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(file_deinit) struct file f = tiny();

        memcpy(f.p + cases[i].at, &cases[i].v, cases[i].bytes);
        check_refused(&f, cases[i].want, cases[i].named);
    }
}

static void test_values(void)
{
    static const struct {
        const char *key;
        size_t at;
        uint64_t v;
        size_t bytes;
    } cases[] = {
        {"general.name", 0, 13, 4}, /* unknown types */
        {"general.name", 0, UINT32_MAX, 4},
        {"general.name", 4, UINT64_MAX, 8}, /* a string longer than any file */
        {"general.name", 4, UINT64_MAX - 7, 8},
        {"tokenizer.ggml.tokens", 4, 13, 4},         /* array of an unknown type */
        {"tokenizer.ggml.tokens", 8, UINT64_MAX, 8}, /* counts */
        {"tokenizer.ggml.tokens", 8, (uint64_t) 1 << 61, 8},
        {"tokenizer.ggml.tokens", 16, UINT64_MAX, 8},            /* its first string */
        {"tokenizer.ggml.token_type", 8, UINT64_MAX / 4 + 1, 8}, /* times 4 is 0 */
        {"tokenizer.ggml.token_type", 8, (uint64_t) 1 << 40, 8},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(file_deinit) struct file f = tiny();

        memcpy(after(&f, cases[i].key) + cases[i].at, &cases[i].v, cases[i].bytes);
        check_refused(&f, -EBADMSG, cases[i].key);
    }
}

/* Arrays of arrays: at most four levels. */
static void test_nesting(void)
{
    for (unsigned depth = 1; depth <= 6; depth++) {
        uint8_t p[256] = "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0k\11\0\0\0";
        struct errmsg e = {0};
        size_t n = 37;

        for (unsigned i = 0; i < depth; i++, n += 12) {
            set_u32(p + n, i + 1 < depth ? GGUF_ARRAY : GGUF_U8);
            set_u64(p + n + 4, 1);
        }

        CU_ASSERT_EQUAL(parse(p, n + 1, &e), depth <= GGUF_ARRAY_DEPTH_MAX ? 0 : -EBADMSG);
    }
}

static void test_tensors(void)
{
    /* after the name: u32 dims, u64 dims[2], u32 type, u64 offset */
    static const struct {
        size_t at;
        uint64_t v;
        size_t bytes;
    } cases[] = {
        {0, 0, 4},
        {0, 5, 4},
        {0, UINT32_MAX, 4},
        {4, 0, 8},
        {4, UINT64_MAX, 8},
        {4, UINT64_MAX / 4 + 2, 8},
        {12, 0, 8},
        {12, (uint64_t) 1 << 62, 8},
        {12, 1 << 20, 8},
        {24, UINT64_MAX, 8},
        {24, UINT64_MAX - 31, 8},
        {24, 1, 8},
        {24, (uint64_t) 1 << 40, 8},
        {20, 14, 4}, /* Q6_K: rows of 32 are no whole number of blocks */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(file_deinit) struct file f = tiny();

        memcpy(after(&f, "blk.0.attn_q.weight") + cases[i].at, &cases[i].v, cases[i].bytes);
        check_refused(&f, -EBADMSG, "blk.0.attn_q.weight");
    }
}

static void test_duplicates_and_names(void)
{
    _cleanup_(file_deinit) struct file keys = tiny(), tensors = tiny(), name = tiny(), tensor_name = tiny();

    memcpy(after(&keys, "tokenizer.ggml.bos_token_id") - 12, "eos", 3);
    check_refused(&keys, -EBADMSG, "tokenizer.ggml.eos_token_id\" is there twice");
    *(after(&tensors, "blk.0.attn_q.weight") - 8) = 'k';
    check_refused(&tensors, -EBADMSG, "blk.0.attn_k.weight\" is there twice");
    *(after(&name, "general.name") - 1) = '\n';
    check_refused(&name, -EBADMSG, "key 1 ");
    *(after(&tensor_name, "token_embd.weight") - 1) = '\0';
    check_refused(&tensor_name, -EBADMSG, "tensor 0 ");
}

static int open_bytes(const struct file *f, struct errmsg *e)
{
    _cleanup_(closep) int fd = memfd_create("tiny.gguf", MFD_CLOEXEC);
    _cleanup_(engine_freep) struct engine *en = NULL;
    char path[64];

    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT_EQUAL_FATAL(write(fd, f->p, f->n), (ssize_t) f->n);
    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return engine_open(path, &(struct engine_options){.n_threads = 1}, &en, e);
}

/* The error for a known but unsupported type names the tensor. */
static void test_unreadable_types(void)
{
    static const struct {
        uint32_t type;
        const char *name;
    } cases[] = {
        {10, "Q2_K"},
        {20, "IQ4_NL"},
        {77, "unknown type (77)"},
        {UINT32_MAX, "unknown type"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(file_deinit) struct file f = tiny();
        struct errmsg e = {0};

        set_u32(after(&f, "blk.0.ffn_up.weight") + 20, cases[i].type);
        CU_ASSERT_EQUAL(open_bytes(&f, &e), -EOPNOTSUPP);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "blk.0.ffn_up.weight"));
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].name));
    }
}

/* Values that parse but are not valid for a model. */
static void test_contradictions(void)
{
    static const struct {
        const char *name;
        size_t at;
        uint64_t v;
        size_t bytes;
        const char *named;
    } cases[] = {
        {"llama.block_count", 4, 0, 4, "llama.block_count"},
        {"llama.block_count", 4, 2, 4, "blk.1.attn_q.weight"},
        {"llama.block_count", 4, UINT32_MAX, 4, "llama.block_count"},
        {"llama.embedding_length", 4, 64, 4, "token_embd.weight"},
        {"llama.attention.head_count", 4, 0, 4, "head_count"},
        {"llama.attention.head_count_kv", 4, 3, 4, "head_count_kv"},
        {"llama.rope.dimension_count", 4, 33, 4, "rope.dimension_count"},
        {"llama.rope.freq_base", 4, 0x7fc00000, 4, "rope.freq_base"},
        {"llama.rope.freq_base", 4, 0, 4, "rope.freq_base"},
        {"tokenizer.ggml.eos_token_id", 4, 5000, 4, "eos_token_id"},
        {"tokenizer.ggml.tokens", 24, 'x', 1, "byte 0"}, /* without its first character */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(file_deinit) struct file f = tiny();
        struct errmsg e = {0};
        int r;

        memcpy(after(&f, cases[i].name) + cases[i].at, &cases[i].v, cases[i].bytes);
        r = open_bytes(&f, &e);
        CU_ASSERT(r == -EBADMSG);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].named));
        if (r != -EBADMSG || !strstr(e.text, cases[i].named))
            printf("    %s = %llu: %d \"%s\"\n", cases[i].name, (unsigned long long) cases[i].v, r, e.text);
    }
}

/* An array of layers: different numbers of heads, numbers of another type. */
static void test_arrays_of_layers(void)
{
    static const struct {
        size_t at;
        uint32_t v;
        int want;
        const char *named;
    } cases[] = {
        {16, 1, -EOPNOTSUPP, "in layer 0 and"},
        {4, GGUF_F32, -EBADMSG, "head_count_kv"},
        {4, GGUF_I32, 0, ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(tiny_gguf_freep) struct tiny_gguf *t =
            tiny_gguf_new(&(struct tiny_gguf_options){.odd_types = true});
        _cleanup_(file_deinit) struct file f = {0};
        struct errmsg e = {0};
        const uint8_t *p = tiny_gguf_bytes(t, &f.n);

        f.p = malloc(f.n);
        assert(f.p);
        memcpy(f.p, p, f.n);
        set_u32(after(&f, "llama.attention.head_count_kv") + cases[i].at, cases[i].v);
        CU_ASSERT_EQUAL(open_bytes(&f, &e), cases[i].want);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].named));
    }
}

static void test_files(void)
{
    struct file empty = {0};
    struct engine *en = NULL;
    struct errmsg e = {0};

    CU_ASSERT_EQUAL(open_bytes(&empty, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "it is empty"));
    CU_ASSERT_EQUAL(engine_open("/", NULL, &en, &e), -EISDIR);
    CU_ASSERT_EQUAL(engine_open("/dev/null", NULL, &en, &e), -EINVAL);
    CU_ASSERT_PTR_NULL(en);
}

const struct test_case test_cases[] = {
    TEST(test_good),
    TEST(test_integers),
    TEST(test_truncated),
    TEST(test_header),
    TEST(test_values),
    TEST(test_nesting),
    TEST(test_tensors),
    TEST(test_duplicates_and_names),
    TEST(test_unreadable_types),
    TEST(test_contradictions),
    TEST(test_arrays_of_layers),
    TEST(test_files),
    TEST_END,
};
const char test_suite[] = "engine_gguf";
