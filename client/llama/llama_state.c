/* See llama_state.h. */
#include "client/llama/llama_state.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/checked.h"
#include "base/errmsg.h"
#include "gpu/dtype.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "states of llama.cpp are read and written on little-endian machines only"
#endif

enum {
    LLAMA_MAGIC_BYTES = 8,    /* magic and sequence id */
    LLAMA_CELL_BYTES = 12,    /* position, n_ids, sequence id */
    LLAMA_EXT_BYTES = 12,     /* more in cells of M-RoPE models: x, y, token */
    LLAMA_DATA_BYTES = 8,     /* v_transposed, n_layers */
    LLAMA_ROTATION_BYTES = 8, /* of keys, of values */
    LLAMA_LAYER_BYTES = 12,   /* before the numbers of a layer and side */
    LLAMA_STREAMS_MAX = 256   /* LLAMA_MAX_SEQ */
};

static const uint32_t llama_magic = 0xaf143cd8;

/* ---- number types ---- */

static const struct {
    int32_t ggml; /* enum ggml_type */
    int dtype;    /* enum kvc_dtype; -1: quantised */
    const char *name;
} llama_types[] = {
    {0, KVC_F32, "f32"}, {1, KVC_F16, "f16"}, {30, KVC_BF16, "bf16"}, {2, -1, "q4_0"},    {3, -1, "q4_1"},
    {6, -1, "q5_0"},     {7, -1, "q5_1"},     {8, -1, "q8_0"},        {20, -1, "iq4_nl"},
};

enum { LLAMA_N_TYPES = sizeof(llama_types) / sizeof(llama_types[0]) };

static int32_t llama_type_of(uint32_t dtype)
{
    for (size_t i = 0; i < LLAMA_N_TYPES; i++)
        if (llama_types[i].dtype == (int) dtype)
            return llama_types[i].ggml;
    return -1;
}

/* Return: enum kvc_dtype; or an error. */
static int llama_read_type(int32_t type, const char *what, struct errmsg *e)
{
    for (size_t i = 0; i < LLAMA_N_TYPES; i++) {
        if (llama_types[i].ggml != type)
            continue;
        if (llama_types[i].dtype < 0)
            return fail(
                e, -EOPNOTSUPP,
                "the state has %s of type %s, which llama.cpp rotates and quantises: make the context "
                "with type_k and type_v f16, bf16 or f32",
                what, llama_types[i].name);
        return llama_types[i].dtype;
    }
    return fail(
        e, -EBADMSG,
        "the state has %s of ggml type %d instead of 0 (f32), 1 (f16) or 30 (bf16): its format is not "
        "the known one",
        what, type);
}

/* ---- reading ---- */

struct llama_reader {
    const uint8_t *bytes;
    size_t at, end;
    int32_t id; /* of the sequence, in the first bytes */
    struct errmsg *e;
};

/* Moves @ret past @n bytes. */
static int llama_skip(struct llama_reader *r, size_t n, const char *what)
{
    if (n > r->end - r->at)
        return fail(r->e, -EBADMSG, "the state ends after %zu bytes, within %s, which needs %zu more", r->end,
                    what, n - (r->end - r->at));

    r->at += n;
    return 0;
}

static int llama_read(struct llama_reader *r, void *ret, size_t n, const char *what)
{
    const uint8_t *from = r->bytes + r->at;
    int err = llama_skip(r, n, what);

    if (err == 0)
        memcpy(ret, from, n);
    return err;
}

static int llama_read_magic(struct llama_reader *r)
{
    struct {
        uint32_t magic;
        int32_t id;
    } head;
    int err = llama_read(r, &head, sizeof(head), "its first 8 bytes");

    if (err < 0)
        return err;
    if (head.magic != llama_magic)
        return fail(r->e, -EBADMSG,
                    "the state begins with %08x instead of %08x: it is not the state of one sequence of "
                    "llama_state_seq_get_data(), or of a release with another format",
                    head.magic, llama_magic);

    r->id = head.id;
    return 0;
}

/* Reads empty streams from @first on, up to one with cells; *ret_cells is 0 if there is none. */
static int llama_read_streams(struct llama_reader *r, uint32_t *first, uint32_t n_streams,
                              uint32_t *ret_cells)
{
    uint32_t n_cells = 0;

    while (n_cells == 0 && *first < n_streams) {
        int err = llama_read(r, &n_cells, sizeof(n_cells), "the number of cells of a stream");

        if (err < 0)
            return err;
        ++*first;
    }

    *ret_cells = n_cells;
    return 0;
}

struct llama_cell {
    int32_t position;
    uint32_t n_ids;
    int32_t id;
};

