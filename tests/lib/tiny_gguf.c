/* Writes a small random model as GGUF version 3; see tiny_gguf.h.
 * Shares no code with the reader that it tests. */
#include "tests/lib/tiny_gguf.h"

#include "base/half.h"
#include "base/splitmix64.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 32,
    TENSORS_MAX = 256,
    TYPE_U32 = 4,
    TYPE_I32 = 5,
    TYPE_F32 = 6,
    TYPE_STRING = 8,
    TYPE_ARRAY = 9
};
enum { F32 = 0, F16 = 1, Q4_1 = 3, Q8_0 = 8 };

struct buffer {
    uint8_t *p;
    size_t n, capacity;
};

struct tensor {
    char name[64];
    uint32_t n_dims, type;
    uint64_t dims[2];
    size_t n;
    float *values;
    size_t offset;
};

struct tiny_gguf {
    struct tiny_gguf_options o;
    uint64_t state;
    struct buffer keys, data, file;
    uint32_t n_keys;
    struct tensor tensors[TENSORS_MAX];
    size_t n_tensors;
};

static void *grown(void *p, size_t bytes)
{
    p = realloc(p, bytes);
    if (!p) {
        fprintf(stderr, "tiny_gguf: out of memory\n");
        exit(1);
    }
    return p;
}

