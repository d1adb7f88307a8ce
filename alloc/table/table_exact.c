/* See table_exact.h. */
#include "alloc/table/table_exact.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_format.h"
#include "base/errmsg.h"

const char *exact_type_name(uint8_t type)
{
    static const char *const names[] = {NULL, "binary32", "binary16", "bf16"};

    return type < sizeof(names) / sizeof(names[0]) ? names[type] : NULL;
}

bool exact_form_valid(const struct exact_form *f)
{
    return exact_type_name(f->type) && f->after_rope <= 1 && f->interleaved <= 1;
}

bool exact_form_unpack(uint32_t packed, struct exact_form *ret)
{
    *ret = (struct exact_form){
        .type = packed & 3, .after_rope = packed >> 2 & 1, .interleaved = packed >> 3 & 1};
    return packed >> 4 == 0 && exact_form_valid(ret);
}

uint32_t exact_form_pack(const struct exact_form *f)
{
    return f->type + 4u * f->after_rope + 8u * f->interleaved;
}

const char *exact_form_print(const struct exact_form *f, char ret_text[EXACT_FORM_TEXT_BYTES])
{
    (void) snprintf(ret_text, EXACT_FORM_TEXT_BYTES, "%s, keys %s RoPE, %s pairs", exact_type_name(f->type),
                    f->after_rope ? "after" : "before", f->interleaved ? "interleaved" : "half-split");
    return ret_text;
}

int table_exact_check_size(const struct geometry *g, int error, struct errmsg *e)
{
    return head_side_count(g) <= EXACT_HEAD_SIDES_MAX
               ? 0
               : fail(e, error,
                      "an exact table of %u layers with %u KV heads: at most %d heads and sides are possible",
                      g->n_layers, g->n_kv_heads, EXACT_HEAD_SIDES_MAX);
}

/* ---- reading ---- */

int table_check_exact(struct table *t, struct codec *ret_codecs, struct errmsg *e)
{
    static const float no_mean[GEOMETRY_DIM_MAX];
    const struct table_header *h = table_header(t);
    size_t number = exact_number_bytes(t->exact.type);

    if (!exact_form_valid(&t->exact))
        return fail(e, -EBADMSG,
                    "it is an exact table of numbers of type %u (RoPE %u, pairs %u), which this program does "
                    "not know: use a newer version of this program",
                    t->exact.type, t->exact.after_rope, t->exact.interleaved);
    if (h->sections[SECTION_LEVELS].bytes != 0 || h->sections[SECTION_MATRICES].bytes != 0 ||
        h->sections[SECTION_GOLDEN].bytes != 0 || h->matrix_form != MATRICES_SINGLE || t->n_sink != 0 ||
        t->v_from != PREDICT_NONE)
        return fail(e, -EBADMSG, "it is an exact table, but has sinks, levels, matrices or golden vectors");

    for (uint32_t i = 0; i < head_side_count(&t->geometry); i++)
        ret_codecs[i] = (struct codec){
            .code_bits = (uint16_t) (8 * number * t->geometry.d), .enc_mean = no_mean, .mean = no_mean};
    t->codecs = ret_codecs;
    t->bpd_code = 8.0 * (double) number;
    return 0;
}

/* ---- building ---- */

/* Places sections of these sizes; returns the bytes of the file. */
static size_t table_exact_lay_out(struct table_header *h, const size_t bytes[static SECTION_COUNT])
{
    size_t at = sizeof(*h);

    for (unsigned i = 0; i < SECTION_COUNT; i++) {
        at = (at + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
        h->sections[i] = (struct table_section_entry){at, bytes[i]};
        at += bytes[i];
    }
    return (at + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN + DIGEST_BYTES;
}

int table_exact_build(const struct geometry *g, const uint8_t model_digest[static DIGEST_BYTES],
                      const struct exact_form *form, void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e)
{
    char words[EXACT_FORM_TEXT_BYTES], provenance[EXACT_FORM_TEXT_BYTES + 32];
    struct table_header h = {
        .version = TABLE_VERSION,
        .n_layers = g->n_layers,
        .n_heads = g->n_heads,
        .n_kv_heads = g->n_kv_heads,
        .d = g->d,
        .n_rot = g->n_rot,
        .attn_scale = g->attn_scale,
        .exact = *form,
    };
    size_t bytes[SECTION_COUNT] = {0}, n;
    int r = geometry_validate(g, e);
    uint8_t *file;

    if (r == 0)
        r = table_exact_check_size(g, -EINVAL, e);
    if (r < 0)
        return r;

    (void) snprintf(provenance, sizeof(provenance), "{\"exact\": \"%s\"}", exact_form_print(form, words));
    bytes[SECTION_FREQ] = g->n_rot / 2 * sizeof(double);
    bytes[SECTION_PROVENANCE] = strlen(provenance) + 1;
    n = table_exact_lay_out(&h, bytes);
    h.n_bytes = n;
    memcpy(h.magic, TABLE_MAGIC, sizeof(h.magic));
    memcpy(h.model_digest, model_digest, DIGEST_BYTES);

    file = calloc(1, n);
    if (!file)
        return fail(e, -ENOMEM, "out of memory: an exact table has %zu bytes", n);

    memcpy(file, &h, sizeof(h));
    memcpy(file + h.sections[SECTION_FREQ].off, g->freq, bytes[SECTION_FREQ]);
    memcpy(file + h.sections[SECTION_PROVENANCE].off, provenance, bytes[SECTION_PROVENANCE]);
    (void) crypto_hash_sha256(file + n - DIGEST_BYTES, file, n - DIGEST_BYTES);
    *ret_bytes = file;
    *ret_n_bytes = n;
    return 0;
}