/* Whether the cells at @at would be those of positions 0, 1 with the extra members of M-RoPE models. */
static bool llama_has_ext(const struct llama_reader *r, size_t at)
{
    static const size_t cell_bytes = LLAMA_CELL_BYTES + LLAMA_EXT_BYTES;
    struct llama_cell first, second;

    if (r->end - at < 2 * cell_bytes)
        return false;

    memcpy(&first, r->bytes + at, sizeof(first));
    memcpy(&second, r->bytes + at + cell_bytes, sizeof(second));
    return first.position == 0 && first.n_ids == 1 && second.position == 1 && second.n_ids == 1;
}

static int llama_read_cells(struct llama_reader *r, uint32_t n_cells)
{
    size_t first = r->at;

    for (uint32_t i = 0; i < n_cells; i++) {
        struct llama_cell cell;
        int err = llama_read(r, &cell, sizeof(cell), "a cell");

        if (err < 0)
            return err;
        if (cell.n_ids == 1 && cell.id == r->id && cell.position == (int32_t) i)
            continue;
        if (llama_has_ext(r, first))
            return fail(r->e, -EOPNOTSUPP,
                        "the cells of the state have more than a position: the model has M-RoPE, or keys "
                        "that depend on more tokens, which is not supported");
        if (cell.n_ids == 1 && cell.id == r->id && cell.position >= 0)
            return fail(r->e, -EOPNOTSUPP,
                        "cell %u of the state is at position %d instead of %u: the text was shifted, or "
                        "parts of it removed, or its cells are not in order",
                        i, cell.position, i);
        return fail(r->e, -EBADMSG,
                    "cell %u of the state is position %d of %u sequences, the first of which is %d, instead "
                    "of position %u of 1 sequence, which is %d: the format is not the known one",
                    i, cell.position, cell.n_ids, cell.id, i, r->id);
    }
    return 0;
}

/* ---- numbers ---- */

/* The header of one layer and side. */
struct llama_layer {
    int32_t type;
    uint32_t low, high; /* row_bytes, or number_bytes and n_rows */
};

static int llama_read_layer(struct llama_reader *r, const struct llama_shape *shape, const char *what,
                            kvc_llama_layout *layout, bool is_first, bool transposed)
{
    size_t n_numbers = llama_row_numbers(shape), number_bytes;
    struct llama_layer head;
    int err = llama_read(r, &head, sizeof(head), what), dtype;

    if (err < 0)
        return err;

    dtype = llama_read_type(head.type, what, r->e);
    if (dtype < 0)
        return dtype;
    if (is_first)
        layout->dtype = (uint32_t) dtype;
    if ((uint32_t) dtype != layout->dtype)
        return fail(r->e, -EOPNOTSUPP,
                    "the state has %s of ggml type %d, but keys of layer 0 of type %d: make the context with "
                    "type_k equal to type_v",
                    what, head.type, llama_type_of(layout->dtype));

    number_bytes = dtype_bytes(layout->dtype);
    if (transposed && (head.low != number_bytes || head.high != n_numbers))
        return fail(r->e, head.low == number_bytes ? -EINVAL : -EBADMSG,
                    "the state has %s of %u rows of %u bytes per number, but the model has %zu numbers of "
                    "%zu bytes per token and layer",
                    what, head.high, head.low, n_numbers, number_bytes);
    if (!transposed && ((uint64_t) head.high << 32 | head.low) != n_numbers * number_bytes)
        return fail(
            r->e, -EINVAL,
            "the state has %s of %llu bytes per token, but the model has %zu numbers of %zu bytes per "
            "token and layer",
            what, (unsigned long long) ((uint64_t) head.high << 32 | head.low), n_numbers, number_bytes);

    return llama_skip(r, layout->n_tokens * n_numbers * number_bytes, what);
}

/* Whether @head could be the header of the keys of layer 0. */
static bool llama_is_of_keys(const struct llama_layer *head, const struct llama_shape *shape)
{
    uint64_t row_bytes = (uint64_t) head->high << 32 | head->low;

    for (size_t i = 0; i < LLAMA_N_TYPES; i++) {
        if (llama_types[i].ggml != head->type)
            continue;
        if (llama_types[i].dtype < 0) /* a row of a quantised type has fewer bytes than numbers of 4 bytes */
            return row_bytes > 0 && row_bytes < llama_row_numbers(shape) * sizeof(float);
        return row_bytes == llama_row_numbers(shape) * dtype_bytes((unsigned) llama_types[i].dtype);
    }
    return false;
}

/* Reads the sizes of the rotations, if the state has them: then the keys of layer 0 begin behind them. Two
 * zeros are sizes also where those keys are of another geometry. */
