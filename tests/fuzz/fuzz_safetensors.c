/*
 * Reads a safetensors file of arbitrary bytes. If it is accepted, its tensors cover the bytes after the
 * header exactly, and a header made of them is accepted too.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/identify/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

/* The header again, from what was read. */
static char *print_header(const struct safetensors *s, uint64_t data_offset)
{
    json_t *root = json_object();
    char *text;

    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];
        json_int_t begin = (json_int_t) (t->offset - data_offset);
        json_t *shape = json_array();

        for (uint32_t k = 0; k < t->n_dims; k++)
            check(json_array_append_new(shape, json_integer((json_int_t) t->dims[k])) == 0);
        check(json_object_set_new(root, t->name,
                                  json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->type, "shape", shape,
                                            "data_offsets", begin, begin + (json_int_t) t->bytes)) == 0);
    }
    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static void walk(const struct safetensors *s, const uint8_t *data, size_t size, size_t header_bytes)
{
    uint64_t data_offset = SAFETENSORS_LENGTH_BYTES + header_bytes, at = data_offset, sum = 0;
    _cleanup_(safetensors_deinit) struct safetensors again = {.header = NULL};
    _cleanup_(freep) char *text = print_header(s, data_offset);
    struct errmsg e = {""};

    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];

        check(t->name[0] != '\0' && t->offset == at && t->n_dims <= SAFETENSORS_DIMS_MAX);
        for (uint64_t k = 0; k < t->bytes; k++)
            sum += data[t->offset + k];
        at += t->bytes;
    }
    check(at == size && sum < UINT64_MAX);
    check(text != NULL);
    check(safetensors_parse(text, strlen(text),
                            SAFETENSORS_LENGTH_BYTES + strlen(text) + (size - data_offset), "again", &again,
                            &e) == 0);
    check(again.n_tensors == s->n_tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(safetensors_deinit) struct safetensors s = {.header = NULL};
    struct errmsg e = {""};
    size_t header_bytes;

    if (safetensors_header_bytes(data, size, "input", &header_bytes, &e) < 0 ||
        safetensors_parse(data + SAFETENSORS_LENGTH_BYTES, header_bytes, size, "input", &s, &e) < 0) {
        check(e.text[0] != '\0' && s.header == NULL);
        return 0;
    }
    walk(&s, data, size, header_bytes);
    return 0;
}
