/*
 * llama_share: llama.cpp processes that share the K and V of a prompt. Run it twice with the same text: the
 * first process evaluates the text and publishes it, the second finds it and evaluates only the rest.
 *
 *     llama_share [OPTION]... MODEL.gguf DIGEST TEXT-FILE
 *
 * kvcobrad must have an active table for DIGEST, the model's digest, which "kvcobra model-id MODEL.gguf"
 * prints. client/llama/README.md explains the steps.
 */
#include <errno.h>
#include <getopt.h>
#include <llama.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/kvcobra-llama.h"
#include "client/kvcobra.h"

enum {
    SHARE_PIECE_TOKENS = 1024,  /* appended between two commits, so that their pages fit into the arena */
    SHARE_COMPARED_TOKENS = 64, /* last tokens whose probabilities --compare compares */
    SHARE_FAILED = 1,
    SHARE_USAGE = 2
};

struct share {
    /* options */
    const char *model_path, *digest, *text_path, *socket;
    int n_tokens_max;
    enum ggml_type type;
    bool flash_attention, compare;

    struct llama_model *llama;
    struct llama_context *context;
    llama_token *tokens;
    int n_tokens;

    kvc_client *client;
    kvc_model *model;
    kvc_seq *seq;
};

/* ---- messages ---- */

static int share_fail(const char *what, const char *why)
{
    fprintf(stderr, "llama_share: %s: %s\n", what, why);
    return SHARE_FAILED;
}

static int share_fail_kvc(const struct share *x, const char *what)
{
    return share_fail(what, kvc_last_error(x->client));
}