static int llama_read_rotation(struct llama_reader *r, const struct llama_shape *shape,
                               kvc_llama_layout *layout)
{
    struct llama_layer here, behind;
    uint32_t sizes[2];

    if (r->end - r->at < sizeof(sizes) + sizeof(behind))
        return 0;

    memcpy(&here, r->bytes + r->at, sizeof(here));
    memcpy(&behind, r->bytes + r->at + sizeof(sizes), sizeof(behind));
    if (llama_is_of_keys(&here, shape) ||
        !(llama_is_of_keys(&behind, shape) || (here.type == 0 && here.low == 0)))
        return 0;

    (void) llama_read(r, sizes, sizeof(sizes), "the sizes of the rotations");
    layout->states_rotation = 1;
    if (sizes[0] != 0 || sizes[1] != 0)
        return fail(r->e, -EOPNOTSUPP,
                    "llama.cpp has rotated the keys of the state by a matrix of %u dimensions and its values "
                    "by one of %u, as it does before it quantises: make the context with type_k and type_v "
                    "f16, bf16 or f32",
                    sizes[0], sizes[1]);
    return 0;
}

static int llama_read_numbers(struct llama_reader *r, const struct llama_shape *shape,
                              kvc_llama_layout *layout, size_t *ret_k)
{
    struct {
        uint32_t v_transposed, n_layers;
    } head;
    int err = llama_read(r, &head, sizeof(head), "the number of layers");

    if (err < 0)
        return err;
    if (head.v_transposed > 1)
        return fail(r->e, -EBADMSG,
                    "the state has %u instead of 0 or 1 where it says whether values are "
                    "transposed: its format is not the known one",
                    head.v_transposed);
    if (head.n_layers != shape->n_layers)
        return fail(r->e, -EINVAL,
                    "the state has a cache of %u layers, but the model has %u: it is of another model, or of "
                    "one with several caches, which is not supported",
                    head.n_layers, shape->n_layers);

    layout->v_transposed = head.v_transposed;
    err = llama_read_rotation(r, shape, layout);
    if (err < 0)
        return err;

    *ret_k = r->at + LLAMA_LAYER_BYTES;
    for (uint32_t i = 0; i < 2 * head.n_layers; i++) {
        bool is_v = i >= head.n_layers;

        err = llama_read_layer(r, shape, is_v ? "values" : "keys", layout, i == 0, is_v && head.v_transposed);
        if (err < 0)
            return err;
    }
    return 0;
}

/* What follows the cells of the only stream that has any. */
static int llama_read_end(struct llama_reader *r, uint32_t stream, uint32_t n_streams)
{
    uint32_t n_cells;
    int err = llama_read_streams(r, &stream, n_streams, &n_cells);

    if (err < 0)
        return err;
    if (n_cells != 0)
        return fail(r->e, -EBADMSG,
                    "a second stream of the state has %u cells: its format is not the known one", n_cells);
    if (r->at != r->end)
        return fail(r->e, -EOPNOTSUPP,
                    "%zu bytes follow the last layer of the state: the model has several caches (sliding "
                    "window, recurrent layers), which is not supported, or the format is not the known one",
                    r->end - r->at);

    return 0;
}

int llama_state_parse(const uint8_t *state, size_t n_bytes, const struct llama_shape *shape,
                      struct llama_state *ret, struct errmsg *e)
{
    struct llama_reader r = {.bytes = state, .end = n_bytes, .e = e};
    struct llama_state got = {.layout = {.struct_bytes = sizeof(got.layout)}};
    kvc_llama_layout *layout = &got.layout;
    uint32_t stream = 0;
    size_t row_bytes;
    int err = llama_read_magic(&r);

    if (err == 0)
        err = llama_read(&r, &layout->n_streams, sizeof(layout->n_streams), "the number of streams");
    if (err < 0)
        return err;
    if (layout->n_streams == 0 || layout->n_streams > LLAMA_STREAMS_MAX)
        return fail(e, -EBADMSG,
                    "the state has %u streams instead of 1 to %d: its format is not the known one",
                    layout->n_streams, LLAMA_STREAMS_MAX);

    err = llama_read_streams(&r, &stream, layout->n_streams, &layout->n_tokens);
    if (err < 0)
        return err;
    if (layout->n_tokens == 0)
        return fail(e, -EBADMSG, "the state has no tokens: evaluate some before llama_state_seq_get_data()");

    err = llama_read_cells(&r, layout->n_tokens);
    if (err == 0)
        err = llama_read_numbers(&r, shape, layout, &got.k);
    if (err == 0)
        err = llama_read_end(&r, stream, layout->n_streams);
    if (err < 0)
        return err;

    row_bytes = llama_row_numbers(shape) * dtype_bytes(layout->dtype);
    got.step = LLAMA_LAYER_BYTES + layout->n_tokens * row_bytes;
    got.v = got.k + shape->n_layers * got.step;
    *ret = got;
    return 0;
}