static void put(struct buffer *b, const void *p, size_t n)
{
    if (n == 0) /* the buffer may be NULL, which memcpy() does not accept */
        return;
    if (b->n + n > b->capacity) {
        b->capacity = 2 * (b->n + n);
        b->p = grown(b->p, b->capacity);
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_u16(struct buffer *b, uint16_t v)
{
    put(b, &v, sizeof(v));
}

static void put_u32(struct buffer *b, uint32_t v)
{
    put(b, &v, sizeof(v));
}

static void put_u64(struct buffer *b, uint64_t v)
{
    put(b, &v, sizeof(v));
}

static void put_string(struct buffer *b, const char *s)
{
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static void pad(struct buffer *b)
{
    static const uint8_t zeros[ALIGNMENT];

    put(b, zeros, (ALIGNMENT - b->n % ALIGNMENT) % ALIGNMENT);
}

/* ---- random numbers ---- */

/* Sum of four uniform numbers, scaled to variance 1: nearly normal, and without functions of libm, whose
 * last bit may differ between machines. */
static float normal(struct tiny_gguf *t)
{
    double sum = -2.0;

    for (unsigned i = 0; i < 4; i++)
        sum += (double) (splitmix64_next(&t->state) >> 11) * 0x1p-53;
    return (float) (sum * 1.7320508075688772);
}

/* ---- keys ---- */

__attribute__((format(printf, 3, 4))) static void key(struct tiny_gguf *t, uint32_t type, const char *fmt,
                                                      ...)
{
    char name[128];
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    put_string(&t->keys, name);
    put_u32(&t->keys, type);
    t->n_keys++;
}

static void key_u32(struct tiny_gguf *t, const char *suffix, uint32_t v)
{
    key(t, TYPE_U32, "%s.%s", t->o.architecture, suffix);
    put_u32(&t->keys, v);
}

static void key_i32(struct tiny_gguf *t, const char *suffix, int32_t v)
{
    key(t, TYPE_I32, "%s.%s", t->o.architecture, suffix);
    put(&t->keys, &v, sizeof(v));
}

/* @n equal values */
static void key_u32_array(struct tiny_gguf *t, const char *suffix, uint32_t v, uint32_t n)
{
    key(t, TYPE_ARRAY, "%s.%s", t->o.architecture, suffix);
    put_u32(&t->keys, TYPE_U32);
    put_u64(&t->keys, n);
    for (uint32_t i = 0; i < n; i++)
        put_u32(&t->keys, v);
}

static void key_f32(struct tiny_gguf *t, const char *suffix, float v)
{
    key(t, TYPE_F32, "%s.%s", t->o.architecture, suffix);
    put(&t->keys, &v, sizeof(v));
}

static void write_sizes(struct tiny_gguf *t)
{
    const struct tiny_gguf_options *o = &t->o;

    key(t, TYPE_STRING, "general.architecture");
    put_string(&t->keys, o->architecture);
    key(t, TYPE_STRING, "general.name");
    put_string(&t->keys, "tiny");
    key_u32(t, "block_count", o->n_layers);
    key_u32(t, "context_length", TINY_GGUF_CONTEXT);
    key_u32(t, "embedding_length", o->n_embd);
    key_u32(t, "feed_forward_length", o->n_ff);
    key_u32(t, "attention.head_count", o->n_heads);
    if (o->odd_types)
        key_u32_array(t, "attention.head_count_kv", o->n_kv_heads, o->n_layers);
    else
        key_u32(t, "attention.head_count_kv", o->n_kv_heads);
    key_u32(t, "attention.key_length", o->d);
    key_u32(t, "attention.value_length", o->d);
    key_u32(t, "rope.dimension_count", o->n_rot);
    if (o->odd_types)
        key_i32(t, "rope.freq_base", 10000);
    else
        key_f32(t, "rope.freq_base", 10000.0f);
    key_f32(t, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (o->rope_scaling) {
        key(t, TYPE_STRING, "%s.rope.scaling.type", o->architecture);
        put_string(&t->keys, o->rope_scaling);
        key_f32(t, "rope.scaling.factor", 4.0f);
        key_u32(t, "rope.scaling.original_context_length", 1024);
    }
    if (o->extra_key && o->extra_text) {
        key(t, TYPE_STRING, "%s", o->extra_key);
        put_string(&t->keys, o->extra_text);
    } else if (o->extra_key) {
        key(t, TYPE_U32, "%s", o->extra_key);
        put_u32(&t->keys, o->extra_value);
    }
}

/* The printable character of a byte in byte-level vocabularies, as UTF-8. */
static void byte_character(unsigned byte, char ret[3])
{
    unsigned c = 256;

    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174) {
        c = byte;
    } else { /* the unprintable ones are numbered from 256 up */
        for (unsigned b = 0; b < byte; b++)
            c += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    }
    ret[0] = (char) (c < 128 ? c : 0xc0 | c >> 6);
    ret[1] = (char) (c < 128 ? 0 : 0x80 | (c & 63));
    ret[2] = '\0';
}

static void write_tokenizer(struct tiny_gguf *t)
{
    static const char *const control[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

    key(t, TYPE_STRING, "tokenizer.ggml.model");
    put_string(&t->keys, t->o.tokenizer);
    if (!t->o.no_pre) {
        key(t, TYPE_STRING, "tokenizer.ggml.pre");
        put_string(&t->keys, t->o.pre);
    }
    key(t, TYPE_ARRAY, "tokenizer.ggml.tokens");
    put_u32(&t->keys, TYPE_STRING);
    put_u64(&t->keys, TINY_GGUF_VOCAB);
    for (unsigned b = 0; b < 256; b++) {
        char s[3];

        byte_character(b, s);
        put_string(&t->keys, s);
    }
    for (unsigned i = 0; i < 3; i++)
        put_string(&t->keys, control[i]);
    key(t, TYPE_ARRAY, "tokenizer.ggml.token_type");
    put_u32(&t->keys, t->o.odd_types ? TYPE_U32 : TYPE_I32);
    put_u64(&t->keys, TINY_GGUF_VOCAB);
    for (unsigned i = 0; i < TINY_GGUF_VOCAB; i++)
        put_u32(&t->keys, i < 256 ? 1 : 3);
    key(t, TYPE_ARRAY, "tokenizer.ggml.merges");
    put_u32(&t->keys, TYPE_STRING);
    put_u64(&t->keys, 0);
    key(t, TYPE_U32, "tokenizer.ggml.bos_token_id");
    put_u32(&t->keys, TINY_GGUF_BOS);
    key(t, t->o.odd_types ? TYPE_I32 : TYPE_U32, "tokenizer.ggml.eos_token_id");
    put_u32(&t->keys, t->o.odd_types ? UINT32_MAX : TINY_GGUF_EOS);
}

/* ---- tensors ---- */

static void encode_q8_0(struct buffer *b, float *x)
{
    float max = 0.0f, d;

    for (unsigned i = 0; i < 32; i++)
        max = fmaxf(max, fabsf(x[i]));
    put_u16(b, f32_to_f16(max / 127.0f));
    d = f16_to_f32(f32_to_f16(max / 127.0f));
    for (unsigned i = 0; i < 32; i++) {
        int8_t q = (int8_t) fmaxf(-127.0f, fminf(127.0f, roundf(d > 0.0f ? x[i] / d : 0.0f)));

        put(b, &q, 1);
        x[i] = d * (float) q;
    }
}

static void encode_q4_1(struct buffer *b, float *x)
{
    float min = x[0], max = x[0], d, m;
    uint8_t q[32], packed[16];

    for (unsigned i = 1; i < 32; i++) {
        min = fminf(min, x[i]);
        max = fmaxf(max, x[i]);
    }
    put_u16(b, f32_to_f16((max - min) / 15.0f));
    put_u16(b, f32_to_f16(min));
    d = f16_to_f32(f32_to_f16((max - min) / 15.0f));
    m = f16_to_f32(f32_to_f16(min));
    for (unsigned i = 0; i < 32; i++) {
        q[i] = (uint8_t) fmaxf(0.0f, fminf(15.0f, roundf(d > 0.0f ? (x[i] - m) / d : 0.0f)));
        x[i] = d * (float) q[i] + m;
    }
    for (unsigned i = 0; i < 16; i++)
        packed[i] = (uint8_t) (q[i] | q[i + 16] << 4);
    put(b, packed, sizeof(packed));
}

/* Appends the values to the data section, and rounds @x to the stored values. */
static void encode(struct buffer *b, uint32_t type, float *x, size_t n)
{
    pad(b);
    for (size_t i = 0; i < n; i += type == Q8_0 || type == Q4_1 ? 32 : 1) {
        if (type == Q8_0) {
            encode_q8_0(b, x + i);
        } else if (type == Q4_1) {
            encode_q4_1(b, x + i);
        } else if (type == F16) {
            put_u16(b, f32_to_f16(x[i]));
            x[i] = f16_to_f32(f32_to_f16(x[i]));
        } else {
            put(b, x + i, sizeof(*x));
        }
    }
}

/* @mean + @spread * N(0, 1); a vector if @n_rows is 0. */
__attribute__((format(printf, 6, 7))) static void tensor(struct tiny_gguf *t, size_t n_rows, size_t n_cols,
                                                         float mean, float spread, const char *fmt, ...)
{
    struct tensor *x = &t->tensors[t->n_tensors++];
    va_list ap;

    if (t->n_tensors > TENSORS_MAX) {
        fprintf(stderr, "tiny_gguf: too many layers\n");
        exit(1);
    }
    va_start(ap, fmt);
    (void) vsnprintf(x->name, sizeof(x->name), fmt, ap);
    va_end(ap);
    x->n_dims = n_rows > 0 ? 2 : 1;
    x->dims[0] = n_cols;
    x->dims[1] = n_rows;
    x->n = n_cols * (n_rows > 0 ? n_rows : 1);
    x->type = n_rows > 0 ? t->o.type : F32;
    x->values = grown(NULL, x->n * sizeof(float));
    for (size_t i = 0; i < x->n; i++)
        x->values[i] = mean + spread * normal(t);
    pad(&t->data);
    x->offset = t->data.n;
    encode(&t->data, x->type, x->values, x->n);
}

static void make_layer(struct tiny_gguf *t, unsigned i)
{
    const struct tiny_gguf_options *o = &t->o;
    size_t n_q = (size_t) o->n_heads * o->d, n_kv = (size_t) o->n_kv_heads * o->d;
    float in = 1.0f / sqrtf((float) o->n_embd), ff = 1.0f / sqrtf((float) o->n_ff);

    tensor(t, 0, o->n_embd, 1.0f, 0.1f, "blk.%u.attn_norm.weight", i);
    /* scores with a spread of 2: attention weights differ between tokens */
    tensor(t, n_q, o->n_embd, 0.0f, 1.5f * in, "blk.%u.attn_q.weight", i);
    tensor(t, n_kv, o->n_embd, 0.0f, 1.5f * in, "blk.%u.attn_k.weight", i);
    tensor(t, n_kv, o->n_embd, 0.0f, in, "blk.%u.attn_v.weight", i);
    tensor(t, o->n_embd, n_q, 0.0f, 1.0f / sqrtf((float) n_q), "blk.%u.attn_output.weight", i);
    tensor(t, 0, o->n_embd, 1.0f, 0.1f, "blk.%u.ffn_norm.weight", i);
    tensor(t, o->n_ff, o->n_embd, 0.0f, in, "blk.%u.ffn_gate.weight", i);
    tensor(t, o->n_ff, o->n_embd, 0.0f, in, "blk.%u.ffn_up.weight", i);
    tensor(t, o->n_embd, o->n_ff, 0.0f, ff, "blk.%u.ffn_down.weight", i);
    if (strcmp(o->architecture, "qwen2") == 0) {
        tensor(t, 0, n_q, 0.0f, 0.5f, "blk.%u.attn_q.bias", i);
        tensor(t, 0, n_kv, 0.0f, 0.5f, "blk.%u.attn_k.bias", i);
        tensor(t, 0, n_kv, 0.0f, 0.5f, "blk.%u.attn_v.bias", i);
    }
    if (strcmp(o->architecture, "qwen3") == 0) {
        tensor(t, 0, o->d, 1.0f, 0.2f, "blk.%u.attn_q_norm.weight", i);
        tensor(t, 0, o->d, 1.0f, 0.2f, "blk.%u.attn_k_norm.weight", i);
    }
}

static void assemble(struct tiny_gguf *t)
{
    struct buffer *f = &t->file;

    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, t->n_tensors);
    put_u64(f, t->n_keys);
    put(f, t->keys.p, t->keys.n);
    for (size_t i = 0; i < t->n_tensors; i++) {
        const struct tensor *x = &t->tensors[i];

        put_string(f, x->name);
        put_u32(f, x->n_dims);
        for (unsigned k = 0; k < x->n_dims; k++)
            put_u64(f, x->dims[k]);
        put_u32(f, x->type);
        put_u64(f, x->offset);
    }
    pad(f);
    put(f, t->data.p, t->data.n);
}

static struct tiny_gguf_options with_defaults(const struct tiny_gguf_options *given)
{
    struct tiny_gguf_options o = *given;

    o.architecture = o.architecture ? o.architecture : "llama";
    o.tokenizer = o.tokenizer ? o.tokenizer : "gpt2";
    o.pre = o.pre ? o.pre : "gpt-2";
    o.n_layers = o.n_layers ? o.n_layers : 2;
    o.n_heads = o.n_heads ? o.n_heads : 4;
    o.n_kv_heads = o.n_kv_heads ? o.n_kv_heads : 2;
    o.d = o.d ? o.d : 32;
    o.n_rot = o.n_rot ? o.n_rot : o.d;
    o.n_embd = o.n_embd ? o.n_embd : o.n_heads * o.d;
    o.n_ff = o.n_ff ? o.n_ff : 2 * o.n_embd;
    return o;
}

struct tiny_gguf *tiny_gguf_new(const struct tiny_gguf_options *o)
{
    struct tiny_gguf *t = grown(NULL, sizeof(*t));

    *t = (struct tiny_gguf){.o = with_defaults(o), .state = o->seed};
    write_sizes(t);
    write_tokenizer(t);
    /* the output head too: logits with a spread of 3 give a distribution with a few likely tokens */
    tensor(t, TINY_GGUF_VOCAB, t->o.n_embd, 0.0f, 3.0f / sqrtf((float) t->o.n_embd), "token_embd.weight");
    for (unsigned i = 0; i < t->o.n_layers; i++)
        make_layer(t, i);
    tensor(t, 0, t->o.n_embd, 1.0f, 0.1f, "output_norm.weight");
    if (t->o.untied)
        tensor(t, TINY_GGUF_VOCAB, t->o.n_embd, 0.0f, 3.0f / sqrtf((float) t->o.n_embd), "output.weight");
    if (t->o.rope_freqs) {
        struct tensor *x = &t->tensors[t->n_tensors];

        tensor(t, 0, t->o.n_rot / 2, 1.0f, 0.0f, "rope_freqs.weight");
        for (size_t i = 0; i < x->n; i++) /* as for Llama 3: slow planes are slowed further */
            x->values[i] = i < x->n / 2 ? 1.0f : 8.0f;
        memcpy(t->data.p + x->offset, x->values, x->n * sizeof(float));
    }
    if (t->o.extra_tensor)
        tensor(t, 0, 32, 0.0f, 1.0f, "%s", t->o.extra_tensor);
    assemble(t);
    return t;
}

struct tiny_gguf *tiny_gguf_free(struct tiny_gguf *t)
{
    if (!t)
        return NULL;
    for (size_t i = 0; i < t->n_tensors; i++)
        free(t->tensors[i].values);
    free(t->keys.p);
    free(t->data.p);
    free(t->file.p);
    free(t);
    return NULL;
}

const uint8_t *tiny_gguf_bytes(const struct tiny_gguf *t, size_t *ret_bytes)
{
    *ret_bytes = t->file.n;
    return t->file.p;
}

const struct tiny_gguf_options *tiny_gguf_shape(const struct tiny_gguf *t)
{
    return &t->o;
}

const float *tiny_gguf_tensor(const struct tiny_gguf *t, const char *name, size_t *ret_n)
{
    for (size_t i = 0; i < t->n_tensors; i++) {
        if (strcmp(t->tensors[i].name, name) != 0)
            continue;
        if (ret_n)
            *ret_n = t->tensors[i].n;
        return t->tensors[i].values;
    }
    return NULL;
}

int tiny_gguf_write(const struct tiny_gguf *t, const char *path)
{
    FILE *f = fopen(path, "wb");
    size_t n;

    if (!f)
        return -errno;
    n = fwrite(t->file.p, 1, t->file.n, f);
    if (fclose(f) != 0 || n != t->file.n)
        return -EIO;
    return 0;
}