static double share_now(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

static void share_log_errors(enum ggml_log_level level, const char *text, void *unused)
{
    (void) unused;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

/* ---- llama.cpp ---- */

static struct llama_context *share_new_context(const struct share *x)
{
    struct llama_context_params p = llama_context_default_params();

    p.n_ctx = p.n_batch = (uint32_t) x->n_tokens + 64;
    p.type_k = p.type_v = x->type;
    p.flash_attn_type = x->flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return llama_init_from_model(x->llama, p);
}

static int share_tokenise(struct share *x)
{
    FILE *f = fopen(x->text_path, "rb");
    long n_bytes = 0;
    char *text = NULL;
    bool ok;

    if (!f)
        return share_fail(x->text_path, strerror(errno));

    ok = fseek(f, 0, SEEK_END) == 0 && (n_bytes = ftell(f)) > 0 && n_bytes < INT32_MAX / 8;
    if (ok) {
        rewind(f);
        text = malloc((size_t) n_bytes);
        x->tokens = calloc((size_t) n_bytes + 8, sizeof(*x->tokens)); /* a token has a byte or more */
        ok = text && x->tokens && fread(text, 1, (size_t) n_bytes, f) == (size_t) n_bytes;
    }
    (void) fclose(f);
    if (ok)
        x->n_tokens = llama_tokenize(llama_model_get_vocab(x->llama), text, (int32_t) n_bytes, x->tokens,
                                     (int32_t) n_bytes + 8, true, false);
    free(text);
    if (!ok || x->n_tokens < 2)
        return share_fail(x->text_path, "cannot be read, or has less than two tokens");
    if (x->n_tokens > x->n_tokens_max)
        x->n_tokens = x->n_tokens_max;

    return 0;
}

static int share_open_llama(struct share *x)
{
    llama_log_set(share_log_errors, NULL);
    llama_backend_init();
    x->llama = llama_model_load_from_file(x->model_path, llama_model_default_params());
    if (!x->llama)
        return share_fail(x->model_path, "llama.cpp cannot load the model");
    if (share_tokenise(x) != 0)
        return SHARE_FAILED;

    x->context = share_new_context(x);
    return x->context ? 0 : share_fail(x->model_path, "llama.cpp cannot make a context");
}

/* Evaluates tokens [first, n_tokens), behind those that the context has. Token t has logits t - first. */
static int share_evaluate(const struct share *x, struct llama_context *context, int first)
{
    struct llama_batch rest = llama_batch_init(x->n_tokens - first, 0, 1);
    int r;

    rest.n_tokens = x->n_tokens - first;
    for (int i = 0; i < rest.n_tokens; i++) {
        rest.token[i] = x->tokens[first + i];
        rest.pos[i] = first + i;
        rest.n_seq_id[i] = 1;
        rest.seq_id[i][0] = 0;
        rest.logits[i] = rest.n_tokens - i <= SHARE_COMPARED_TOKENS;
    }

    r = llama_decode(context, rest);
    llama_batch_free(rest);
    return r == 0 ? 0 : share_fail("llama_decode()", "failed");
}

/* The state of sequence 0: free() it. NULL: failed. */
static uint8_t *share_get_state(struct llama_context *context, size_t *ret_bytes)
{
    size_t bytes = llama_state_seq_get_size(context, 0);
    uint8_t *state = malloc(bytes + 1);

    if (state && bytes > 0 && llama_state_seq_get_data(context, state, bytes, 0) == bytes) {
        *ret_bytes = bytes;
        return state;
    }

    free(state);
    (void) share_fail("llama_state_seq_get_data()", "failed");
    return NULL;
}

/* ---- KV-COBRA ---- */

static int share_parse_digest(const char *hex, uint8_t ret[KVC_DIGEST_BYTES])
{
    if (strlen(hex) != 2 * KVC_DIGEST_BYTES || strspn(hex, "0123456789abcdef") != 2 * KVC_DIGEST_BYTES)
        return share_fail(hex, "a digest has 64 hexadecimal digits");

    for (size_t i = 0; i < KVC_DIGEST_BYTES; i++) {
        const char byte[3] = {hex[2 * i], hex[2 * i + 1], '\0'};

        ret[i] = (uint8_t) strtoul(byte, NULL, 16);
    }
    return 0;
}

/* The two dimensions that the model's RoPE rotates together; see kvcobra-llama.h. */
static int share_pairs(const struct llama_model *llama, uint32_t *ret)
{
    switch (llama_model_rope_type(llama)) {
    case LLAMA_ROPE_TYPE_NORM:
        *ret = KVC_PAIRS_INTERLEAVED;
        return 0;
    case LLAMA_ROPE_TYPE_NEOX:
        *ret = KVC_PAIRS_HALF_SPLIT;
        return 0;
    default:
        return share_fail("the model", "has no RoPE, or one of several positions");
    }
}

static int share_open_sequence(struct share *x)
{
    kvc_model_id id = {.struct_bytes = sizeof(id), .geometry.struct_bytes = sizeof(id.geometry)};
    kvc_seq_options o = {
        .struct_bytes = sizeof(o), .keys = KVC_KEYS_AFTER_ROPE, .flags = KVC_SEQ_PUBLISH_ALL};
    double freq[KVC_ROPE_FREQ_MAX];

    if (share_parse_digest(x->digest, id.model_digest) != 0 || share_pairs(x->llama, &o.pairs) != 0)
        return SHARE_FAILED;
    if (kvc_client_new(&x->client) < 0)
        return share_fail("kvc_client_new()", "out of memory");
    if (kvc_client_connect(x->client, x->socket) < 0)
        return share_fail_kvc(x, "kvcobrad");
    if (kvc_client_get_geometry(x->client, id.model_digest, &id.geometry, freq) < 0 ||
        kvc_model_open(x->client, &id, &x->model) < 0)
        return share_fail_kvc(x, "the model");
    if (kvc_seq_new_with(x->model, &o, &x->seq) < 0)
        return share_fail_kvc(x, "the sequence");

    return 0;
}

/* How this context lays out a state: from that of one token. It also shows whether the format is known. */
static int share_sample(struct share *x, kvc_llama_layout *ret_layout)
{
    uint8_t *state;
    size_t bytes = 0;
    int r;

    if (llama_decode(x->context, llama_batch_get_one(x->tokens, 1)) != 0)
        return share_fail("llama_decode()", "failed");

    state = share_get_state(x->context, &bytes);
    if (!state)
        return SHARE_FAILED;

    r = kvc_llama_state_check(x->model, state, bytes, ret_layout);
    free(state);
    llama_memory_clear(llama_get_memory(x->context), true);
    return r < 0 ? share_fail_kvc(x, "the state of one token") : 0;
}

/* Gives the context what other processes published of the text. */
static int share_find(struct share *x, const kvc_llama_layout *sample, size_t *ret_found)
{
    kvc_llama_layout layout = *sample;
    uint8_t *state = NULL;
    size_t bytes = 0;
    int r = 0;

    if (kvc_seq_match(x->seq, (const uint32_t *) x->tokens, (size_t) x->n_tokens, ret_found) < 0)
        return share_fail_kvc(x, "kvc_seq_match()");
    if (*ret_found == 0)
        return 0;

    layout.n_tokens = (uint32_t) *ret_found;
    if (kvc_llama_state_bytes(x->model, &layout, &bytes) < 0)
        return share_fail_kvc(x, "kvc_llama_state_bytes()");

    state = malloc(bytes);
    if (!state)
        return share_fail("malloc()", "out of memory");
    if (kvc_llama_state_write(x->seq, &layout, state, bytes) < 0)
        r = share_fail_kvc(x, "kvc_llama_state_write()");
    else if (llama_state_seq_set_data(x->context, state, bytes, 0) != bytes)
        r = share_fail("llama_state_seq_set_data()", "refused the state");
    free(state);
    return r;
}

/* Publishes what the context has and kvcobrad has not. */
static int share_publish(struct share *x, size_t *ret_published)
{
    const uint32_t *tokens = (const uint32_t *) x->tokens;
    size_t bytes = 0, n_all = (size_t) x->n_tokens;
    uint8_t *state = share_get_state(x->context, &bytes);
    int r = 0;

    if (!state)
        return SHARE_FAILED;

    *ret_published = 0;
    for (size_t n = kvc_seq_length(x->seq); r == 0 && n < n_all;) {
        n = n_all - n > SHARE_PIECE_TOKENS ? n + SHARE_PIECE_TOKENS : n_all;
        r = kvc_llama_state_read(x->seq, state, bytes, n);
        if (r == 0)
            r = kvc_seq_commit(x->seq, tokens, n, ret_published);
    }
    free(state);
    return r < 0 ? share_fail_kvc(x, "publishing") : 0;
}

/* ---- results ---- */

static int share_best(const float *logits, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* log sum exp */
static double share_log_sum(const float *logits, int n)
{
    double max = logits[share_best(logits, n)], sum = 0;

    for (int i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return max + log(sum);
}

/* Kullback-Leibler divergence of two sets of @n probabilities. */
static double share_divergence(const float *exact, const float *got, int n)
{
    double log_exact = share_log_sum(exact, n), log_got = share_log_sum(got, n), sum = 0;

    for (int i = 0; i < n; i++)
        sum += exp(exact[i] - log_exact) * ((exact[i] - log_exact) - (got[i] - log_got));
    return sum;
}

/* Evaluates the whole text in a context of its own, and prints how far the probabilities are apart that
 * follow the last tokens. */
static int share_compare(const struct share *x, int found)
{
    int n = llama_vocab_n_tokens(llama_model_get_vocab(x->llama)),
        first = x->n_tokens - SHARE_COMPARED_TOKENS;
    struct llama_context *whole = share_new_context(x);
    double started = share_now(), sum = 0;

    if (!whole)
        return share_fail(x->model_path, "llama.cpp cannot make a second context");
    if (share_evaluate(x, whole, 0) != 0) {
        llama_free(whole);
        return SHARE_FAILED;
    }

    printf("evaluating all %d tokens: %.3f s\n", x->n_tokens, share_now() - started);
    if (first < found)
        first = found;
    for (int t = first; t < x->n_tokens; t++)
        sum +=
            share_divergence(llama_get_logits_ith(whole, t), llama_get_logits_ith(x->context, t - found), n);
    printf("next token without sharing: %d\n", share_best(llama_get_logits_ith(whole, -1), n));
    printf("divergence: %.3g nats, mean of the last %d tokens\n", sum / (x->n_tokens - first),
           x->n_tokens - first);
    llama_free(whole);
    return 0;
}

static int share_run(struct share *x)
{
    kvc_llama_layout sample = {.struct_bytes = sizeof(sample)};
    size_t found = 0, published = 0;
    double at[4];
    int n;

    if (share_open_llama(x) != 0 || share_open_sequence(x) != 0 || share_sample(x, &sample) != 0)
        return SHARE_FAILED;

    at[0] = share_now();
    if (share_find(x, &sample, &found) != 0)
        return SHARE_FAILED;
    at[1] = share_now();
    if (share_evaluate(x, x->context, (int) found) != 0)
        return SHARE_FAILED;
    at[2] = share_now();
    if (share_publish(x, &published) != 0)
        return SHARE_FAILED;
    at[3] = share_now();

    n = llama_vocab_n_tokens(llama_model_get_vocab(x->llama));
    printf("tokens: %d\n", x->n_tokens);
    printf("found: %zu, in %.3f s\n", found, at[1] - at[0]);
    printf("evaluated: %zu, in %.3f s\n", (size_t) x->n_tokens - found, at[2] - at[1]);
    printf("published: %zu, in %.3f s\n", published, at[3] - at[2]);
    printf("next token: %d\n", share_best(llama_get_logits_ith(x->context, -1), n));
    return x->compare ? share_compare(x, (int) found) : 0;
}

/* ---- command line ---- */

static const char share_help[] =
    "usage: llama_share [OPTION]... MODEL.gguf DIGEST TEXT-FILE\n"
    "\n"
    "Takes from kvcobrad what other processes published of the text, evaluates the rest, and publishes it.\n"
    "\n"
    "  --socket PATH   kvcobrad's socket (default: see kvc_socket_path())\n"
    "  --tokens N      use at most the first N tokens of the text (default 2048)\n"
    "  --type TYPE     number type of the context's cache: f16 (default), bf16 or f32; q8_0 is refused\n"
    "  --no-flash      make the context without flash attention, so that it stores values transposed\n"
    "  --compare       evaluate the whole text too, and print how far the results are apart\n"
    "  --help          print this text\n";

static int share_set_type(struct share *x, const char *name)
{
    static const enum ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(ggml_type_name(types[i]), name) == 0) {
            x->type = types[i];
            return 0;
        }
    (void) share_fail(name, "is not a number type of --type");
    return SHARE_USAGE;
}

/* Return: 0; SHARE_USAGE; -1: the help was printed. */
static int share_parse_options(struct share *x, int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},
        {"tokens", required_argument, NULL, 'n'},
        {"type", required_argument, NULL, 't'},
        {"no-flash", no_argument, NULL, 'f'},
        {"compare", no_argument, NULL, 'c'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int r = 0;

    for (int c; r == 0 && (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 's')
            x->socket = optarg;
        else if (c == 'n')
            x->n_tokens_max = atoi(optarg);
        else if (c == 't')
            r = share_set_type(x, optarg);
        else if (c == 'f')
            x->flash_attention = false;
        else if (c == 'c')
            x->compare = true;
        else
            r = c == 'h' ? -1 : SHARE_USAGE;
    }
    if (r != 0)
        return r;
    if (argc - optind != 3 || x->n_tokens_max < 2)
        return SHARE_USAGE;

    x->model_path = argv[optind];
    x->digest = argv[optind + 1];
    x->text_path = argv[optind + 2];
    return 0;
}

int main(int argc, char **argv)
{
    struct share x = {.n_tokens_max = 2048, .type = GGML_TYPE_F16, .flash_attention = true};
    int r = share_parse_options(&x, argc, argv);

    if (r != 0) {
        fputs(share_help, r < 0 ? stdout : stderr);
        return r < 0 ? 0 : r;
    }

    r = share_run(&x);
    (void) kvc_client_free(x.client);
    if (x.context)
        llama_free(x.context);
    if (x.llama)
        llama_model_free(x.llama);
    free(x.tokens);
    return r;
}