/* ---- writing ---- */

static int llama_check_layout(const kvc_llama_layout *layout, struct errmsg *e)
{
    if (layout->n_tokens == 0 || layout->n_tokens > INT32_MAX)
        return fail(e, -EINVAL, "kvc_llama_layout: n_tokens is %u instead of 1 to %d", layout->n_tokens,
                    INT32_MAX);
    if (layout->n_streams == 0 || layout->n_streams > LLAMA_STREAMS_MAX)
        return fail(e, -EINVAL, "kvc_llama_layout: n_streams is %u instead of 1 to %d", layout->n_streams,
                    LLAMA_STREAMS_MAX);
    if (dtype_bytes(layout->dtype) == 0)
        return fail(e, -EINVAL, "kvc_llama_layout: unknown number type %u", layout->dtype);
    if (layout->v_transposed > 1)
        return fail(e, -EINVAL, "kvc_llama_layout: v_transposed is %u instead of 0 or 1",
                    layout->v_transposed);
    if (layout->states_rotation > 1)
        return fail(e, -EINVAL, "kvc_llama_layout: states_rotation is %u instead of 0 or 1",
                    layout->states_rotation);
    if (layout->unused != 0)
        return fail(e, -EINVAL, "kvc_llama_layout: unused is %u instead of 0", layout->unused);

    return 0;
}

int llama_state_plan(const kvc_llama_layout *layout, const struct llama_shape *shape, struct llama_state *ret,
                     size_t *ret_bytes, struct errmsg *e)
{
    size_t row_bytes = llama_row_numbers(shape) * dtype_bytes(layout->dtype), step, numbers, bytes;
    struct llama_state plan = {.layout = *layout};
    int r = llama_check_layout(layout, e);

    if (r < 0)
        return r;

    /* the first stream has the cells; a count of 0 for each other one is at the end */
    plan.k = LLAMA_MAGIC_BYTES + 2 * sizeof(uint32_t) + (size_t) layout->n_tokens * LLAMA_CELL_BYTES +
             LLAMA_DATA_BYTES + (layout->states_rotation ? LLAMA_ROTATION_BYTES : 0) + LLAMA_LAYER_BYTES;
    if (!checked_mul(layout->n_tokens, row_bytes, &step) || !checked_add(step, LLAMA_LAYER_BYTES, &step) ||
        !checked_mul3(step, 2, shape->n_layers, &numbers) ||
        !checked_add(numbers, plan.k - LLAMA_LAYER_BYTES + (layout->n_streams - 1) * sizeof(uint32_t),
                     &bytes))
        return fail(e, -EINVAL, "a state of %u tokens is larger than the address space", layout->n_tokens);

    plan.step = step;
    plan.v = plan.k + shape->n_layers * step;
    *ret = plan;
    *ret_bytes = bytes;
    return 0;
}

static uint8_t *llama_put(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof(value));
    return at + sizeof(value);
}

static uint8_t *llama_put_layers(const struct llama_state *plan, const struct llama_shape *shape,
                                 bool transposed, uint8_t *at)
{
    uint32_t n_numbers = (uint32_t) llama_row_numbers(shape);
    uint32_t number_bytes = (uint32_t) dtype_bytes(plan->layout.dtype);

    for (uint32_t i = 0; i < shape->n_layers; i++) {
        uint8_t *numbers = llama_put(at, (uint32_t) llama_type_of(plan->layout.dtype));

        numbers = llama_put(numbers, transposed ? number_bytes : n_numbers * number_bytes);
        (void) llama_put(numbers, transposed ? n_numbers : 0);
        at += plan->step;
    }
    return at;
}

void llama_state_write_headers(const struct llama_state *plan, const struct llama_shape *shape,
                               uint8_t *state)
{
    const kvc_llama_layout *layout = &plan->layout;
    uint8_t *at = llama_put(state, llama_magic);

    at = llama_put(at, 0); /* set_data() replaces the sequence id by its argument */
    at = llama_put(at, layout->n_streams);
    at = llama_put(at, layout->n_tokens);
    for (uint32_t i = 0; i < layout->n_tokens; i++) {
        at = llama_put(at, i);
        at = llama_put(at, 1);
        at = llama_put(at, 0);
    }

    at = llama_put(at, layout->v_transposed);
    at = llama_put(at, shape->n_layers);
    for (size_t i = 0; layout->states_rotation && i < LLAMA_ROTATION_BYTES / sizeof(uint32_t); i++)
        at = llama_put(at, 0); /* not rotated */
    at = llama_put_layers(plan, shape, false, at);
    at = llama_put_layers(plan, shape, layout->v_transposed, at);
    for (uint32_t i = 1; i < layout->n_streams; i++)
        at = llama_put(at, 0);
}
